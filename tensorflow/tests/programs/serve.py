"""A task that serves until it is killed, and answers questions from standard input."""

import json
import os
import sys

import common

server = common.start_server()
print("READY", server.target, flush=True)
for line in sys.stdin:
    if line.strip() == "counters":
        answer = dict(common.counters(), resident_bytes=common.resident_bytes(), threads=len(os.listdir("/proc/self/task")))
    else:
        answer = {"error": f"unknown question {line!r}"}
    print("ANSWER " + json.dumps(answer), flush=True)
server.join()

"""A task that serves until it is killed or told to end, and answers questions from standard input."""

import json
import os
import signal
import sys

import common

# What a task of a test inherits may be that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

server = common.start_server()
print("READY", server.target, flush=True)
for line in sys.stdin:
    if line.strip() == "end":
        sys.exit(0)
    if line.startswith("kill shard "):
        common.kill_shard(int(line.split()[-1]))
        answer = {}
    elif line.strip() == "counters":
        answer = dict(common.counters(), resident_bytes=common.resident_bytes(), threads=len(os.listdir("/proc/self/task")))
    else:
        answer = {"error": f"unknown question {line!r}"}
    print("ANSWER " + json.dumps(answer), flush=True)
server.join()

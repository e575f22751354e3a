"""A worker whose steps receive a variable of the ps; goes on when one fails, and tells how each ended.

    steps.py SECONDS

After some steps it waits for a line on standard input: `kill shard PORT` kills the shard of its own engine that listens
there. It then tells how the steps of so many seconds end.
"""

import sys
import time

import common
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
with v1.device("/job:ps/task:0"):
    variable = v1.get_variable("v", [1000], initializer=v1.ones_initializer())
with v1.device("/job:worker/task:0"):
    total = tf.reduce_sum(variable * 2.0)
session = v1.Session(server.target)
session.run(variable.initializer)


def step():
    begin = time.monotonic()
    try:
        value, error = float(session.run(total)), None
    except tf.errors.OpError as failure:
        value, error = None, f"{type(failure).__name__}: {failure.message}"
    return {"value": value, "error": error, "seconds": time.monotonic() - begin}


for _ in range(10):
    assert step()["value"] == 2000.0
print("STEPS", flush=True)
told = sys.stdin.readline()
if told.startswith("kill shard "):
    common.kill_shard(int(told.split()[-1]))
ends = []
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    ends.append(step())
    time.sleep(0.05)
common.result({"ends": ends, "counters": common.counters()})
common.leave()

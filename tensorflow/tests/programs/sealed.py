"""A worker that exchanges values with the ps in every way that a step has, and tells how each step ended.

The values hold the bytes of `SECRET`: whoever listens on the wire can look for them.
"""

import sys

import common
import numpy as np
import tensorflow as tf

SECRET = b"a value that nobody may read. "

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
own = f"/job:{common.TASK['job']}/task:{common.TASK['index']}"
with v1.device("/job:ps/task:0"):
    fed = v1.placeholder(tf.uint8, [None])
    doubled = tf.concat([fed, fed], 0)
with v1.device(own):
    received = tf.bitwise.bitwise_and(doubled, np.uint8(255))
    pushed = tf.bitwise.bitwise_or(fed, np.uint8(0))
with v1.device("/job:ps/task:0"):
    taken = tf.reduce_sum(tf.cast(pushed, tf.int64))
secret = np.frombuffer(SECRET * 50, np.uint8)
ends = {}
session = v1.Session(server.target)
for name, fetch in {"feed": doubled, "receive": received, "push": taken}.items():
    try:
        session.run(fetch, {fed: secret})
        ends[name] = None
    except tf.errors.OpError as failure:
        ends[name] = {"type": type(failure).__name__, "text": failure.message}
common.result({"ends": ends, "counters": common.counters()})
sys.stdin.readline()
common.leave()

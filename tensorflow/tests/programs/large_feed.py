"""Feeds a ps so many bytes and one more, all ones, and adds them up there.

    large_feed.py BYTES
"""

import sys

import common
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
with tf.device("/job:ps/task:0"):
    fed = v1.placeholder(tf.uint8, [None])
    ones = tf.math.count_nonzero(fed, dtype=tf.int64)
    small = tf.constant(1.0)
with v1.Session(server.target) as session:
    # From the second step on the star port is known.
    session.run([small, v1.constant(0.0)])
    session.run(small)
    total = int(session.run(ones, {fed: np.ones(int(sys.argv[1]) + 1, np.uint8)}))
common.result({"sum": total, "counters": common.counters()})
common.leave()

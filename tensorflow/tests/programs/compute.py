"""Computes large tensors in a few steps that need no peer, and says what the plugin counted."""

import common
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
with tf.device("/job:worker/task:0"):
    halves = tf.random.uniform([1 << 20]) / 2
    largest = tf.reduce_max(halves)
session = v1.Session(server.target)
largest_values = [float(session.run(largest)) for _ in range(5)]
common.result({"largest": largest_values, "counters": common.counters()})
common.leave()

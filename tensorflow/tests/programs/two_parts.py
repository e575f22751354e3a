"""Runs steps with a part on the ps and one on the worker, and no tensor between them.

    two_parts.py STEPS
"""

import sys

import common
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
steps = int(sys.argv[1])
server = common.start_server()
with tf.device("/job:ps/task:0"):
    there = v1.random_uniform([])
with tf.device("/job:worker/task:0"):
    here = v1.random_uniform([])
session = v1.Session(server.target)
for _ in range(steps):
    session.run([here, there])
common.result({"steps": steps})
sys.stdin.readline()
common.leave()

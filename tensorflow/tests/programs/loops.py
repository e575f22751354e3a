"""A worker that runs a loop over itself and a ps, of which each iteration has keys of its own, and then steps with many
small tensors.

    loops.py ITERATIONS STEPS
"""

import sys

import common
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
v1.disable_control_flow_v2()

iterations, steps = int(sys.argv[1]), int(sys.argv[2])
server = common.start_server()
task = common.TASK
here, there = f"/job:{task['job']}/task:{task['index']}", "/job:ps/task:0"


def body(at):
    with tf.device(there):
        far = at + 1
    with tf.device(here):
        return tf.identity(far)


with tf.device(here):
    count = v1.placeholder(tf.int32, [])
    loop = v1.while_loop(lambda at: at < count, body, [tf.constant(0)], parallel_iterations=1)
with tf.device(there):
    far = [v1.placeholder_with_default(np.full(8, index, np.float32), [8]) + 1 for index in range(40)]
with tf.device(here):
    total = tf.add_n([tf.identity(one) for one in far])

with v1.Session(server.target) as session:
    assert session.run(loop, {count: iterations}) == iterations
    before = common.counters()
    for _ in range(steps):
        assert session.run(total)[0] == sum(range(1, 41))
    after = common.counters()
common.result({"fused": after["fused_tensors"] - before["fused_tensors"]})
sys.stdin.readline()
common.leave()

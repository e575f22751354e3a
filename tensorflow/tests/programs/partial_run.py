"""Partial runs: what is fed later must not hold up what can be fetched before.

Tensors that wait for the first feed, for the second and for none go from one task to another side by side.
"""

import sys

import common
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


def crossing(value, number):
    """So many tensors made of `value` on the ps, and their sum on the worker."""
    with tf.device(PS):
        made = [value * float(i + 1) for i in range(number)]
    with tf.device(WORKER):
        return tf.add_n([tf.raw_ops.Identity(input=one) for one in made])


found = []
with tf.device(WORKER):
    first, second = v1.placeholder(tf.float32, [4]), v1.placeholder(tf.float32, [4])
with tf.device(PS):
    variables = [v1.get_variable(f"v{i}", initializer=np.full([4], i, np.float32), use_resource=True) for i in range(8)]
with tf.device(WORKER):
    read = tf.add_n([tf.raw_ops.Identity(input=one.read_value()) for one in variables])
early, late = crossing(first, 6), crossing(second, 6)
both = crossing(first + second, 6)
with v1.Session(server.target) as session:
    session.run(v1.global_variables_initializer())
    for step in range(3):
        handle = session.partial_run_setup([early, late, both, read], [first, second])
        begin = session.partial_run(handle, early, {first: np.full([4], 1.0 + step, np.float32)})
        # What is fed now is made of what was fetched.
        rest = session.partial_run(handle, [late, both, read], {second: begin * 0.5})
        found += [begin.tolist(), *[one.tolist() for one in rest]]
common.result({"found": found, "counters": common.counters()})
sys.stdin.readline()
common.leave()

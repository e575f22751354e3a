"""Extends a graph whose session has run: by more reads and updates of the same variables, and by new ones.

Each part exchanges small tensors both ways. Parts that were run before are run again beside the new ones.
"""

import sys

import common
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
random = np.random.RandomState(7)
variables, parts = [], []


def new_variables(number):
    with tf.device(PS):
        made = [
            v1.get_variable(f"v{len(variables) + i}", initializer=random.randn(16).astype(np.float32), use_resource=True)
            for i in range(number)
        ]
    variables.extend(made)
    return v1.variables_initializer(made)


def new_part():
    """All variables are read by the worker, which sends the ps what it adds to each."""
    with tf.device(WORKER):
        values = [tf.raw_ops.Identity(input=one.read_value()) for one in variables]
        total = tf.reduce_sum(tf.stack(values), 0)
        changes = [0.25 * total - value for value in values]
    with tf.control_dependencies(values), tf.device(PS):
        updates = [one.assign_sub(0.125 * change, read_value=False) for one, change in zip(variables, changes)]
    parts.append((total, updates))


found, packs = [], []
initialize = new_variables(8)
new_part()
with v1.Session(server.target) as session:
    for number in (0, 6, 0, 5):
        if number:
            initialize = new_variables(number)
        if initialize is not None:
            session.run(initialize)
            initialize = None
        if packs:
            new_part()
        for total, updates in parts:
            found.append(session.run([total, *updates])[0].tolist())
        packs.append(common.counters()["graph_packs"])
    found.append([value.tolist() for value in session.run(variables)])
common.result({"found": found, "packs": packs, "counters": common.counters()})
sys.stdin.readline()
common.leave()

"""The coordinator of a ParameterServerStrategy whose step reads and updates many small variables.

In the end all workers read them at once.

    strategy_many.py STEPS VARIABLES
"""

import json
import os
import sys
import time

import common

task = common.TASK
os.environ["TF_CONFIG"] = json.dumps({"cluster": task["cluster"], "task": {"type": "chief", "index": 0}})

import numpy as np
import tensorflow as tf

steps, number = int(sys.argv[1]), int(sys.argv[2])
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(task["cluster"]), task_type="chief", task_id=0, rpc_layer=task["protocol"]
)
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    variables = [tf.Variable(np.full([256], 1.0 + i, np.float32), name=f"v{i}") for i in range(number)]
    arrived = tf.Variable(0, name="arrived")
workers = len(task["cluster"]["worker"])


@tf.function
def step():
    def replica():
        values = [variable.read_value() for variable in variables]
        # Not `add_n`: it begins with whichever value nobody else uses by then, so its last bit differs from run to run.
        total = tf.reduce_mean(tf.stack(values), 0)
        for variable, value in zip(variables, values):
            variable.assign_add(0.25 * value - 0.125 * total)
        return tf.reduce_sum(total)

    return strategy.run(replica)


@tf.function
def look():
    """What the variables hold, once all workers have come here: so each of them runs this."""

    def replica():
        arrived.assign_add(1)
        tf.while_loop(lambda _: arrived.read_value() < workers, lambda looked: [looked + 1], [0])
        return tf.reduce_sum(tf.stack([variable.read_value() for variable in variables]))

    return strategy.run(replica)


found = []
for _ in range(3):
    found.append(float(coordinator.fetch(coordinator.schedule(step))))
begin = time.perf_counter()
for _ in range(steps):
    found.append(float(coordinator.fetch(coordinator.schedule(step))))
seconds = time.perf_counter() - begin
last = [variable.numpy().tolist()[:2] for variable in variables]
looks = [coordinator.schedule(look) for _ in range(workers)]
coordinator.join()
common.result(
    {
        "found": found,
        "last": last,
        "looks": [float(coordinator.fetch(one)) for one in looks],
        "steps_per_s": steps / seconds,
        "counters": common.counters(),
    }
)
common.leave()

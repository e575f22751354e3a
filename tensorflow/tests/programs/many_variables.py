"""A step under ParameterServerStrategy that reads and updates many small variables."""

import json
import os

import common
import numpy as np
import tensorflow as tf


def connect():
    """The strategy of this cluster, and its coordinator, which this process is."""
    cluster, protocol = common.TASK["cluster"], common.TASK["protocol"]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer=protocol
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy)


def make(strategy, number, size=256):
    """So many variables of so many numbers, and the step."""
    with strategy.scope():
        variables = [tf.Variable(np.full([size], 1.0 + i, np.float32), name=f"v{i}") for i in range(number)]

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

    return variables, step

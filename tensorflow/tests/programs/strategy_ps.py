"""The coordinator of a ParameterServerStrategy: trains a small model on the workers, variables on the ps tasks."""

import json
import os
import sys

import common

task = common.TASK
os.environ["TF_CONFIG"] = json.dumps({"cluster": task["cluster"], "task": {"type": "chief", "index": 0}})

import numpy as np
import tensorflow as tf

steps = int(sys.argv[1])
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(task["cluster"]), task_type="chief", task_id=0, rpc_layer=task["protocol"]
)
strategy = tf.distribute.ParameterServerStrategy(
    resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
random = np.random.RandomState(3)
inputs = random.randn(512, 32).astype(np.float32)
targets = inputs @ random.randn(32, 4).astype(np.float32)
with strategy.scope():
    weights = tf.Variable(tf.zeros([32, 4]), name="weights")
    ran = tf.Variable(0, dtype=tf.int64, name="ran", aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


@tf.function
def step(begin):
    def replica(begin):
        x = tf.constant(inputs)[begin : begin + 64]
        y = tf.constant(targets)[begin : begin + 64]
        with tf.GradientTape() as tape:
            parts = [tf.convert_to_tensor(part) for part in getattr(weights, "variables", [weights])]
            tape.watch(parts)
            loss = tf.reduce_mean(tf.square(tf.matmul(x, tf.concat(parts, 0)) - y))
        for part, gradient in zip(getattr(weights, "variables", [weights]), tape.gradient(loss, parts)):
            part.assign_sub(0.2 * gradient)
        ran.assign_add(1)
        return loss

    return strategy.run(replica, args=(begin,))


losses = [coordinator.schedule(step, args=(tf.constant(64 * (number % 8)),)) for number in range(steps)]
coordinator.join()
values = [float(coordinator.fetch(loss)) for loss in losses]
common.result(
    {"first": values[0], "last": min(values[-8:]), "ran": int(ran.numpy()), "counters": common.counters()}
)
common.leave()

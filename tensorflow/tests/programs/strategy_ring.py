"""One worker of a MultiWorkerMirroredStrategy with RING collectives; prints what all-reduces gave."""

import hashlib
import json
import os
import sys

import common

task = common.TASK
os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": task["cluster"],
        "task": {"type": task["job"], "index": task["index"]},
        "rpc_layer": task["protocol"],
    }
)

import numpy as np
import tensorflow as tf

steps = int(sys.argv[1])
strategy = tf.distribute.MultiWorkerMirroredStrategy(
    communication_options=tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
)
index = task["index"]
random = np.random.RandomState(100 + index)
x = tf.constant(random.randn(128, 64).astype(np.float32))
y = tf.constant(random.randn(128, 16).astype(np.float32))
with strategy.scope():
    variables = [tf.Variable(tf.zeros([64, 16])), tf.Variable(tf.zeros([16])), tf.Variable(tf.zeros([300, 700]))]
losses = []


@tf.function
def step():
    def replica():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, variables[0]) + variables[1] - y))
            loss += tf.reduce_mean(tf.square(variables[2] - float(index + 1)))
        gradients = tape.gradient(loss, variables)
        context = tf.distribute.get_replica_context()
        for variable, gradient in zip(variables, context.all_reduce("mean", gradients)):
            variable.assign_sub(0.5 * gradient)
        return loss

    return strategy.reduce("mean", strategy.run(replica), axis=None)


for _ in range(steps):
    losses.append(float(step()))
digests = [hashlib.sha256(variable.numpy().tobytes()).hexdigest()[:16] for variable in variables]
common.result({"losses": losses, "digests": digests, "counters": common.counters()})
sys.stdin.readline()
common.leave()

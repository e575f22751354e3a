"""One worker of a MultiWorkerMirroredStrategy with RING collectives, whose variable has so many bytes.

    large_ring.py BYTES
"""

import json
import os
import sys

import common

task = common.TASK
place = {"type": task["job"], "index": task["index"]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": task["cluster"], "task": place, "rpc_layer": task["protocol"]})

import tensorflow as tf

number = int(sys.argv[1]) // 4
strategy = tf.distribute.MultiWorkerMirroredStrategy(
    communication_options=tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
)
with strategy.scope():
    variable = tf.Variable(tf.zeros([number]))


@tf.function
def step():
    def replica():
        gradient = tf.fill([number], float(task["index"] + 1))
        variable.assign_sub(tf.distribute.get_replica_context().all_reduce("mean", gradient))

    strategy.run(replica)


step()
ends = [float(variable[0]), float(variable[number // 2]), float(variable[-1])]
common.result({"ends": ends, "sum": float(tf.reduce_mean(variable)), "counters": common.counters()})
sys.stdin.readline()
common.leave()

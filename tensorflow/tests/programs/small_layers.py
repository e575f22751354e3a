"""A worker that trains a network of many small layers, whose variables lie on the ps tasks.

    small_layers.py STEPS
"""

import sys

import common
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
steps = int(sys.argv[1])
LAYERS = 12
task = common.TASK
server = common.start_server()
random = np.random.RandomState(5)
with v1.device(v1.train.replica_device_setter(cluster=task["cluster"], worker_device="/job:worker/task:0")):
    global_step = v1.train.get_or_create_global_step()
    features = v1.placeholder(tf.float32, [None, 16])
    labels = v1.placeholder(tf.float32, [None, 1])
    layer = features
    for number in range(LAYERS):
        start = (np.eye(16) + 0.1 * random.randn(16, 16)).astype(np.float32)
        weights = v1.get_variable(f"weights{number}", initializer=start)
        bias = v1.get_variable(f"bias{number}", [16], initializer=v1.zeros_initializer())
        layer = tf.tanh(tf.matmul(layer, weights) + bias)
    out = v1.get_variable("out", initializer=random.randn(16, 1).astype(np.float32))
    loss = tf.reduce_mean(tf.square(tf.matmul(layer, out) - labels))
    train = v1.train.MomentumOptimizer(0.02, 0.9).minimize(loss, global_step=global_step)

config = v1.ConfigProto(intra_op_parallelism_threads=1)
losses = []
inputs = random.randn(steps, 32, 16).astype(np.float32)
with v1.train.MonitoredTrainingSession(master=server.target, is_chief=True, config=config) as session:
    for step in range(steps):
        given = {features: inputs[step], labels: np.sin(inputs[step][:, :1])}
        losses.append(float(session.run([loss, train], given)[0]))
    # The graphs that TensorBoard shows.
    metadata = v1.RunMetadata()
    session.run(loss, given, options=v1.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    nodes = [node.name for graph in metadata.partition_graphs for node in graph.node]
    counters = common.counters()
print("NODES", len(nodes), *[name for name in nodes if name.startswith("grpcxx/")], flush=True)
common.result({"losses": losses, "counters": counters})
sys.stdin.readline()
common.leave()

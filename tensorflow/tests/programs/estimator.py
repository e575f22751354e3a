"""One task of a job that Estimator trains, with what TF_CONFIG says: chief, worker, ps or evaluator.

    estimator.py FOLDER STEPS
"""

import os
import sys

import common

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0")
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
folder, steps = sys.argv[1], int(sys.argv[2])


def clicks():
    random = np.random.RandomState(3)
    features = random.randn(512, 16).astype(np.float32)
    labels = features @ random.randn(16, 1).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(32)


def model(features, labels, mode):
    weights = v1.get_variable("weights", [16, 1], initializer=v1.zeros_initializer())
    layers = [v1.get_variable(f"bias{i}", [1], initializer=v1.zeros_initializer()) for i in range(8)]
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) + tf.add_n(layers) - labels))
    optimizer = v1.train.GradientDescentOptimizer(0.02)
    train = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


config = tf.estimator.RunConfig(
    # RunConfig knows no other names but grpc.
    model_dir=folder,
    protocol="grpc+verbs",
    save_checkpoints_steps=50,
    log_step_count_steps=20,
    # Else a worker begins five seconds after the chief, who may have done all steps by then.
    experimental_max_worker_delay_secs=0,
)
estimator = tf.estimator.Estimator(model, config=config)
print("READY", flush=True)
tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(clicks, max_steps=steps),
    tf.estimator.EvalSpec(clicks, steps=4, start_delay_secs=1, throttle_secs=1),
)
step = int(estimator.get_variable_value("global_step"))
loss = float(estimator.evaluate(clicks, steps=4)["loss"]) if config.task_type == "evaluator" else None
common.result({"step": step, "loss": loss, "counters": common.counters()})
common.leave()

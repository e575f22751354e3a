"""A worker (or chief) that trains a small regression through MonitoredTrainingSession.

    train.py STEPS [KIND] [SERVER]

KIND is `ref` or `resource`, the kind of the variables; SERVER is `distribute` or `v1`. The parameters lie on the ps tasks.
Every step adds one to a counter on a ps, beside the global step: both must agree with the number of steps that ran.
"""

import os
import sys
import time

import numpy as np
import common
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
steps = int(sys.argv[1])
kind = sys.argv[2] if len(sys.argv) > 2 else "resource"
which = sys.argv[3] if len(sys.argv) > 3 else "distribute"
pause_s = float(os.environ.get("TEST_PAUSE_S", "0"))
if kind == "resource":
    v1.enable_resource_variables()
else:
    v1.disable_resource_variables()

task = common.TASK
is_chief = task["job"] == "chief" or (task["job"] == "worker" and task["index"] == 0 and "chief" not in task["cluster"])
if which == "v1":
    server = v1.train.Server(
        v1.train.ClusterSpec(task["cluster"]),
        job_name=task["job"],
        task_index=task["index"],
        protocol=task["protocol"],
    )
else:
    server = common.start_server()

worker_device = f"/job:{task['job']}/task:{task['index']}"
with v1.device(v1.train.replica_device_setter(cluster=task["cluster"], worker_device=worker_device)):
    global_step = v1.train.get_or_create_global_step()
    applied = v1.get_variable("applied", [], tf.int64, initializer=v1.zeros_initializer(), trainable=False)
    random = np.random.RandomState(7)
    features = tf.constant(random.randn(256, 64).astype(np.float32))
    true_weights = random.randn(64, 8).astype(np.float32)
    labels = tf.matmul(features, tf.constant(true_weights))
    weights = v1.get_variable("weights", [64, 8], initializer=v1.zeros_initializer())
    bias = v1.get_variable("bias", [8], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) + bias - labels))
    train = v1.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=global_step)
    with tf.control_dependencies([train]):
        count = v1.assign_add(applied, 1, use_locking=True)

config = v1.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
config.experimental.share_session_state_in_clusterspec_propagation = False
losses = []
ran = 0
errors = []
begin = time.monotonic()
with v1.train.MonitoredTrainingSession(
    master=server.target,
    is_chief=is_chief,
    hooks=[],
    config=config,
    checkpoint_dir=os.environ.get("TEST_CHECKPOINT_DIR") if is_chief else None,
    save_checkpoint_steps=10 if os.environ.get("TEST_CHECKPOINT_DIR") else None,
    save_checkpoint_secs=None,
    log_step_count_steps=None,
) as session:
    print("TRAINING", flush=True)
    while ran < steps:
        _, value, step = session.run([count, loss, global_step])
        ran += 1
        losses.append(float(value))
        if ran % 20 == 0:
            print("STEP", ran, step, flush=True)
        if pause_s:
            time.sleep(pause_s)
    final = session.run([global_step, applied, loss])
common.result(
    {
        "ran": ran,
        "global_step": int(final[0]),
        "applied": int(final[1]),
        "first_loss": losses[0],
        "last_loss": float(final[2]),
        "losses": losses[:50],
        "seconds": time.monotonic() - begin,
        "counters": common.counters(),
    }
)
sys.stdin.readline()
common.leave()

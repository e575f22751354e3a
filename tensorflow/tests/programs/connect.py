"""A client that joins a cluster with experimental_connect_to_cluster and runs functions on its tasks."""

import common

task = common.TASK

import numpy as np
import tensorflow as tf

spec = {job: addresses for job, addresses in task["cluster"].items() if job != "chief"}
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec(spec), job_name="chief", protocol=task["protocol"], make_master_device_default=False
)
found = []
random = np.random.RandomState(5)
value = random.randn(300, 200).astype(np.float32)
with tf.device("/job:worker/task:0"):
    first = tf.Variable(value)
with tf.device("/job:worker/task:1"):
    second = tf.Variable(tf.ones([200, 100]))
    copied = tf.identity(first)
    small = [tf.Variable(tf.fill([16], float(i))) for i in range(20)]
found.append(float(tf.reduce_sum(tf.abs(copied.numpy() - value))))


@tf.function
def product():
    with tf.device("/job:worker/task:1"):
        out = tf.matmul(first, second)
        text = tf.strings.as_string(tf.reduce_sum(tf.cast(out, tf.float64)), precision=3)
    with tf.device("/job:worker/task:0"):
        return tf.identity(out) + 1.0, tf.strings.join([text, "done"])


@tf.function
def small_sums():
    with tf.device("/job:worker/task:0"):
        total = tf.add_n([tf.raw_ops.Identity(input=one.read_value()) for one in small])
        parts = [total * float(i) for i in range(8)]
    with tf.device("/job:worker/task:1"):
        return tf.add_n([tf.raw_ops.Identity(input=part) for part in parts])


for _ in range(5):
    found.append(float(tf.reduce_max(tf.abs(small_sums() - 28.0 * 190.0))))
    out, text = product()
    found.append(float(tf.reduce_max(tf.abs(out.numpy() - (value @ np.ones([200, 100], np.float32) + 1.0)))))
common.result({"differences": found, "text": text.numpy().decode(), "counters": common.counters()})
common.leave()

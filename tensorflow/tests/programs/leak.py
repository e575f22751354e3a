"""Runs many steps, one in fifty of them cancelled half-way, and says how much memory they left behind.

    leak.py STEPS
"""

import sys

import common
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
steps = int(sys.argv[1])
server = common.start_server()
with tf.device("/job:ps/task:0"):
    small = [v1.get_variable(f"s{index}", initializer=tf.ones([64]), use_resource=True) for index in range(20)]
    large = v1.get_variable("large", initializer=tf.ones([100_000]), use_resource=True)
    queue = v1.FIFOQueue(10, [tf.float32], [[]])
    # Never comes: its step is cancelled by a timeout while a receive waits for it.
    never = queue.dequeue()
with tf.device("/job:worker/task:0"):
    total = tf.add_n([tf.reduce_sum(value.read_value()) for value in small]) + tf.reduce_sum(large.read_value())
    stuck = never + total
with tf.device("/job:ps/task:0"):
    pushed = tf.reduce_sum(total + tf.ones([1000]))
session = v1.Session(server.target)
session.run(v1.global_variables_initializer())
cancelled = 0


def run(number):
    global cancelled
    for step in range(number):
        assert session.run([total, pushed])[0] == 101280.0
        if step % 50 == 49:
            # Long enough for the step to begin everywhere: TensorFlow loses a cancel that comes before (over gRPC too).
            try:
                session.run(stuck, options=v1.RunOptions(timeout_in_ms=300))
            except tf.errors.DeadlineExceededError:
                cancelled += 1


run(max(steps // 10, 200))
before = common.resident_bytes()
print("WARM", flush=True)
run(steps)
common.result(
    {
        "grown_bytes": common.resident_bytes() - before,
        "cancelled_steps": cancelled,
        "counters": common.counters(),
    }
)
sys.stdin.readline()
common.leave()

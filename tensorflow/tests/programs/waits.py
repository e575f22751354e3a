"""A worker that waits for a value which the ps takes from a queue, until it puts one there itself."""

import sys
import threading

import common
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
with tf.device("/job:ps/task:0"):
    queue = v1.FIFOQueue(1, [tf.float32], shapes=[()], shared_name="late")
    late = queue.dequeue(name="late")
    put = queue.enqueue(7.0)
with tf.device("/job:worker/task:0"):
    value = tf.raw_ops.Identity(input=late)
session = v1.Session(server.target)
found = []
waiting = threading.Thread(target=lambda: found.append(float(session.run(value))))
waiting.start()
print("WAITS", flush=True)
sys.stdin.readline()
session.run(put)
waiting.join()
common.result({"value": found[0], "counters": common.counters()})
sys.stdin.readline()
common.leave()

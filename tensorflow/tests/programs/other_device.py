"""Receives a variable of the ps into memory of a device that is not the CPU's own."""

import common
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
with tf.device("/job:ps/task:0/device:CPU:0"):
    variable = v1.get_variable("v", [1000], initializer=v1.ones_initializer(), use_resource=True)
    value = variable.read_value()
with tf.device("/job:worker/task:0/device:XLA_CPU:0"):
    total = tf.reduce_sum(value * 3.0)
with v1.Session(server.target) as session:
    session.run(variable.initializer)
    print("DEVICES", [device.name for device in session.list_devices()], flush=True)
    found = float(session.run(total))
common.result({"value": found, "counters": common.counters()})
common.leave()

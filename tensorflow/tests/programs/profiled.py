"""Reads variables of a ps while the profiler records; prints what it recorded of grpc++.

    profiled.py FOLDER
"""

import glob
import re
import sys

import common
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
with tf.device("/job:ps/task:0"):
    made = [v1.get_variable(f"v{i}", initializer=tf.ones([100_000]), use_resource=True) for i in range(2)]
    values = [one.read_value() for one in made]
with tf.device("/job:worker/task:0"):
    total = tf.add_n([tf.raw_ops.Identity(input=value) for value in values])
with v1.Session(server.target) as session:
    session.run(v1.global_variables_initializer())
    session.run(total)
    tf.profiler.experimental.start(sys.argv[1])
    for _ in range(3):
        session.run(total)
    tf.profiler.experimental.stop()
(path,) = glob.glob(f"{sys.argv[1]}/**/*.xplane.pb", recursive=True)
with open(path, "rb") as file:
    recorded = file.read()
found = re.findall(rb"grpc\+\+ receive|/job:ps/replica:0/task:0|400000", recorded)
common.result({"found": sorted({one.decode() for one in found})})
common.leave()

"""Reads variables of a ps and sends it a tensor while the profiler records; prints what it recorded of grpc++.

    profiled.py FOLDER
"""

import glob
import sys

import common
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

v1 = tf.compat.v1
v1.disable_eager_execution()
server = common.start_server()
with tf.device("/job:ps/task:0"):
    made = [v1.get_variable(f"v{i}", initializer=tf.ones([100_000]), use_resource=True) for i in range(2)]
    values = [one.read_value() for one in made]
with tf.device("/job:worker/task:0"):
    total = tf.add_n([tf.raw_ops.Identity(input=value) for value in values])
with tf.device("/job:ps/task:0"):
    returned = tf.reduce_sum(tf.raw_ops.Identity(input=total))
with v1.Session(server.target) as session:
    session.run(v1.global_variables_initializer())
    session.run(returned)
    tf.profiler.experimental.start(sys.argv[1])
    for _ in range(3):
        session.run(returned)
    tf.profiler.experimental.stop()
(path,) = glob.glob(f"{sys.argv[1]}/**/*.xplane.pb", recursive=True)
space = xplane_pb2.XSpace()
with open(path, "rb") as file:
    space.ParseFromString(file.read())


def value(plane, stat):
    held = getattr(stat, stat.WhichOneof("value"))
    return plane.stat_metadata[held].name if stat.WhichOneof("value") == "ref_value" else held


events = [
    {
        "name": plane.event_metadata[event.metadata_id].name,
        **{plane.stat_metadata[stat.metadata_id].name: value(plane, stat) for stat in event.stats},
    }
    for plane in space.planes
    for line in plane.lines
    for event in line.events
    if plane.event_metadata[event.metadata_id].name.startswith("grpc++ ")
]
common.result({"events": events})
common.leave()

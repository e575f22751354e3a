"""Makes a grpcxx task a member of a cluster of stock TensorFlow, over gRPC.

usage: tensorflow_peer.py HOST:PORT

The endpoint is the only ps of the cluster, this process its worker. The endpoint must serve the engine of
`tests/support` with the edges that CHECKS names. Prints one line for each check.
"""

import os
import socket
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf  # noqa: E402  (the variables above must be set before)

PS = "/job:ps/replica:0/task:0/device:CPU:0"
WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
PS_INCARNATION = 11


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def received(target, edge, dtype):
    """The tensor that a receive node on the worker gets from the ps."""
    graph_def = tf.compat.v1.GraphDef()
    receive = graph_def.node.add(name="receive", op="_Recv", device=WORKER)
    receive.attr["tensor_type"].type = dtype.as_datatype_enum
    receive.attr["tensor_name"].s = edge.encode()
    receive.attr["send_device"].s = PS.encode()
    receive.attr["send_device_incarnation"].i = PS_INCARNATION
    receive.attr["recv_device"].s = WORKER.encode()
    receive.attr["client_terminated"].b = False
    same = graph_def.node.add(name="same", op="Identity", device=WORKER, input=["receive"])
    same.attr["T"].type = dtype.as_datatype_enum
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    with tf.compat.v1.Session(target, graph=graph) as session:
        return session.run("same:0")


def client_of_our_master(ours, _):
    with tf.compat.v1.Session(f"grpc://{ours}") as session:
        names = [device.name for device in session.list_devices()]
    assert PS in names and WORKER in names, names
    tf.compat.v1.Session.reset(f"grpc://{ours}")
    with tf.Graph().as_default():
        one = tf.constant(1.0)
        with tf.compat.v1.Session(f"grpc://{ours}") as session:
            try:
                session.run(one)
            except tf.errors.UnimplementedError as error:
                assert "runs no graphs" in error.message, error.message
            else:
                raise AssertionError("a graph has run")


def devices_through_the_stock_master(_, target):
    names = [device.name for device in tf.compat.v1.Session(target).list_devices()]
    assert PS in names, names


def tensors_of_all_kinds(_, target):
    assert received(target, "float32", tf.float32).tolist() == [1.0, 2.0, 3.0]
    assert received(target, "bool", tf.bool).tolist() == [[True], [False]]
    assert float(received(target, "bfloat16", tf.bfloat16)) == 1.0
    assert received(target, "empty", tf.int64).shape == (0, 5)
    assert received(target, "string", tf.string).tolist() == [b"text"]


def large_tensor(_, target):
    large = received(target, "large", tf.uint8)
    assert large.shape == (64 << 20,)
    assert large[:252].tolist() == [i % 251 for i in range(252)]
    assert int(large.sum(dtype="int64")) == sum(i % 251 for i in range(64 << 20))


def failures(_, target):
    try:
        received(target, "ABORTED", tf.float32)
    except tf.errors.AbortedError as error:
        assert "as asked" in error.message, error.message
    else:
        raise AssertionError("an aborted receive has succeeded")


CHECKS = (
    client_of_our_master,
    devices_through_the_stock_master,
    tensors_of_all_kinds,
    large_tensor,
    failures,
)


def main():
    ours = sys.argv[1]
    cluster = tf.train.ClusterSpec({"ps": [ours], "worker": [f"127.0.0.1:{free_port()}"]})
    server = tf.distribute.Server(cluster, job_name="worker", task_index=0, protocol="grpc")
    for check in CHECKS:
        check(ours, server.target)
        print("passed", check.__name__, flush=True)
    # A server of TensorFlow knows no clean end.
    os._exit(0)


if __name__ == "__main__":
    main()

"""Each way to gRPC is told once for each peer, and counted by its reason."""

import pytest

from cluster import Cluster

pytestmark = pytest.mark.processes

# Each small tensor is a call of its own.
ALONE = {"GRPCXX_GRAPH_FUSION": "off", "GRPCXX_TENSOR_FUSE": "false"}


def told(task, text):
    """The lines of its log with this text, which errors of TensorFlow may quote."""
    return [line for line in task.lines if text in line and not line.startswith("RESULT ")]


def test_too_many_calls():
    few = {"GRPCXX_OUTSTANDING_CALLS_MAX": "1", "GRPCXX_WAITING_CALLS_MAX": "1", **ALONE}
    losses = []
    for environment in ({}, few):
        with Cluster("grpc++", environment, ps=1, worker=1) as cluster:
            cluster.serve("ps")
            worker = cluster.start("worker", 0, "small_layers.py", 10)
            result = worker.result()
            losses.append(result["losses"])
    assert result["counters"]["fallback_tensors_too_many_calls"] > 10
    (line,) = told(worker, "come over gRPC, because more calls to it are under way than GRPCXX_OUTSTANDING_CALLS_MAX")
    assert "/job:ps/replica:0/task:0" in line and "fallback_tensors_too_many_calls" in line
    assert losses[0] == losses[1]


def test_tensors_for_memory_of_another_device():
    # A device of TensorFlow that is not called CPU, and needs none but the CPU.
    environment = {"TF_XLA_FLAGS": "--tf_xla_enable_xla_devices"}
    with Cluster("grpc++", environment, ps=1, worker=1) as cluster:
        cluster.serve("ps")
        worker = cluster.start("worker", 0, "other_device.py")
        result = worker.result()
    assert result["value"] == 3000.0
    assert result["counters"]["fallback_tensors_device"] > 0
    (line,) = told(worker, "come over gRPC, because what it sends is for memory of XLA_CPU")
    assert "/job:ps/replica:0/task:0" in line and "fallback_tensors_device" in line


def test_a_task_that_does_not_answer():
    with Cluster("grpc++", ps=1, worker=1) as cluster:
        (server,) = cluster.serve("ps")
        worker = cluster.start("worker", 0, "steps.py", 3)
        worker.wait_for("STEPS")
        server.kill()
        worker.process.stdin.write("go on\n")
        worker.process.stdin.flush()
        result = worker.result()
    assert all(end["error"] for end in result["ends"])
    counters = result["counters"]
    assert counters["fallback_tensors_no_answer"] + counters["fallback_step_calls_no_answer"] > 0
    (line,) = told(worker, "come over gRPC, because it does not answer when it is asked for its star port")
    assert "/job:ps/replica:0/task:0" in line

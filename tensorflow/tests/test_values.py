"""Every kind of tensor arrives over protocol="grpc++" with the bits it has over protocol="grpc"."""

import pytest

from cluster import Cluster

pytestmark = pytest.mark.processes


def sweep(protocol, *arguments, timeout_s=300, environment=None):
    with Cluster(protocol, environment, ps=1, worker=1) as cluster:
        cluster.serve("ps")
        return cluster.start("worker", 0, "sweep.py", *arguments).result(timeout_s)


@pytest.mark.smoke
def test_all_values_are_bit_exact():
    expected = sweep("grpc")
    found = sweep("grpc++")
    failed = {name: value for name, value in expected["cases"].items() if str(value).startswith("ERROR")}
    assert not failed, "these do not work over grpc either"
    assert found["cases"] == expected["cases"]
    counters = found["counters"]
    assert counters["received_tensors"] > 300
    assert counters["receives_open"] == 0
    assert all(value == 0 for name, value in counters.items() if name.startswith("fallback_tensors"))


@pytest.mark.long
def test_a_tensor_of_more_than_2_gib():
    found = sweep("grpc++", (2 << 30) + 4096 + 13, timeout_s=600)
    assert not str(found["cases"]["large"]).startswith("ERROR"), found
    assert found["counters"]["received_in_place_bytes"] > 2 << 30


@pytest.mark.long
def test_a_tensor_of_more_than_4_gib():
    found = sweep("grpc++", 4, (1 << 30) + 13, timeout_s=600)
    assert not str(found["cases"]["large"]).startswith("ERROR"), found
    assert found["counters"]["received_in_place_bytes"] > 4 << 30


@pytest.mark.long
def test_a_tensor_of_more_than_4_gib_is_refused_without_extensions():
    found = sweep("grpc++", 4, (1 << 30) + 13, timeout_s=600, environment={"GRPCXX_EXTENSIONS": "false"})
    assert "cannot be sent, allowed are 4294967295" in found["cases"]["large"]


def compute(**environment):
    with Cluster("grpc++", environment, worker=1) as cluster:
        found = cluster.start("worker", 0, "compute.py").result()
    assert all(0 < value < 0.5 for value in found["largest"])
    return found["counters"]


def test_large_tensors_that_are_computed_take_memory_from_the_pool():
    counters = compute()
    assert counters["pool_hits"] > counters["pool_misses"] > 0


def test_a_pool_that_keeps_nothing_is_not_used():
    counters = compute(GRPCXX_TENSOR_POOL_BYTES="0")
    assert counters["pool_hits"] == counters["pool_misses"] == 0


def test_what_was_received_is_a_forked_childs_own():
    with Cluster("grpc++", ps=1, worker=1) as cluster:
        cluster.serve("ps")
        result = cluster.start("worker", 0, "forked.py").result()
    assert result["parent"] and result["child"] and result["after"], result
    assert result["counters"]["received_tensors"] >= 6

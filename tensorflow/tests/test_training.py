"""Training jobs of real processes over protocol="grpc++"."""

import pytest

from cluster import Cluster

pytestmark = pytest.mark.processes

STEPS = 100


@pytest.mark.parametrize(
    "kind, server", [("resource", "distribute"), pytest.param("ref", "v1", marks=pytest.mark.long)]
)
def test_monitored_training_session_with_two_ps_and_two_workers(kind, server):
    with Cluster("grpc++", ps=2, worker=2) as cluster:
        servers = cluster.serve("ps")
        workers = [cluster.start("worker", index, "train.py", STEPS, kind, server) for index in range(2)]
        results = [worker.result() for worker in workers]
        assert [result["ran"] for result in results] == [STEPS, STEPS]
        last = max(results, key=lambda result: result["applied"])
        assert last["applied"] == last["global_step"] == 2 * STEPS
        assert last["last_loss"] < results[0]["first_loss"] / 100
        for result in results:
            check_star(result["counters"])
        for task in servers:
            counted = task.ask("counters")
            assert counted["served_tensors"] > STEPS
            assert counted["received_tensors"] > STEPS
            assert counted["served_step_calls"] > 3 * STEPS, "both workers run and clean up steps over star"


@pytest.mark.smoke
def test_one_worker_trains_to_the_same_bits_as_over_grpc():
    losses = {}
    for protocol in ("grpc", "grpc++"):
        with Cluster(protocol, ps=2, worker=1) as cluster:
            cluster.serve("ps")
            result = cluster.start("worker", 0, "train.py", 50).result()
            losses[protocol] = result["losses"]
            assert (result["counters"]["received_tensors"] > 0) == (protocol == "grpc++")
    assert losses["grpc"] == losses["grpc++"]


def test_the_profiler_shows_what_is_received(tmp_path):
    with Cluster("grpc++", ps=1, worker=1) as cluster:
        cluster.serve("ps")
        found = cluster.start("worker", 0, "profiled.py", tmp_path).result()["found"]
    assert "grpc++ receive" in found
    assert "/job:ps/replica:0/task:0" in found


def check_star(counters):
    """All tensors came over star, and those with data landed where they stay."""
    assert counters["received_tensors"] > 0
    assert counters["received_in_place_bytes"] == counters["received_bytes"] > 0
    assert counters["served_by_reference_bytes"] == counters["served_bytes"] > 0
    assert counters["receives_failed"] == 0
    # The first of them do not wait for the star port to be known.
    assert counters["step_calls"] > 10 * counters["fallback_step_calls"]
    assert [value for name, value in counters.items() if name.startswith("fallback_tensors")] == [0, 0, 0, 0]
    assert counters["receives_open"] == 0

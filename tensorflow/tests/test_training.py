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


@pytest.mark.parametrize("shm, medium", [("auto", "shm"), ("off", "tcp")])
def test_the_profiler_shows_what_is_received_and_sent(tmp_path, shm, medium):
    # Two large tensors, each of which travels alone.
    ps, worker = "/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0"
    with Cluster("grpc++", {"GRPCXX_SHM": shm}, ps=1, worker=1) as cluster:
        cluster.serve("ps")
        events = cluster.start("worker", 0, "profiled.py", tmp_path).result()["events"]
    received = [event for event in events if event["name"] == "grpc++ receive" and event.get("bytes") == 400000]
    assert len(received) == 6, events
    for event in received:
        assert event["peer"] == ps and event["medium"] == medium, event
        assert event["key"].startswith(f"{ps}/device:CPU:0;") and f";{worker}/device:CPU:0;" in event["key"], event
    sent = [event for event in events if event["name"] == "grpc++ send" and event["bytes"] == 400000]
    assert len(sent) == 3, events
    for event in sent:
        assert event["peer"] == ps, event
        assert event["key"].startswith(f"{worker}/device:CPU:0;") and f";{ps}/device:CPU:0;" in event["key"], event


def check_star(counters):
    """All tensors came over star, and those with data landed where they stay."""
    assert counters["received_tensors"] > 0
    assert counters["received_in_place_bytes"] == counters["received_bytes"] > 0
    assert counters["served_by_reference_bytes"] == counters["served_bytes"] > 0
    assert counters["receives_failed"] == 0
    # The first of them do not wait for the star port to be known.
    assert counters["step_calls"] > 10 * counters["fallback_step_calls"]
    assert [value for name, value in counters.items() if name.startswith("fallback_tensors")] == [0] * 7
    assert counters["receives_open"] == 0

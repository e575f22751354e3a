"""Graphs whose small tensors travel in packs compute what they compute without, to the last bit."""

import os

import pytest

from cluster import Cluster

pytestmark = pytest.mark.processes

# Fusion is on by default.
ON, OFF = {}, {"GRPCXX_GRAPH_FUSION": "off"}
# Other seeds than the usual ones: `TEST_GRAPH_SEEDS=1000,200` runs 200 graphs from 1000 on.
SEEDS = [int(part) for part in os.environ.get("TEST_GRAPH_SEEDS", "1,40").split(",")]
# So many graphs at most share a cluster, whose processes keep something of each.
GRAPHS_MAX = 100
RANGES = [(SEEDS[0] + at, min(GRAPHS_MAX, SEEDS[1] - at)) for at in range(0, SEEDS[1], GRAPHS_MAX)]


def run(program, *arguments, environment=ON, timeout_s=300, **jobs):
    """Runs the program as worker 0 (or chief); returns its result and what all tasks have counted, added up."""
    leader = "chief" if "chief" in jobs else "worker"
    with Cluster("grpc++", environment, **jobs) as cluster:
        others = [(job, index) for job in jobs for index in range(jobs[job]) if (job, index) != (leader, 0)]
        tasks = [cluster.start(*place) for place in others]
        for task in tasks:
            task.wait_for("READY")
        result = cluster.start(leader, 0, program, *arguments).result(timeout_s)
        counted = [result.pop("counters"), *[task.ask("counters") for task in tasks]]
    return result, {name: sum(counters.get(name, 0) for counters in counted) for name in counted[0]}


def with_and_without(program, *arguments, **jobs):
    fused, counters = run(program, *arguments, **jobs)
    plain, plain_counters = run(program, *arguments, environment=OFF, **jobs)
    assert plain_counters["graph_packs"] == plain_counters["packed_tensors"] == 0
    assert counters["graph_packs"] > 0
    assert counters["unpacked_tensors"] >= counters["graph_packed_tensors"]
    return fused, plain, counters


def compare_random_graphs(first, number, **jobs):
    fused, plain, counters = with_and_without("random_graphs.py", first, number, **jobs)
    assert fused == plain
    refused = [seed for seed, found in plain["graphs"].items() if "ERROR" in found]
    assert len(refused) <= number / 50, f"TensorFlow refuses these graphs, fused or not: {refused}"
    assert counters["graph_packs"] > number / 4
    assert counters["graph_packed_variables"] > number / 4


@pytest.mark.smoke
def test_a_few_random_graphs_of_two_tasks_compute_the_same_bits():
    compare_random_graphs(1, 8, ps=1, worker=1)


@pytest.mark.parametrize("first, number", RANGES)
def test_random_graphs_compute_the_same_bits(first, number):
    compare_random_graphs(first, number, ps=2, worker=2)


def test_sessions_that_are_extended_after_a_run_compute_the_same_bits():
    fused, plain, _ = with_and_without("extended.py", ps=1, worker=1)
    packs = fused.pop("packs")
    plain.pop("packs")
    assert fused == plain
    assert packs == sorted(set(packs)), "each extension adds packs"


@pytest.mark.smoke
def test_training_has_the_same_losses():
    fused, plain, counters = with_and_without("small_layers.py", 40, ps=2, worker=1)
    assert fused == plain
    assert fused["losses"][-1] < fused["losses"][0] / 2
    # 25 variables are read; their gradients go back, though what is fed has no known shape.
    assert counters["unpacked_tensors"] > 40 * 2 * 20
    # Weights and gradients end in products and updates. The 12 biases might be added to in place, up to what is fetched.
    assert counters["unpacked_copied_tensors"] < 40 * 15


def test_partial_runs_do_not_wait_for_what_is_fed_later():
    fused, plain, counters = with_and_without("partial_run.py", ps=1, worker=1)
    assert fused == plain
    assert counters["unpacked_tensors"] >= 3 * (8 + 3 * 6)


@pytest.mark.smoke
def test_parameter_server_strategy_reads_variables_in_packs():
    fused, plain, counters = with_and_without("strategy_many.py", 10, 30, ps=2, worker=1, chief=1)
    assert fused["found"] == plain["found"]
    assert fused["last"] == plain["last"]
    assert counters["graph_packed_variables"] >= 30


def test_each_worker_of_a_strategy_reads_variables_in_packs():
    found = []
    for environment in (ON, OFF):
        with Cluster("grpc++", environment, ps=2, worker=3, chief=1) as cluster:
            cluster.serve("ps")
            workers = cluster.serve("worker")
            result = cluster.start("chief", 0, "strategy_many.py", 5, 30).result()
            found.append([result["found"], result["last"], result["looks"]])
            for counters in [worker.ask("counters") for worker in workers]:
                if environment is ON:
                    assert counters["graph_packed_variables"] >= 30
                    assert counters["unpacked_tensors"] >= 30
                else:
                    assert counters["received_tensors"] >= 30
    assert found[0] == found[1]


@pytest.mark.parametrize("without", ["worker", "ps"])
def test_nothing_is_packed_between_a_task_and_one_that_has_it_off(without):
    with Cluster("grpc++", ps=1, worker=1) as cluster:
        server = cluster.start("ps", 0, environment=OFF if without == "ps" else ON)
        server.wait_for("READY")
        worker = cluster.start("worker", 0, "small_layers.py", 5, environment=OFF if without == "worker" else ON)
        counted = [worker.result()["counters"], server.ask("counters")]
    for counters in counted:
        assert counters["graph_packs"] == counters["packed_tensors"] == counters["unpacked_tensors"] == 0
        assert counters["received_tensors"] > 0


@pytest.mark.smoke
def test_nothing_is_packed_towards_a_task_without_the_plugin():
    with Cluster("grpc++", ON, ps=1, worker=1) as cluster:
        server = cluster.start("ps", 0, protocol="grpc", environment={"TEST_WITHOUT_PLUGIN": "1"})
        server.wait_for("READY")
        result = cluster.start("worker", 0, "small_layers.py", 5).result()
    assert len(result["losses"]) == 5
    assert result["counters"]["graph_packs"] == 0


def test_what_was_fused_is_told():
    with Cluster("grpc++", ON, ps=1, worker=1) as cluster:
        cluster.serve("ps")
        worker = cluster.start("worker", 0, "small_layers.py", 5)
        worker.result()
        ps, target = "/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0"
        worker.wait_for(f"grpc++: fused a graph: 25 tensors from {ps} to {target} in 1 pack (25 read from variables)")
        nodes = worker.wait_for("NODES ")
        assert all(f" grpcxx/{what}_" in nodes for what in ("pack_variables", "unpack")), nodes


@pytest.mark.long
def test_receives_share_requests_whatever_loops_ran_before():
    # Each has a key, which are more than are remembered.
    iterations, steps = 140_000, 20
    with Cluster("grpc++", OFF, ps=1, worker=1) as cluster:
        cluster.serve("ps")
        result = cluster.start("worker", 0, "loops.py", iterations, steps).result(300)
    assert result["fused"] > 0, result


def test_a_wish_that_is_not_known_is_an_error():
    with Cluster("grpc++", {"GRPCXX_GRAPH_FUSION": "always"}, ps=1) as cluster:
        task = cluster.start("ps", 0)
        task.process.wait(timeout=60)
        assert "GRPCXX_GRAPH_FUSION=always is not on" in task.output()


@pytest.mark.smoke
def test_damaged_packs_are_refused():
    with Cluster("grpc++", worker=1) as cluster:
        found = cluster.start("worker", 0, "packs.py", 17, 500).result()
    assert found["refused"] + found["taken"] == 500
    assert found["refused"] > 200
    assert found["counters"]["unpacked_copied_tensors"] >= 40

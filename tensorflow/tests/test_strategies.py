"""The ways TensorFlow distributes work, over protocol="grpc++"."""

import importlib.metadata
import json
import os
from pathlib import Path

import pytest

from cluster import Cluster
from test_training import check_star

pytestmark = pytest.mark.processes

HAS_ESTIMATOR = importlib.metadata.version("tensorflow").startswith("2.15.")


@pytest.mark.smoke
def test_parameter_server_strategy():
    with Cluster("grpc++", ps=2, worker=2, chief=1) as cluster:
        servers = cluster.serve("ps", "worker")
        result = cluster.start("chief", 0, "strategy_ps.py", 60).result()
        assert result["ran"] == 60
        assert result["last"] < result["first"] / 10
        counted = [server.ask("counters") for server in servers]
        assert sum(counters["received_tensors"] for counters in counted) > 60
        for counters in counted:
            assert counters["fallback_tensors_unreachable"] == counters["fallback_tensors_no_plugin"] == 0


@pytest.mark.smoke
def test_multi_worker_mirrored_strategy_ring():
    results = {}
    for protocol in ("grpc", "grpc++"):
        with Cluster(protocol, worker=2) as cluster:
            workers = [cluster.start("worker", index, "strategy_ring.py", 10) for index in range(2)]
            results[protocol] = [worker.result() for worker in workers]
    for plain, star in zip(results["grpc"], results["grpc++"]):
        assert star["losses"] == plain["losses"]
        assert star["digests"] == plain["digests"]
        assert star["counters"]["received_buffers"] > 0
        assert star["counters"]["served_buffers"] > 0
        assert star["counters"]["receives_failed"] == 0
    assert results["grpc++"][0]["digests"] == results["grpc++"][1]["digests"]


@pytest.mark.long
def test_a_variable_beyond_protobuf_s_limit_is_reduced_in_a_ring():
    """Two workers with 2.2 GiB, of which each makes some four copies."""
    size_bytes = int(os.environ.get("TEST_RING_BYTES", str(11 * (1 << 30) // 5)))
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    needed = 9 * size_bytes
    if int(meminfo["MemAvailable"].split()[0]) * 1024 < needed:
        pytest.skip(f"{needed >> 30} GiB of memory are not free")
    with Cluster("grpc++", worker=2) as cluster:
        workers = [cluster.start("worker", index, "large_ring.py", size_bytes) for index in range(2)]
        for result in [worker.result(timeout_s=500) for worker in workers]:
            assert result["ends"] == [-1.5] * 3
            assert result["sum"] == -1.5
            counters = result["counters"]
            assert counters["received_buffer_bytes"] >= size_bytes / 2
            assert not any(count for name, count in counters.items() if name.startswith("fallback_tensors")), counters


def test_connect_to_cluster():
    with Cluster("grpc++", worker=2) as cluster:
        servers = cluster.serve("worker")
        result = cluster.start_extra("chief", "connect.py").result()
        assert max(result["differences"]) < 1e-3
        assert result["text"].endswith("done")
        counted = [result["counters"], *[server.ask("counters") for server in servers]]
        assert sum(counters["received_tensors"] for counters in counted) > 0
        # 20 variables of one worker are read by the other, which sends eight tensors back.
        assert sum(counters["graph_packs"] for counters in counted) >= 2
        assert sum(counters["graph_packed_variables"] for counters in counted) >= 20
        assert sum(counters["unpacked_tensors"] for counters in counted) >= 5 * 28


@pytest.mark.smoke
def test_estimator_style_job_with_chief():
    """TF_CONFIG with a chief, as Estimator's train_and_evaluate reads it."""
    with Cluster("grpc++", ps=1, worker=1, chief=1) as cluster:
        cluster.serve("ps")
        environment = {"TEST_FROM_TF_CONFIG": "1"}
        tasks = [
            cluster.start(
                job, 0, "train.py", 40,
                environment=dict(
                    environment,
                    TF_CONFIG=json.dumps({"cluster": cluster.spec, "task": {"type": job, "index": 0}}),
                ),
            )
            for job in ("chief", "worker")
        ]  # fmt: skip
        results = [task.result() for task in tasks]
        assert max(result["applied"] for result in results) == 80
        for result in results:
            check_star(result["counters"])


@pytest.mark.smoke
@pytest.mark.skipif(not HAS_ESTIMATOR, reason="TensorFlow has Estimator up to 2.15")
def test_estimator_trains_and_evaluates(tmp_path):
    with Cluster("grpc++", ps=1, worker=1, chief=1) as cluster:

        def start(job):
            spec = {"cluster": cluster.spec, "task": {"type": job, "index": 0}}
            return cluster.start(
                job, 0, "estimator.py", tmp_path, 200, environment={"TF_CONFIG": json.dumps(spec)}
            )

        tasks = {job: start(job) for job in ("ps", "chief", "worker", "evaluator")}
        results = {job: tasks[job].result(timeout_s=300) for job in ("chief", "worker", "evaluator")}
    assert results["chief"]["step"] >= 200
    assert results["evaluator"]["loss"] < 0.5
    for job in ("chief", "worker"):
        counters = results[job]["counters"]
        assert counters["received_tensors"] > 0, (job, counters)
        assert counters["unpacked_tensors"] > 0, "eight biases are read in packs"
        assert counters["fallback_tensors_unreachable"] == counters["fallback_tensors_no_plugin"] == 0

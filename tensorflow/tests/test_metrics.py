"""What is seen from outside of a process in which TensorFlow runs."""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from cluster import Cluster
from ports import free_ports

pytestmark = pytest.mark.processes


def get(task, path):
    address = task.wait_for("grpc++ serves metrics on ").partition("http://")[2].partition("/metrics")[0]
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.smoke
def test_a_task_shows_what_engine_and_plugin_have_counted():
    with Cluster("grpc++", {"GRPCXX_METRICS_ADDRESS": "127.0.0.1:0"}, ps=1, worker=1) as cluster:
        (server,) = cluster.serve("ps")
        cluster.start("worker", 0, "train.py", 10).result()
        text = get(server, "/metrics")
        numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        counted = server.ask("counters")
        assert counted["served_tensors"] > 0
        for name in ("served_tensors", "received_tensors", "served_step_calls", "fallback_tensors_no_plugin"):
            assert int(numbers[f"grpcxx_tensorflow_{name}_total"]) == counted[name], name
        assert int(numbers["grpcxx_requests_total"]) > 0
        requests = [int(value) for name, value in numbers.items() if name.startswith("grpcxx_request_seconds_count{")]
        assert sum(requests) > 0
        assert "# TYPE grpcxx_tensorflow_receives_open gauge" in text
        assert get(server, "/healthz") == "serving\n"


def test_a_task_shows_what_it_waits_for():
    environment = {"GRPCXX_METRICS_ADDRESS": "127.0.0.1:0"}
    with Cluster("grpc++", environment, ps=1, worker=1) as cluster:
        cluster.serve("ps")
        worker = cluster.start("worker", 0, "waits.py")
        worker.wait_for("WAITS")
        end = time.monotonic() + 60
        while True:
            told = json.loads(get(worker, "/inspect"))
            waiting = [one for one in told["awaits"] if "_late;" in one["key"]]
            if waiting and waiting[0]["age_ms"] >= 100:
                break
            assert time.monotonic() < end, told
        (tensor,) = waiting
        assert tensor["peer"] == "/job:ps/replica:0/task:0"
        assert tensor["step"] != 0 and tensor["age_ms"] < 60_000
        assert told["awaits_total"] == len(told["awaits"])
        called = [one for one in told["connections"] if one["side"] == "client" and one["is_connected"]]
        assert called and called[0]["under_way"] > 0 and called[0]["medium"] in ("shm", "tcp"), told
        assert told["shards_silent"] == 0
        # What was waited for comes.
        worker.process.stdin.write("go on\n")
        worker.process.stdin.flush()
        assert worker.result()["value"] == 7.0
        assert json.loads(get(worker, "/inspect"))["awaits"] == []


@pytest.mark.smoke
def test_the_program_shows_tasks_of_tensorflow(tmp_path):
    target = Path(__file__).parents[2] / "target"
    built = [path for path in target.glob("*/grpcxx") if path.is_file() and os.access(path, os.X_OK)]
    program = max(built, key=lambda path: path.stat().st_mtime, default=None) or shutil.which("grpcxx")
    if program is None:
        pytest.skip("the program grpcxx is neither built nor installed")
    with Cluster("grpc++", {"TF_SEASTAR_ENDPOINT_MAP_PATH": str(tmp_path)}, ps=1, worker=1) as cluster:
        places = [addresses[0] for addresses in cluster.spec.values()]
        lines = [f"{grpc}=127.0.0.1:{star}\n" for grpc, star in zip(places, free_ports(2))]
        (tmp_path / ".endpoint_map").write_text("".join(lines))
        cluster.serve("ps")
        worker = cluster.start("worker", 0, "train.py", 10)
        worker.result()
        spec = ",".join(f"{job}|{addresses[0]}" for job, addresses in cluster.spec.items())
        cluster_options = ["--cluster-spec", spec, "--endpoint-map", tmp_path / ".endpoint_map", "--json"]

        def show(*command):
            command = [program, *command, *cluster_options]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

        shown = show("status")
        assert shown.returncode == 0, shown.stdout + shown.stderr
        tasks = json.loads(shown.stdout)["tasks"]
        assert [task["task"] for task in tasks] == ["ps:0", "worker:0"]
        for task in tasks:
            assert task["grpc"]["is_serving"] and task["star"]["is_serving"], task
            assert task["devices"][0]["device_type"] == "CPU", task
            assert task["version"] and task["report"] and task["calls"], "what each task tells"
        shown = show("top", "--once")
        assert shown.returncode == 0, shown.stdout + shown.stderr
        rows = json.loads(shown.stdout)
        assert [(row["task"], row["is_up"]) for row in rows] == [("ps:0", True), ("worker:0", True)]
        shown = show("inspect", "ps:0")
        assert shown.returncode == 0, shown.stdout + shown.stderr
        told = json.loads(shown.stdout)
        assert told["task"] == "ps:0" and told["connections"] and told["shards_silent"] == 0, told
        worker.kill()
        shown = show("status")
        assert shown.returncode != 0 and "not serving: worker:0\n" in shown.stderr, shown

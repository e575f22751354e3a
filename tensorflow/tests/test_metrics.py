"""The metrics page of a process in which TensorFlow runs."""

import urllib.request

import pytest

from cluster import Cluster

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

"""TLS and a token between tasks of TensorFlow, by their variables alone."""

import pytest

from certificates import Authority
from cluster import Cluster

pytestmark = pytest.mark.processes


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def train(authority, of_ps, of_worker, steps=30):
    """Trains with the certificates of these tasks; returns the tasks and what the worker has counted."""
    token = authority.folder / "token"
    token.write_text("the token of this cluster\n")
    # Memory that two tasks share is not what TLS is for.
    common = {"GRPCXX_TOKEN_FILE": str(token), "GRPCXX_SHM": "off"}
    with Cluster("grpc++", common, ps=1, worker=1) as cluster:
        server = cluster.start("ps", 0, environment=authority.sign(of_ps))
        server.wait_for("READY")
        worker = cluster.start("worker", 0, "train.py", steps, environment=authority.sign(of_worker))
        result = worker.result()
        assert result["ran"] == result["applied"] == steps
        return server, worker, result["counters"]


@pytest.mark.smoke
def test_tasks_train_over_tls_with_a_token(authority):
    server, worker, counters = train(authority, "ps/0", "worker/0")
    server.wait_for("tls=require (grpcxx://c/ps/0)")
    server.wait_for("token=set")
    assert counters["received_tensors"] > 30
    assert not any(count for name, count in counters.items() if name.startswith("fallback_tensors")), counters


@pytest.mark.parametrize(
    "of_ps, of_worker, wrong",
    [
        ("ps/1", "worker/0", "its certificate is that of grpcxx://c/ps/1, and ps/0 was called"),
        ("ps/0", "worker/1", "says that it is worker/0, and its certificate is that of grpcxx://c/worker/1"),
    ],
)
def test_nothing_goes_over_star_where_a_task_has_the_certificate_of_another_one(authority, of_ps, of_worker, wrong):
    _, worker, counters = train(authority, of_ps, of_worker)
    told = worker.wait_for("come over gRPC, because its star port")
    assert wrong in told and "GRPCXX_TLS_CERT" in told
    assert counters["received_tensors"] == 0
    assert counters["fallback_tensors_unreachable"] > 30

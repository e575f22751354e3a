"""TLS and a token between tasks of TensorFlow, by their variables alone."""

import pytest

from certificates import Authority
from cluster import Cluster

pytestmark = pytest.mark.processes


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def train(authority, of_ps, steps=30):
    """Trains with a ps that has the certificate `of_ps`; returns the tasks and what the worker tells."""
    token = authority.folder / "token"
    token.write_text("the token of this cluster\n")
    # Memory that two tasks share is not what TLS is for.
    common = {"GRPCXX_TOKEN_FILE": str(token), "GRPCXX_SHM": "off"}
    with Cluster("grpc++", common, ps=1, worker=1) as cluster:
        server = cluster.start("ps", 0, environment=authority.sign(of_ps))
        server.wait_for("READY")
        worker = cluster.start("worker", 0, "train.py", steps, environment=authority.sign("worker/0"))
        result = worker.result()
        assert result["ran"] == result["applied"] == steps
        return server, worker, result["counters"]


@pytest.mark.smoke
def test_tasks_train_over_tls_with_a_token(authority):
    server, worker, counters = train(authority, "ps/0")
    server.wait_for("tls=require (grpcxx://c/ps/0)")
    server.wait_for("token=set")
    assert counters["received_tensors"] > 30
    assert not any(count for name, count in counters.items() if name.startswith("fallback_tensors")), counters


def test_a_ps_with_the_certificate_of_another_task_is_not_asked(authority):
    _, worker, counters = train(authority, "ps/1")
    told = worker.wait_for("come over gRPC, because its star port")
    assert "its certificate is that of grpcxx://c/ps/1, and ps/0 was called" in told
    assert "GRPCXX_TLS_CERT" in told
    assert counters["received_tensors"] == 0
    assert counters["fallback_tensors_unreachable"] > 30

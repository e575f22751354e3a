"""TLS and a token between tasks of TensorFlow, by their variables alone."""

import contextlib
import os
import signal

import pytest

from certificates import Authority
from cluster import Cluster
from proxy import Proxy

pytestmark = pytest.mark.processes

SECRET = b"a value that nobody may read. "
WITHOUT_PLUGIN = {"TEST_WITHOUT_PLUGIN": "1"}


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


# Memory that two tasks share is not what TLS is for.
COMMON = {"GRPCXX_SHM": "off"}


@pytest.mark.smoke
def test_tasks_train_over_tls_with_a_token(authority):
    token = authority.folder / "token"
    token.write_text("the token of this cluster\n")
    with Cluster("grpc++", {"GRPCXX_TOKEN_FILE": str(token), **COMMON}, ps=1, worker=1) as cluster:
        server = cluster.start("ps", 0, environment=authority.sign("ps/0"))
        server.wait_for("READY")
        worker = cluster.start("worker", 0, "train.py", 30, environment=authority.sign("worker/0"))
        result = worker.result()
        assert result["ran"] == result["applied"] == 30
        server.wait_for("tls=require (grpcxx://c/ps/0)")
        server.wait_for("token=set")
        server.wait_for("which has no TLS")
    counters = result["counters"]
    assert counters["received_tensors"] > 30
    assert not any(count for name, count in counters.items() if name.startswith("fallback")), counters


def exchange(ps, worker, protocol="grpc++", heard=None):
    """How steps end between tasks with these variables, what the worker counted, and the tasks.

    `heard` gets what went over the gRPC ports.
    """
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster("grpc++", COMMON, ps=1, worker=1))
        own = {job: list(addresses) for job, addresses in cluster.spec.items()}
        proxies = {job: stack.enter_context(contextlib.closing(Proxy(own[job][0]))) for job in own}

        def start(job, *arguments, **options):
            # Each task knows its own port, and the others' by the ports that listen.
            cluster.spec = {name: own[name] if name == job else [proxies[name].address] for name in own}
            return cluster.start(job, 0, *arguments, **options)

        server = start("ps", protocol=protocol, environment=ps)
        server.wait_for("READY")
        task = start("worker", "sealed.py", environment=worker)
        result = task.result()
        assert proxies["ps"].heard()
        if heard is not None:
            heard.append(b"".join(proxy.heard() for proxy in proxies.values()))
        return result["ends"], result["counters"], server, task


def refused(ends, counters, kind, *texts):
    """Checks that no step has ended well, and that each says why."""
    for step, end in ends.items():
        assert end is not None, f"the step {step} went on"
        assert end["type"] == kind, end
        for text in (*texts, "/job:ps/replica:0/task:0", "GRPCXX_TLS_PLAIN"):
            assert text in end["text"], end
    assert counters["received_tensors"] == 0
    assert not any(count for name, count in counters.items() if name.startswith("fallback")), counters
    assert counters["refused_plain"] > 0


def test_values_of_steps_are_not_seen_on_the_grpc_ports(authority):
    heard = []
    ends, counters, *_ = exchange(authority.sign("ps/0"), authority.sign("worker/0"), heard=heard)
    assert not any(ends.values()), ends
    assert counters["received_tensors"] > 0
    assert SECRET not in heard[0]
    # The test can hear them.
    heard = []
    exchange(WITHOUT_PLUGIN, {}, "grpc", heard)
    assert SECRET in heard[0]


@pytest.mark.parametrize(
    "of_ps, of_worker, wrong",
    [
        ("ps/1", "worker/0", "its certificate is that of grpcxx://c/ps/1, and ps/0 was called"),
        ("ps/0", "worker/1", "says that it is worker/0, and its certificate is that of grpcxx://c/worker/1"),
    ],
)
def test_steps_fail_where_a_task_has_the_certificate_of_another_one(authority, of_ps, of_worker, wrong):
    heard = []
    ends, counters, _, worker = exchange(authority.sign(of_ps), authority.sign(of_worker), heard=heard)
    refused(ends, counters, "UnauthenticatedError", wrong, "GRPCXX_TLS_CERT", "GRPCXX_TLS=require")
    assert SECRET not in heard[0]
    lines = [line for line in worker.lines if not line.startswith("RESULT")]
    told = [line for line in lines if "route.cc" in line and "is not called over gRPC" in line]
    assert len(told) == 1 and wrong in told[0], told


@pytest.mark.parametrize("mode", ["dial", "require"])
def test_steps_fail_where_the_other_end_has_no_tls(authority, mode):
    ends, counters, *_ = exchange({}, dict(authority.sign("worker/0"), GRPCXX_TLS=mode))
    refused(ends, counters, "UnavailableError", "its star port", f"GRPCXX_TLS={mode}")


def test_steps_fail_where_the_other_end_has_no_plugin(authority):
    ends, counters, *_ = exchange(WITHOUT_PLUGIN, authority.sign("worker/0"), "grpc")
    refused(ends, counters, "FailedPreconditionError", 'it was not started with protocol="grpc++"')


def test_a_task_that_requires_tls_hands_nothing_out_over_grpc(authority):
    ends, counters, server, _ = exchange(authority.sign("ps/0"), {})
    # The ps refuses what it is asked for, and cannot get what it was sent: whichever is heard of first.
    for end in ends.values():
        assert end and end["type"] in ("FailedPreconditionError", "UnavailableError"), end
        assert "/job:ps/replica:0/task:0" in end["text"] and "GRPCXX_TLS=require" in end["text"], end
    assert counters["received_tensors"] == 0
    server.wait_for("hands nothing out over gRPC")


@pytest.mark.parametrize("plain", ["127.0.0.0/8", "10.0.0.1"])
def test_named_addresses_are_called_over_grpc(authority, plain):
    variables = dict(authority.sign("worker/0"), GRPCXX_TLS_PLAIN=plain)
    ends, counters, *_ = exchange(WITHOUT_PLUGIN, variables, "grpc")
    if plain == "10.0.0.1":
        return refused(ends, counters, "FailedPreconditionError", "to 127.0.0.1;")
    assert not any(ends.values()), ends
    assert counters["fallback_tensors_no_plugin"] > 0
    return None


def test_strategies_train_over_tls(authority):
    with Cluster("grpc++", COMMON, worker=2) as cluster:
        variables = [authority.sign(f"worker/{index}") for index in range(2)]
        workers = [cluster.start("worker", at, "strategy_ring.py", 10, environment=variables[at]) for at in range(2)]
        counted = [worker.result()["counters"] for worker in workers]
    with Cluster("grpc++", COMMON, ps=1, worker=1, chief=1) as cluster:
        servers = [cluster.start(job, 0, environment=authority.sign(f"{job}/0")) for job in ("ps", "worker")]
        for server in servers:
            server.wait_for("READY")
        chief = cluster.start("chief", 0, "strategy_ps.py", 40, environment=authority.sign("chief/0"))
        assert chief.result()["ran"] == 40
        counted += [server.ask("counters") for server in servers]
    for counters in counted:
        assert counters["received_tensors"] + counters["received_buffers"] > 0
        assert counters["refused_plain"] == counters["fallback_tensors_unreachable"] == 0


def renew(authority, *tasks):
    """Replaces the authority and the certificates of these tasks, which see all of it at once, and take them."""
    for task in tasks:
        os.kill(task.process.pid, signal.SIGSTOP)
    authority.renew()
    for task in tasks:
        authority.sign(task.name.replace(" ", "/"))
    seen = [len(task.lines) for task in tasks]
    for task in tasks:
        os.kill(task.process.pid, signal.SIGCONT)
    for task, begin in zip(tasks, seen):
        task.wait_for("new certificates are in use", begin=begin)


def test_certificates_are_renewed_while_a_job_trains(authority):
    # The engine tells there that it has taken new certificates.
    environment = {"TEST_PAUSE_S": "0.02", "TF_CPP_VMODULE": "engine=1", **COMMON}
    with Cluster("grpc++", environment, ps=1, worker=2) as cluster:
        server = cluster.start("ps", 0, environment=authority.sign("ps/0"))
        server.wait_for("READY")
        # A session waits for all tasks that it knows, so the first worker does not know the second.
        tasks = cluster.spec
        cluster.spec = {**tasks, "worker": tasks["worker"][:1]}
        worker = cluster.start("worker", 0, "train.py", 1_000_000, environment=authority.sign("worker/0"))
        cluster.spec = tasks
        worker.wait_for("STEP 20 ")
        former = authority.sign("worker/1", "former")
        renew(authority, server, worker)
        # Who has a certificate of the former authority is not let in any more.
        stranger = cluster.start("worker", 1, "sealed.py", environment=former).result()
        refused(stranger["ends"], stranger["counters"], "UnauthenticatedError", "certificate")
        cluster.tasks["worker", 1].kill()
        # Who has one of the new authority trains, beside those that were there.
        joined = cluster.start("worker", 1, "train.py", 30, environment=authority.sign("worker/1")).result()
        assert joined["ran"] == 30
        assert joined["counters"]["received_tensors"] > 30
        assert not any(count for name, count in joined["counters"].items() if name.startswith("fallback")), joined
        worker.wait_for("STEP ", begin=len(worker.lines))

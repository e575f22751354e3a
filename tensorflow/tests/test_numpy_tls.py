"""TLS between a client and a server in Python: who is called, by the names in certificates."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import grpcxx
from certificates import Authority
from ports import free_ports
from grpcxx import Code

# Processes that know nothing of TLS: their variables do.
SERVER = """
import sys, grpcxx
with grpcxx.Server() as server:
    server.register(lambda: 7, name="seven")
    print(server.address, flush=True)
    sys.stdin.read()
"""
CLIENT = """
import sys, grpcxx
address, job, index = sys.argv[1:]
with grpcxx.Client(address, task=(job, int(index))) as client:
    try:
        print(client.call("seven", timeout=20))
    except grpcxx.Error as error:
        print(error.code.name, error)
"""


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def refused(call):
    """The text of the error that a call ends with at one of whom it is not believed who it is."""
    with pytest.raises(grpcxx.Error) as refusal:
        call()
    assert refusal.value.code == Code.UNAUTHENTICATED, refusal.value
    return str(refusal.value)


def test_a_server_that_proves_to_be_another_task_is_not_called(authority):
    with grpcxx.Server(settings=authority.sign("ps/0")) as server:
        server.register(lambda: 7, name="seven")
        worker = authority.sign("worker/0")
        with grpcxx.Client(server.address, settings=worker, task=("ps", 1)) as client:
            text = refused(lambda: client.call("seven", timeout=20))
            assert "grpcxx://c/ps/0" in text and "ps/1 was called" in text and "GRPCXX_TLS_CERT" in text
        with grpcxx.Client(server.address, settings=worker, task=("ps", 0)) as client:
            assert client.call("seven", timeout=20) == 7


def test_a_task_calls_others_by_their_names_too(authority):
    worker = authority.sign("worker/0")
    with grpcxx.Server(settings=authority.sign("ps/0")) as server:
        server.register(lambda: 7, name="seven")
        with grpcxx.Server(job="worker", settings=worker) as task:
            other = task.connect(server.address, task=("ps", 1))
            assert "ps/1 was called" in refused(lambda: other.call("seven", timeout=20))
            assert task.connect(server.address, task=("ps", 0)).call("seven", timeout=20) == 7


def test_a_task_with_the_certificate_of_another_one_is_refused(authority):
    worker = authority.sign("worker/0")
    with grpcxx.Server(settings=authority.sign("ps/0")) as server:
        server.register(lambda: 7, name="seven")
        with grpcxx.Server(job="worker", index=3, settings=worker) as task:
            text = refused(lambda: task.connect(server.address).call("seven", timeout=20))
            assert "says that it is worker/3" in text and "grpcxx://c/worker/0" in text


def test_ranks_of_a_group_meet_with_the_certificates_of_their_tasks(authority):
    rendezvous = f"127.0.0.1:{free_ports(1)[0]}"
    variables = [authority.sign(f"worker/{rank}") for rank in range(2)]

    def run(rank):
        with grpcxx.Group(rank, 2, rendezvous, settings=variables[rank], join_timeout=20) as group:
            return group.all_reduce(np.ones(3, np.float32)).tolist()

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(run, range(2))) == [[2.0] * 3] * 2


def test_processes_with_certificates_of_one_cluster_need_variables_alone(authority):
    of_ps, of_worker = authority.sign("ps/0"), authority.sign("worker/0")
    of_another_cluster = authority.sign("grpcxx://d/worker/0", "stranger")

    def call(variables, *task):
        command = [sys.executable, "-c", CLIENT, address, *task]
        run = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, **of_ps},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        address = server.stdout.readline().strip()
        assert call(of_worker, "ps", "0") == "7"
        wrong = call(of_worker, "worker", "0")
        assert wrong.startswith("UNAUTHENTICATED") and "worker/0 was called" in wrong and "grpcxx://c/ps/0" in wrong
        stranger = call(of_another_cluster, "ps", "0")
        assert stranger.startswith("UNAUTHENTICATED") and "certificate" in stranger
        assert not call({"GRPCXX_TLS": "off"}, "ps", "0").startswith("7")
        server.stdin.close()


def test_renewed_certificates_are_used_without_a_restart(authority):
    with grpcxx.Server(settings=authority.sign("ps/0")) as server:
        server.register(lambda: 7, name="seven")
        before = grpcxx.Client(server.address, settings=authority.sign("worker/0"), task=("ps", 0))
        with before:
            assert before.call("seven", timeout=20) == 7
            authority.renew()
            authority.sign("ps/0")
            # Who comes with a certificate of the new authority is let in once the server has looked at its files.
            of_other = authority.sign("worker/1")
            end = time.monotonic() + 30
            while True:
                with grpcxx.Client(server.address, settings=of_other, task=("ps", 0)) as other:
                    try:
                        assert other.call("seven", timeout=20) == 7
                        break
                    except grpcxx.Error as error:
                        assert error.code == Code.UNAUTHENTICATED, error
                        assert time.monotonic() < end, error
                time.sleep(0.2)
            # The connection that was there has stayed.
            assert before.call("seven", timeout=20) == 7

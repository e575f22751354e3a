"""Programs with a proxy for the web in their environment: calls of grpcxx do without it, and the doctor tells of it."""

import contextlib
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import grpcxx

NAMES = ["http_proxy", "https_proxy", "grpc_proxy", "all_proxy"]
PULL = """
import sys, grpcxx
with grpcxx.Client(sys.argv[1]) as client:
    print(client.pull("w").sum())
"""


@pytest.fixture
def proxy(tmp_path):
    """The URL of a proxy, and a function that counts the connections through it."""
    try:
        importlib.metadata.version("proxy.py")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("pip install proxy.py")
    port_file, log_file = tmp_path / "port", tmp_path / "log"
    log_file.touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", "--hostname", "127.0.0.1", "--port", "0", "--num-workers", "1"]
        + ["--num-acceptors", "1", "--port-file", port_file, "--log-file", log_file],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text().strip()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        port = int(port_file.read_text().split()[0])
        yield f"http://127.0.0.1:{port}", lambda: log_file.read_text().count("CONNECT ")
    finally:
        process.terminate()
        process.wait(30)


def connect(proxy, address):
    """What the proxy says to a request for a tunnel."""
    host, _, port = proxy.removeprefix("http://").rpartition(":")
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=30)) as tunnel:
        tunnel.sendall(f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        return tunnel.recv(100).decode()


def run(proxy, *arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment.update({name: proxy for name in NAMES}, GRPCXX_TENSORFLOW="none", **variables)
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_calls_do_without_a_proxy(proxy):
    url, count = proxy
    with grpcxx.Server("127.0.0.1:0") as server:
        server.push("w", np.ones(3))
        pulled = run(url, "-c", PULL, server.address)
        assert pulled.stdout.strip() == "3.0", pulled.stderr
        assert count() == 0
        # It would have let them through, and tells of it when a tunnel ends.
        assert " 200 " in connect(url, server.address)
        deadline = time.monotonic() + 30
        while count() == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_doctor_names_the_tasks_that_a_proxy_hides(proxy):
    url, count = proxy
    cluster = {"cluster": {"ps": ["127.0.0.1:2222"]}, "task": {"type": "ps", "index": 0}}
    told = run(url, "-m", "grpcxx", "doctor", TF_CONFIG=json.dumps(cluster))
    assert "export no_proxy=127.0.0.1" in told.stdout, told.stdout + told.stderr
    assert count() == 0

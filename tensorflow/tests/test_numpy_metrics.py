"""The metrics page of servers in Python."""

import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

import grpcxx
from ports import free_ports


def get(address, path="/metrics"):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return answer.read().decode()


def test_a_server_shows_what_it_has_counted():
    with grpcxx.Server(metrics="127.0.0.1:0") as server:
        server.register(lambda x: x, name="same")
        with grpcxx.Client(server.address) as client:
            client.call("same", {"x": np.arange(3)})
        text = get(server.metrics_address)
        assert f"\ngrpcxx_requests_total {server.counters()['requests']}\n" in text
        assert 'grpcxx_request_seconds_count{method="' in text
        assert get(server.metrics_address, "/healthz") == "serving\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(server.metrics_address, "/")
    with pytest.raises(OSError, match="refused"):
        get(server.metrics_address)


def test_a_server_tells_its_numbers_to_peers_that_ask():
    with grpcxx.Server() as server, grpcxx.Client(server.address) as client:
        text = client.call("grpcxx.server.metrics", fetch="text").item().decode()
        assert "\ngrpcxx_shards_silent 0\n" in text, "what `grpcxx top` shows"


def test_a_server_whose_functions_block_tells_what_it_does():
    is_over = threading.Event()
    with grpcxx.Server() as server, grpcxx.Client(server.address) as client:
        server.register(lambda: is_over.wait(60), name="waits")
        calls = [client.call_async("waits", fetch=[]) for _ in range(64)]
        try:
            for what, fetch in (("metrics", "text"), ("inspect", "json"), ("info", "version")):
                assert client.call(f"grpcxx.server.{what}", fetch=fetch, timeout=20).item()
            assert list(client.call("grpcxx.server.latencies", fetch="side", timeout=20))
            assert not len(client.call("grpcxx.store.list", fetch="names", timeout=20))
            client.push({"x": np.ones(3)}, timeout=20)
        finally:
            is_over.set()
        for call in calls:
            call.result(timeout=60)


def test_without_an_address_there_is_no_page():
    with grpcxx.Server() as server:
        assert server.metrics_address is None


def test_an_address_that_is_taken_is_an_error_that_says_what_to_do():
    (port,) = free_ports(1)
    with grpcxx.Server(f"127.0.0.1:{port}"):
        with pytest.raises(grpcxx.Error, match="GRPCXX_METRICS_ADDRESS"):
            grpcxx.Server(metrics=f"127.0.0.1:{port}")


def test_the_variable_is_enough_and_the_first_server_of_a_process_has_the_page():
    (port,) = free_ports(1)
    program = """
import urllib.request, grpcxx
client = grpcxx.Client("127.0.0.1:1")
with grpcxx.Server() as first, grpcxx.Server() as second:
    print(first.metrics_address, second.metrics_address)
    print(urllib.request.urlopen(f"http://{first.metrics_address}/healthz", timeout=30).read())
with grpcxx.Server() as third:
    print(third.metrics_address)
"""
    variables = dict(os.environ, GRPCXX_METRICS_ADDRESS=f"127.0.0.1:{port}")
    ran = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=60)
    expected = f"127.0.0.1:{port} None\nb'serving\\n'\n127.0.0.1:{port}\n"
    assert (ran.returncode, ran.stdout) == (0, expected), ran.stderr

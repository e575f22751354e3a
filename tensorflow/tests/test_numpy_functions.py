"""Functions of a server in Python: what they get and return, what they may do, and how they end."""

import os
import subprocess
import sys

import numpy as np
import pytest

import grpcxx
from grpcxx import Code, Reason

MEGABYTE = 1 << 20


def test_a_function_gets_arrays_and_returns_arrays(server, client):
    @server.register
    def scale(values, factor):
        return {"scaled": values * factor, "sum": values.sum()}

    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    results = client.call("scale", {"values": values, "factor": np.float32(2)}, ["scaled", "sum"])
    np.testing.assert_array_equal(results["scaled"], values * 2)
    assert results["sum"].shape == () and results["sum"] == 15
    np.testing.assert_array_equal(client.call("scale", {"values": values, "factor": 3}, "scaled"), values * 3)


def test_a_bare_value_is_the_result(server, client):
    server.register(lambda x: x + 1, name="next")
    assert client.call("next", {"x": 41}) == 42


def test_a_function_may_return_nothing(server, client):
    called = []
    server.register(lambda: called.append(1), name="note")
    assert client.call("note", fetch=[]) == {}
    assert called == [1]


def test_what_a_function_raises_comes_as_an_error(server, client):
    def refuse():
        raise grpcxx.Error(Code.PERMISSION_DENIED, "not today")

    def stumble():
        raise ValueError("a wrong value")

    server.register(refuse)
    server.register(stumble)
    with pytest.raises(grpcxx.Error, match="PERMISSION_DENIED: not today") as caught:
        client.call("refuse")
    assert caught.value.code is Code.PERMISSION_DENIED
    assert caught.value.reason is Reason.PEER
    with pytest.raises(grpcxx.Error, match="UNKNOWN: ValueError: a wrong value"):
        client.call("stumble")


def test_the_log_shows_the_begin_of_what_a_function_raises(server, client, caplog):
    def fails():
        raise ValueError("wrong " * 100_000)

    server.register(fails)
    with pytest.raises(grpcxx.Error, match="ValueError: wrong"):
        client.call("fails")
    assert "a registered function failed: ValueError of 600000 characters: wrong" in caplog.text
    assert len(caplog.text) < 10_000


def test_the_log_names_an_exception_without_words(server, client, caplog):
    class Mute(Exception):
        def __str__(self):
            raise ValueError("no words")

    def fails():
        raise Mute

    server.register(fails)
    with pytest.raises(grpcxx.Error, match="Mute"):
        client.call("fails")
    assert "a registered function failed" in caplog.text and "Mute" in caplog.text


def test_wrong_names_are_told(server, client):
    server.register(lambda x: x, name="same")
    with pytest.raises(grpcxx.Error, match="no function") as caught:
        client.call("sane", {"x": 1})
    assert caught.value.code is Code.NOT_FOUND
    with pytest.raises(grpcxx.Error, match="missing a required argument: 'x'") as caught:
        client.call("same", {"y": 1})
    assert caught.value.code is Code.INVALID_ARGUMENT
    with pytest.raises(grpcxx.Error, match="returns result, and not other"):
        client.call("same", {"x": 1}, "other")


def test_feeds_of_a_function_may_be_kept(server, client):
    kept = []
    server.register(lambda x: kept.append(x), name="keep")
    client.call("keep", {"x": np.arange(MEGABYTE)}, [])
    client.call("keep", {"x": np.arange(MEGABYTE) * 2}, [])
    np.testing.assert_array_equal(kept[0] * 2, kept[1])


def test_the_log_names_a_short_function_that_holds_its_shard():
    program = """
import logging
import time
import grpcxx

logging.basicConfig()
grpcxx.log_to(logging.getLogger())
with grpcxx.Server() as server, grpcxx.Client(server.address) as client:
    @server.register(short=True)
    def dozes():
        time.sleep(0.2)

    client.call("dozes", fetch=[])
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "held its shard" in finished.stderr and "dozes" in finished.stderr, finished.stderr


def test_a_program_ends_after_its_functions():
    program = """
import grpcxx, threading, time
server = grpcxx.Server()
begun = threading.Event()
def work():
    begun.set()
    time.sleep(0.5)
    print("worked", flush=True)
server.register(work)
client = grpcxx.Client(server.address)
client.call_async("work", fetch=[])
begun.wait()
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stdout) == (0, "worked\n"), finished.stderr


def test_a_function_may_close_its_server(server, client):
    server.register(lambda: server.close(grace=0), name="stop")
    with pytest.raises(grpcxx.Unavailable):
        client.call("stop", fetch=[])
    assert server.wait(20)


@pytest.mark.parametrize("waits", ["for the call", "for its future"])
def test_functions_wait_for_functions_of_their_own_server(server, client, waits):
    own = grpcxx.Client(server.address)

    @server.register
    def deeper(depth):
        if not depth:
            return 0
        feeds = {"depth": depth - 1}
        return 1 + (own.call("deeper", feeds) if waits == "for the call" else own.call_async("deeper", feeds).result())

    # More of them than the server has threads, and each waits for three more.
    calls = [client.call_async("deeper", {"depth": 3}, timeout=60) for _ in range(4 * os.cpu_count())]
    assert [call.result() for call in calls] == [3] * len(calls)
    own.close()

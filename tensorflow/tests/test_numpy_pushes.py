"""Pushes and pulls that take several calls."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import grpcxx

TINY = 140_000

# Arrays of more than a GiB, at both ends.
has_memory = pytest.mark.skipif(
    os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") < 8 << 30, reason="needs a machine with 8 GiB of memory"
)


def staged(server):
    """Tensors and bytes that are staged, as the metrics tell."""
    from urllib.request import urlopen

    with urlopen(f"http://{server.metrics_address}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    value = {name: int(count) for name, count in (line.split() for line in lines if line.startswith("grpcxx_staged_"))}
    return value["grpcxx_staged_tensors"], value["grpcxx_staged_bytes"]


def await_staged(server, wanted):
    end = time.monotonic() + 30
    while not wanted(staged(server)[0]):
        assert time.monotonic() < end, staged(server)
        time.sleep(0.02)


def tiny(value):
    return {f"w{index}": np.int32(value) for index in range(TINY)}


def test_more_arrays_than_a_call_has_are_pushed_and_pulled(server, client):
    client.push(tiny(7))
    assert len(server.stored()) == TINY
    assert staged(server) == (0, 0)
    names = [f"w{index}" for index in range(TINY)]
    pulled = client.pull(names)
    assert list(pulled) == names and all(array == 7 for array in pulled.values())
    assert len(client.pull_async(set(names)).result(120)) == TINY
    client.push_async(tiny(8)).result(120)
    place = np.zeros((), np.int32)
    assert client.pull(names, out={"w139999": place})["w139999"] is place and place == 8
    with pytest.raises(grpcxx.Error) as missing:
        client.pull([*names[1:], "absent"])
    assert missing.value.code == grpcxx.Code.NOT_FOUND


def test_a_large_push_that_fails_changes_nothing(server, client):
    client.push("w0", np.int32(1))
    with pytest.raises(grpcxx.Error, match="name"):
        client.push({**tiny(2), "": np.int32(2)})
    assert len(server.stored()) == 1 and client.pull("w0") == 1
    await_staged(server, lambda count: count == 0)
    with pytest.raises(grpcxx.DeadlineExceeded):
        client.push(tiny(2), timeout=0.01)
    assert len(server.stored()) == 1 and client.pull("w0") == 1
    await_staged(server, lambda count: count == 0)


def hold(server):
    """Lets the last call of each large push wait for ever."""
    reached, go_on = threading.Event(), threading.Event()

    def commit():
        reached.set()
        go_on.wait(60)
        return {}

    server.register(commit, name="grpcxx.store.commit")
    return reached, go_on


def test_a_client_that_is_killed_in_the_middle_leaves_nothing(server, client):
    client.push("w0", np.int32(1))
    reached, go_on = hold(server)
    program = f"""
import grpcxx, numpy as np
grpcxx.Client({server.address!r}).push({{f"w{{index}}": np.int32(2) for index in range({TINY})}})
"""
    pushing = subprocess.Popen([sys.executable, "-c", program])
    assert reached.wait(60)
    assert staged(server) == (TINY, 4 * TINY)
    assert len(server.stored()) == 1
    pushing.send_signal(signal.SIGKILL)
    pushing.wait(10)
    await_staged(server, lambda count: count == 0)
    go_on.set()
    assert len(server.stored()) == 1 and client.pull("w0") == 1


def test_a_large_push_can_be_withdrawn(server, client):
    reached, go_on = hold(server)
    pushing = client.push_async(tiny(1))
    assert reached.wait(60)
    assert pushing.cancel()
    await_staged(server, lambda count: count == 0)
    go_on.set()
    assert not server.stored()


def make_older(server):
    """Lets the server stage nothing, as one of a version before."""

    def stage():
        raise grpcxx.Error(grpcxx.Code.NOT_FOUND, "no function is registered here")

    server.register(stage, name="grpcxx.store.stage")


def test_an_older_server_gets_one_call_as_before(server, client):
    make_older(server)
    with pytest.raises(grpcxx.Error) as refused:
        client.push(tiny(1))
    assert refused.value.code == grpcxx.Code.RESOURCE_EXHAUSTED


@has_memory
def test_an_older_server_gets_a_gibibyte_in_one_call_as_before(server, client):
    make_older(server)
    big = np.zeros(600 << 20, np.uint8)
    client.push({"a": big, "b": big[1:]})
    assert set(server.stored()) == {"a", "b"}


@has_memory
def test_several_arrays_of_more_than_a_gibibyte_are_staged(server, client):
    reached, go_on = hold(server)
    big = np.zeros(600 << 20, np.uint8)
    pushing = client.push_async({"a": big, "b": big[1:]})
    assert reached.wait(60)
    assert staged(server) == (2, 2 * len(big) - 1) and not server.stored()
    go_on.set()
    pushing.result(60)


def test_a_server_sees_all_of_a_push_or_nothing():
    names = [f"w{at}" for at in range(100)]
    is_over = threading.Event()
    with grpcxx.Server() as server, grpcxx.Client(server.address) as client:

        def push():
            number = 0
            while not is_over.is_set():
                client.push({name: np.full(10, number) for name in names})
                number += 1

        client.push({name: np.full(10, 0) for name in names})
        pusher = threading.Thread(target=push)
        pusher.start()
        try:
            for _ in range(400):
                numbers = {array[0] for array in server.pull(names).values()}
                assert len(numbers) == 1
        finally:
            is_over.set()
            pusher.join()

"""Arrays of calls that are withdrawn, fail or overlap: whose they are, and from when on."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import grpcxx
from grpcxx import Code
from ports import free_port

SERVES = """
import grpcxx, sys
with grpcxx.Server() as server:
    server.register(lambda x: x, name="same")
    print(server.address, flush=True)
    sys.stdin.readline()
"""
ELEMENTS = 1_000_000


@pytest.fixture
def peer():
    process = subprocess.Popen(
        [sys.executable, "-c", SERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.address = process.stdout.readline().strip()
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()


@pytest.fixture(params=["shm", "tcp"])
def client(peer, request):
    settings = {} if request.param == "shm" else {"GRPCXX_SHM": "off"}
    with grpcxx.Client(peer.address, timeout=60, settings=settings) as client:
        client.push("a", np.ones(ELEMENTS, np.float32))
        client.pull("a")
        yield client


def test_nothing_writes_into_the_memory_of_a_pull_that_was_withdrawn(client):
    out = np.zeros(ELEMENTS, np.float32)
    for attempt in range(60):
        future = client.pull_async("a", out=out)
        time.sleep(attempt * 2e-5)
        if future.cancel():
            out[:] = 0
            time.sleep(0.003)
            assert not out.any(), f"attempt {attempt}"
        else:
            future.result()


def test_nothing_writes_into_the_memory_of_a_pull_that_its_peer_answers_too_late(peer, client):
    out = np.zeros(ELEMENTS, np.float32)
    stop(peer)
    future = client.pull_async("a", out=out)
    threading.Timer(0.1, peer.send_signal, [signal.SIGCONT]).start()
    assert future.cancel()
    # Behind the answer that came too late.
    assert client.pull("a").all()
    assert not out.any()


def test_a_push_that_was_withdrawn_stores_what_was_pushed_or_nothing(client):
    for attempt in range(60):
        client.push("x", np.full(ELEMENTS, 1, np.float32))
        array = np.full(ELEMENTS, 2, np.float32)
        future = client.push_async("x", array)
        time.sleep(attempt * 5e-5)
        if future.cancel():
            array[:] = 9
            time.sleep(0.003)
        else:
            future.result()
        stored = client.pull("x")
        assert stored.min() == stored.max() and stored[0] in (1, 2), f"attempt {attempt}"


def stop(process):
    process.send_signal(signal.SIGSTOP)
    while pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


@pytest.mark.parametrize("is_large", [False, True])
def test_a_call_to_a_peer_that_stands_still_ends(peer, client, is_large):
    array = np.ones(8 * ELEMENTS if is_large else 4096, np.float32)
    client.push("x", array)
    stop(peer)
    begin = time.monotonic()
    with pytest.raises(grpcxx.Error) as caught:
        client.push("x", array, timeout=0.5)
    assert caught.value.code in (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE)
    future = client.push_async("x", array)
    future.cancel()
    assert future.cancelled()
    # Two seconds for a call that fails, and some more for one that is withdrawn.
    assert time.monotonic() - begin < 40
    peer.send_signal(signal.SIGCONT)
    client.push("x", array)
    assert (client.pull("x") == array).all()


def test_an_awaited_call_can_be_withdrawn(client):
    async def withdraw():
        waiting = asyncio.wrap_future(client.recv_async("never"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting, 0.05)

    asyncio.run(withdraw())
    client.push("x", np.ones(2))


def test_calls_that_fail_together_take_no_thread_each():
    with grpcxx.Client(f"127.0.0.1:{free_port()}", timeout=0.2, settings={}) as client:
        before = len(os.listdir("/proc/self/task"))
        futures = [client.push_async("x", np.ones(4096)) for _ in range(200)]
        for future in futures:
            with pytest.raises(grpcxx.Error):
                future.result(60)
        assert len(os.listdir("/proc/self/task")) < before + 10


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_would_end_its_thread_ends_no_later_future(server, caplog, end):
    def ends(_):
        raise end

    first = server.recv_async("first")
    first.add_done_callback(ends)
    server.send("first", np.ones(2))
    np.testing.assert_array_equal(first.result(20), np.ones(2))
    second = server.recv_async("second")
    server.send("second", np.zeros(2))
    np.testing.assert_array_equal(second.result(20), np.zeros(2))
    assert "a callback of a future raised" in caplog.text


def test_arrays_for_several_names_may_not_share_memory(client):
    client.push({"b": np.ones(1000), "c": np.zeros(1000)})
    memory = np.zeros(1500)
    with pytest.raises(grpcxx.Error, match="same memory for b and c"):
        client.pull(["b", "c"], out={"b": memory[:1000], "c": memory[500:]})
    pulled = client.pull(["b", "c"], out={"b": memory[:1000], "c": np.empty(1000)})
    assert pulled["b"].all() and not pulled["c"].any()


@pytest.mark.parametrize("value", [b"\x08\x01\x10\0", "q\0", [b"x\0\0", b"y"], ("a\0",), [["a\0"], ["b"]]])
def test_strings_keep_their_last_nuls(client, value):
    client.push("s", value)
    expected = np.vectorize(lambda element: element.encode() if isinstance(element, str) else element, otypes="O")
    assert client.pull("s").tolist() == expected(np.array(value, object)).tolist()


def test_texts_without_an_encoding_are_refused_by_name(client):
    for call in (lambda: client.push("x", "\ud800"), lambda: client.push("\ud800", 1), lambda: client.pull("\ud800")):
        with pytest.raises(grpcxx.Error) as caught:
            call()
        assert caught.value.code is Code.INVALID_ARGUMENT


def test_what_a_task_gives_itself_is_its_own():
    with grpcxx.Server() as server:
        kept = []
        server.register(lambda x: kept.append(x) or {"n": len(kept)}, name="keep")
        own = server.connect(server.address)
        array = np.ones(5000)
        server.send("k", array)
        received = server.recv("k", timeout=30)
        own.push("p", array)
        own.call("keep", {"x": array}, ["n"])
        array[:] = 7
        assert received[0] == 1 and own.pull("p")[0] == 1 and kept[0][0] == 1


def test_an_operation_of_a_group_is_not_withdrawn():
    with grpcxx.Group(0, 1, "127.0.0.1:0") as group:
        future = group.all_reduce(np.ones(100_000), async_=True)
        if not future.done():
            assert not future.cancel()
        assert future.result(60)[0] == 1

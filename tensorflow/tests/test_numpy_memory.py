"""Whose memory arrays lie in that come from another process of this host, and functions that run where calls arrive."""

import gc
import subprocess
import sys

import numpy as np
import pytest

import grpcxx
from grpcxx import Code

MEGABYTE = 1 << 20

SERVES = """
import grpcxx, numpy as np, sys
with grpcxx.Server() as server:
    server.push("shown", np.arange(1 << 20), copy=True)
    server.push("large", np.arange(1 << 20))
    server.register(lambda x: x * 2, name="double", short=True)
    print(server.address, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def address():
    process = subprocess.Popen(
        [sys.executable, "-c", SERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process.stdout.readline().strip()
    process.stdin.close()
    assert process.wait(30) == 0


@pytest.fixture
def client(address):
    with grpcxx.Client(address, timeout=30, settings={}) as client:
        # The connection goes on in shared memory soon after the first call.
        for _ in range(100):
            client.stored()
        yield client


def copied_bytes(code):
    before = grpcxx.memory_counters()["copied_bytes"]
    result = code()
    return result, grpcxx.memory_counters()["copied_bytes"] - before


def test_a_copy_in_the_store_is_shown_and_not_copied(client):
    array, copied = copied_bytes(lambda: client.pull("shown", copy=False))
    assert copied == 0
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, np.arange(MEGABYTE))
    again = client.pull("shown", copy=False)
    assert again.__array_interface__["data"] == array.__array_interface__["data"]


def test_what_is_shown_can_be_written_if_it_is_pulled_as_an_array_of_its_own(client):
    array = client.pull("shown")
    array += 1
    assert array[0] == 1 and client.pull("shown")[0] == 0


@pytest.mark.parametrize("name", ["shown", "large"])
def test_large_arrays_land_in_memory_that_is_theirs_alone(client, name):
    array, copied = copied_bytes(lambda: client.pull(name))
    assert copied == 0
    other = client.pull(name)
    array[:] = 0
    np.testing.assert_array_equal(other, np.arange(MEGABYTE))


def test_memory_of_an_array_that_is_gone_serves_the_next_one(client):
    array = client.pull("large")
    place = array.__array_interface__["data"]
    part = array[10:20]
    del array
    gc.collect()
    other = client.pull("large")
    assert other.__array_interface__["data"] != place, "a part of the first array is in use"
    np.testing.assert_array_equal(part, np.arange(10, 20))
    del part
    gc.collect()
    assert client.pull("large").__array_interface__["data"] == place


def test_many_arrays_come_together(client):
    arrays = {f"x{place}": np.full(place, place) for place in range(100)}
    client.push(arrays)
    pulled = client.pull(list(arrays))
    assert list(pulled) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(pulled[name], array)


def test_a_short_function_answers_where_the_call_arrives(client):
    np.testing.assert_array_equal(client.call("double", {"x": np.arange(5)}), np.arange(5) * 2)


def test_a_short_function_may_not_wait():
    with grpcxx.Server() as server, grpcxx.Client(server.address, timeout=20) as client:
        server.register(lambda: client.stored(), name="wait", short=True)
        server.register(lambda: server.close(), name="close", short=True)
        for name in ("wait", "close"):
            with pytest.raises(grpcxx.Error, match="must not wait") as caught:
                client.call(name)
            assert caught.value.code is Code.FAILED_PRECONDITION


COUNTS_STATES = """
import ctypes, grpcxx, numpy as np, time
api = ctypes.pythonapi
for name, argument in (("PyInterpreterState_Get", []), ("PyInterpreterState_ThreadHead", [ctypes.c_void_p]),
                       ("PyThreadState_Next", [ctypes.c_void_p])):
    function = getattr(api, name)
    function.argtypes, function.restype = argument, ctypes.c_void_p

def states():
    state, count = api.PyInterpreterState_ThreadHead(api.PyInterpreterState_Get()), 0
    while state:
        state, count = api.PyThreadState_Next(state), count + 1
    return count

def serve():
    with grpcxx.Server() as server:
        for short in (True, False):
            server.register(lambda x: x * 2, name=f"double_{short}", short=short)
        with grpcxx.Client(server.address) as client:
            for short in (True, False):
                assert client.call(f"double_{short}", {"x": np.arange(4)})[3] == 6

before = states()
for _ in range(8):
    serve()
# Threads of an engine that was closed end soon.
end = time.monotonic() + 30
while states() != before and time.monotonic() < end:
    time.sleep(0.01)
print(before, states())
"""


def test_threads_of_the_engine_leave_no_state_in_the_interpreter():
    told = subprocess.run([sys.executable, "-c", COUNTS_STATES], capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    before, after = map(int, told.stdout.split())
    assert after == before, f"{after - before} states are left"

"""NumPy arrays between a client and a server of this process, each with an engine of its own, over TCP."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from ports import free_port

import grpcxx
from grpcxx import Code, Reason

MEGABYTE = 1 << 20


def address_of(array):
    return array.__array_interface__["data"][0]


class Counted:
    """What the counters of the memory say of a block."""

    def __enter__(self):
        self.before = grpcxx.memory_counters()
        return self

    def __exit__(self, *_):
        self.counts = {way: count - self.before[way] for way, count in grpcxx.memory_counters().items()}


# ---- Calls


def test_the_words_of_an_answer_decide_nothing(server, client):
    def imitate():
        raise grpcxx.Error(Code.INTERNAL, "Seastar channel: connection is timeout")

    server.register(imitate)
    with pytest.raises(grpcxx.Error, match="INTERNAL: Seastar channel") as caught:
        client.call("imitate")
    assert not isinstance(caught.value, grpcxx.Unavailable)
    assert caught.value.reason is Reason.PEER


def test_a_call_in_vain_ends_with_its_timeout(server, client):
    release = threading.Event()
    server.register(lambda: release.wait(20) and None, name="sleep")
    start = time.monotonic()
    with pytest.raises(grpcxx.DeadlineExceeded) as caught:
        client.call("sleep", timeout=0.2)
    release.set()
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.reason is Reason.DEADLINE
    assert time.monotonic() - start < 10


def test_nobody_at_the_address_is_unavailable():
    address = f"127.0.0.1:{free_port()}"
    with grpcxx.Client(address, timeout=1) as client, pytest.raises(grpcxx.Unavailable, match=address) as caught:
        client.pull("anything")
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.reason is Reason.NO_CONNECTION


def test_a_failure_on_the_way_to_an_array_keeps_its_reason(client):
    class Lazy:
        def __array__(self, dtype=None, copy=None):
            raise grpcxx.Unavailable(grpcxx.Code.UNAVAILABLE, "its file is away", Reason.NO_CONNECTION)

    with pytest.raises(grpcxx.Unavailable, match="late: its file is away") as caught:
        client.push("late", Lazy())
    assert caught.value.reason is Reason.NO_CONNECTION


def test_what_is_closed_says_so(server):
    client = grpcxx.Client(server.address)
    client.close()
    client.close()
    with pytest.raises(grpcxx.Error, match="closed") as caught:
        client.stored()
    assert caught.value.code is Code.FAILED_PRECONDITION
    server.close()
    with pytest.raises(grpcxx.Error, match="closed"):
        server.push("x", 1)


def test_several_threads_use_one_client(server, client):
    server.register(lambda x: x * 2, name="double")
    failures = []

    def use(thread):
        for number in range(50):
            values = np.full(2000, thread * 100 + number)
            if not np.array_equal(client.call("double", {"x": values}), values * 2):
                failures.append((thread, number))

    threads = [threading.Thread(target=use, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_interpreter_goes_on_while_a_call_waits(server, client):
    release = threading.Event()
    server.register(lambda: release.wait(30) and None, name="wait")
    waiting = threading.Thread(target=lambda: client.call("wait", fetch=[]))
    waiting.start()
    assert sum(range(100_000)) == 4999950000
    release.set()
    waiting.join(20)
    assert not waiting.is_alive()


# ---- The store


def test_the_store_keeps_what_is_pushed(server, client):
    weights = np.random.default_rng(1).standard_normal((300, 40))
    client.push("weights", weights)
    client.push({"bias": np.arange(3), "names": np.array(["a", "bc"])})
    np.testing.assert_array_equal(client.pull("weights"), weights)
    both = client.pull(["bias", "weights"])
    np.testing.assert_array_equal(both["bias"], np.arange(3))
    assert (
        client.stored()
        == server.stored()
        == {
            "bias": grpcxx.StoredTensor("int64", (3,), 24),
            "names": grpcxx.StoredTensor("string", (2,), server.stored()["names"].size_bytes),
            "weights": grpcxx.StoredTensor("float64", (300, 40), 96000),
        }
    )
    server.remove(["bias", "never there"])
    with pytest.raises(grpcxx.Error) as caught:
        client.pull("bias")
    assert caught.value.code is Code.NOT_FOUND


def test_a_server_shares_its_own_store_without_a_copy(server):
    array = np.zeros(MEGABYTE, np.uint8)
    server.push("a", array)
    assert address_of(server.pull("a")) == address_of(array)
    assert not server.pull("a").flags.writeable
    server.push("b", array, copy=True)
    assert address_of(server.pull("b")) != address_of(array)


# ---- Exchange by key


def test_a_client_receives_what_the_server_sends(server, client):
    first = np.arange(5000)
    server.send("first", first)
    np.testing.assert_array_equal(client.recv("first"), first)
    later = client.recv_async("later", step=7)
    time.sleep(0.05)
    assert not later.done()
    server.send("later", first * 2, step=7)
    np.testing.assert_array_equal(later.result(20), first * 2)


def test_the_server_receives_what_a_client_sends(server, client):
    waiting = server.recv_async("x")
    client.send("x", np.arange(10_000))
    np.testing.assert_array_equal(waiting.result(20), np.arange(10_000))
    client.send("y", np.arange(3))
    np.testing.assert_array_equal(server.recv("y", timeout=20), np.arange(3))


def test_a_key_is_received_once(server, client):
    server.send("once", 1)
    assert client.recv("once") == 1
    with pytest.raises(grpcxx.DeadlineExceeded):
        client.recv("once", timeout=0.2)


def test_two_servers_exchange_over_their_own_engines(server):
    with grpcxx.Server(job="worker") as worker:
        peer = worker.connect(server.address, timeout=30)
        server.send("there", [1, 2])
        assert peer.recv("there").tolist() == [1, 2]
        peer.send("back", [3])
        assert server.recv("back", timeout=20).tolist() == [3]
        peer.close()


def test_keys_that_cannot_be_are_refused(server, client):
    for key in ("", "a;b"):
        with pytest.raises(grpcxx.Error, match="semicolon"):
            server.send(key, 1)
        with pytest.raises(grpcxx.Error, match="semicolon"):
            client.recv(key)


# ---- Memory


def test_large_arrays_are_sent_from_their_own_memory(server, client):
    array = np.arange(MEGABYTE)
    with Counted() as memory:
        client.push("large", array)
    assert memory.counts["lent"] == 1 and memory.counts["lent_bytes"] == array.nbytes
    assert memory.counts["copied"] == 0
    del array
    np.testing.assert_array_equal(server.pull("large"), np.arange(MEGABYTE))


def test_the_engine_lets_go_of_what_was_sent(server, client):
    array = np.arange(MEGABYTE)
    gone = weakref.ref(array)
    client.push("large", array)
    server.push("kept", array)
    server.push("kept", 1)
    del array
    deadline = time.monotonic() + 10
    # Without a call into the package: the engine must see to it alone.
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone() is None


def test_out_is_where_the_bytes_land(server, client):
    array = np.random.default_rng(2).standard_normal((512, 512))
    server.push("a", array)
    out = np.zeros_like(array)
    with Counted() as memory:
        result = client.pull("a", out=out)
    assert result is out
    assert memory.counts["landed"] == 1 and memory.counts["copied"] == memory.counts["viewed"] == 0
    np.testing.assert_array_equal(out, array)

    server.send("b", array * 2)
    assert client.recv("b", out=out) is out
    np.testing.assert_array_equal(out, array * 2)

    both = {"a": np.zeros_like(array)}
    server.push("c", np.arange(3))
    results = client.pull(["c", "a"], out=both)
    assert results["a"] is both["a"]
    np.testing.assert_array_equal(both["a"], array)
    np.testing.assert_array_equal(results["c"], np.arange(3))


def test_out_that_does_not_fit_is_an_error(server, client):
    server.push("a", np.zeros((4, 1000)))
    for out in (np.zeros((1000, 4)), np.zeros((4, 1000), np.int64), np.zeros(3)):
        with pytest.raises(grpcxx.Error, match="out is an array of"):
            client.pull("a", out=out)
    frozen = np.zeros((4, 1000))
    frozen.flags.writeable = False
    for out in (frozen, np.zeros((1000, 4)).T, [1]):
        with pytest.raises(grpcxx.Error, match="contiguous and writable"):
            client.pull("a", out=out)


def test_received_arrays_lie_in_memory_of_the_engine_and_are_writable(server, client):
    server.push("a", np.arange(MEGABYTE))
    with Counted() as memory:
        array = client.pull("a")
    assert memory.counts["viewed"] == 1 and memory.counts["copied"] == 0
    assert array.flags.writeable and array.flags.aligned
    array += 1
    assert array[-1] == MEGABYTE
    assert server.pull("a")[-1] == MEGABYTE - 1
    later = client.pull_async("a").result(20)
    later[0] = 7
    assert client.pull("a")[0] == 0


def test_what_the_peer_keeps_in_its_own_memory_is_writable_too(client):
    client.push("a", np.arange(MEGABYTE))
    array = client.pull("a")
    assert array.flags.writeable
    array += 1
    assert client.pull("a")[-1] == MEGABYTE - 1


def test_arrays_outlive_client_and_server():
    with grpcxx.Server() as server, grpcxx.Client(server.address, settings={}) as client:
        server.push("a", np.arange(MEGABYTE))
        array = client.pull("a")
    del client, server
    gc.collect()
    np.testing.assert_array_equal(array, np.arange(MEGABYTE))


def test_an_answer_is_sent_from_the_memory_of_the_array(server, client):
    array = np.arange(MEGABYTE)
    server.register(lambda: array, name="whole")
    with Counted() as memory:
        np.testing.assert_array_equal(client.call("whole"), array)
    assert memory.counts["lent"] == 1 and memory.counts["copied"] == 0


# ---- Types and shapes


@pytest.mark.smoke
@pytest.mark.parametrize(
    "dtype",
    "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128".split(),
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7,), (2, 3, 4), (1000, 7)])
def test_each_type_and_shape_comes_back_as_it_went(client, dtype, shape):
    array = np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    client.push("x", array)
    returned = client.pull("x")
    assert returned.dtype == array.dtype and returned.shape == array.shape
    assert returned.tobytes() == array.tobytes()


def test_bfloat16_comes_back_as_it_went(client):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(10_000).astype(ml_dtypes.bfloat16)
    client.push("x", array)
    returned = client.pull("x")
    assert returned.dtype == ml_dtypes.bfloat16
    assert returned.tobytes() == array.tobytes()
    assert client.stored()["x"].dtype == "bfloat16"


@pytest.mark.parametrize(
    "array",
    [
        np.array(["", "a", "grün", "x" * 10_000]),
        np.array([b"\0\xff", b""], object),
        np.array([["a", b"b"]], object),
        np.array("alone"),
        np.zeros((0, 3), "S4"),
    ],
    ids=["text", "bytes", "mixed", "scalar", "empty"],
)
def test_strings_come_back_as_bytes(client, array):
    client.push("x", array)
    returned = client.pull("x")
    expected = [element.encode() if isinstance(element, str) else element for element in array.ravel().tolist()]
    assert returned.shape == array.shape and returned.dtype == object
    assert returned.ravel().tolist() == expected


@pytest.mark.parametrize(
    "array",
    [
        np.arange(20_000).reshape(100, 200).T,
        np.arange(20_000)[::3],
        np.arange(20_000, dtype=">i4"),
        np.asfortranarray(np.arange(20_000.0).reshape(100, 200)),
    ],
    ids=["transposed", "strided", "big-endian", "fortran"],
)
def test_arrays_in_another_order_are_copied_once(client, array):
    with Counted() as memory:
        client.push("x", array)
    assert memory.counts["copied"] == 1 and memory.counts["lent"] == 0
    np.testing.assert_array_equal(client.pull("x"), array)


def test_lists_numbers_and_buffers_are_taken(client):
    client.push({"list": [[1.5, 2.5]], "number": 7, "buffer": memoryview(b"abc")})
    arrays = client.pull(["list", "number", "buffer"])
    assert arrays["list"].tolist() == [[1.5, 2.5]]
    assert arrays["number"] == 7
    assert arrays["buffer"].tobytes() == b"abc"


def test_what_has_no_type_is_refused(client):
    for value in (np.zeros(1, "datetime64[s]"), np.array([object()]), np.zeros(1, [("a", "i4")])):
        with pytest.raises(grpcxx.Error) as caught:
            client.push("x", value)
        assert caught.value.code is Code.INVALID_ARGUMENT


class OnlyDlpack:
    """An array of another library, as far as DLPack shows it."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_dlpack_goes_in_and_out_without_a_copy(client):
    array = np.arange(MEGABYTE, dtype=np.float32)
    with Counted() as memory:
        client.push("x", OnlyDlpack(array))
    assert memory.counts["lent"] == 1 and memory.counts["copied"] == 0
    returned = client.pull("x")
    assert address_of(np.from_dlpack(returned)) == address_of(returned)
    np.testing.assert_array_equal(np.from_dlpack(returned), array)


# ---- Without waiting


def test_futures_end_with_results_and_errors(server, client):
    server.register(lambda x: x, name="same")
    futures = [client.call_async("same", {"x": number}) for number in range(100)]
    assert [int(future.result(20)) for future in futures] == list(range(100))
    assert client.push_async("a", 1).result(20) is None
    assert client.pull_async("a").result(20) == 1
    with pytest.raises(grpcxx.Error) as caught:
        client.pull_async("b").result(20)
    assert caught.value.code is Code.NOT_FOUND


def test_a_future_can_be_withdrawn(server, client):
    future = client.recv_async("never")
    assert future.cancel() and future.cancelled()
    server.send("never", 5)
    assert client.send_async("after", 1).result(20) is None


def test_futures_can_be_awaited(client):
    async def push_and_pull():
        await asyncio.wrap_future(client.push_async("x", 3))
        return await asyncio.wrap_future(client.pull_async("x"))

    assert asyncio.run(push_and_pull()) == 3


def test_futures_end_when_the_server_goes(client, server):
    future = client.recv_async("never")
    time.sleep(0.1)
    server.close(grace=0)
    with pytest.raises(grpcxx.Error):
        future.result(20)


# ---- Processes


def test_a_child_after_fork_is_told_to_start_anew(server, client):
    client.push("x", 1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            client.pull("x")
            answer = b"pulled"
        except grpcxx.Error as error:
            answer = str(error).encode()
        os.write(write, answer)
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert b"fork" in os.read(read, 1000)


PICKLED = """
import multiprocessing, sys, grpcxx

if __name__ == "__main__":
    for settings in (None, {"GRPCXX_SHM": "off"}):
        with grpcxx.Client(sys.argv[1], timeout=30, settings=settings) as client:
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                pulled = pool.starmap_async(grpcxx.Client.pull, [(client, "x")] * 4).get(60)
        assert [array.tolist() for array in pulled] == [[0, 1, 2]] * 4
"""


def test_a_client_that_is_pickled_dials_again_elsewhere(server, tmp_path):
    server.push("x", np.arange(3))
    program = tmp_path / "program.py"
    program.write_text(PICKLED)
    ran = subprocess.run([sys.executable, program, server.address], capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr


def test_a_server_listens_at_a_name_of_this_host():
    with grpcxx.Server("localhost:0") as server, grpcxx.Client(server.address, timeout=30) as client:
        client.push("x", 1)
    with pytest.raises(grpcxx.Error, match="cannot listen on .*write an IP address or a name of this host"):
        grpcxx.Server("no-such-host.invalid:0")


def run_python(program, **options):
    return subprocess.Popen(
        [sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def test_a_program_that_closes_nothing_ends(server):
    program = f"""
import grpcxx, numpy
server = grpcxx.Server()
client = grpcxx.Client({server.address!r})
client.push("x", numpy.arange(1000000))
future = client.recv_async("never")
print(client.pull("x").sum())
"""
    process = run_python(program)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "499999500000\n"), errors


def test_ctrl_c_ends_a_call_that_waits(server):
    # Tests that run in the background inherit that SIGINT is ignored.
    listens = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    waits = f"import grpcxx; print('waits', flush=True); grpcxx.Client({server.address!r}).recv('never')"
    process = run_python(f"{listens}; {waits}")
    assert process.stdout.readline() == "waits\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors


def test_processes_share_a_server(server):
    program = f"""
import grpcxx, numpy, sys
with grpcxx.Client({server.address!r}, timeout=30) as client:
    values = client.pull("values")
    client.send(sys.argv[1] if len(sys.argv) > 1 else "sum", values.sum())
"""
    server.push("values", np.arange(MEGABYTE))
    processes = [run_python(program)]
    assert server.recv("sum", timeout=60) == np.arange(MEGABYTE).sum()
    assert [process.wait(30) for process in processes] == [0]


# ---- Settings


def test_settings_are_checked():
    with pytest.raises(grpcxx.Error, match="GRPCXX_SHARDS"):
        grpcxx.Server(settings={"GRPCXX_SHARDS": "many"})
    for start in (
        lambda: grpcxx.Client("localhost:1", settings=["GRPCXX_SHARDS"]),
        lambda: grpcxx.Server(settings=["GRPCXX_SHARDS"]),
        lambda: grpcxx.Server(settings=["GRPCXX_SHARDS"], metrics="localhost:0"),
        lambda: grpcxx.Group(0, 1, "localhost:0", settings="GRPCXX_SHARDS=1"),
    ):
        with pytest.raises(TypeError, match="settings must be a mapping"):
            start()
    with grpcxx.Server(settings={"GRPCXX_SHARDS": "2"}, job="worker", index=3) as server:
        assert "shards=2" in server.report and "/job:worker/replica:0/task:3" in server.report
        with grpcxx.Client(server.address, settings={}) as client:
            assert client.status()[0].startswith("/job:worker/replica:0/task:3")
        assert server.counters()["accepted"] == 1


def test_a_port_that_is_taken_is_told(server):
    with pytest.raises(grpcxx.Error) as caught:
        grpcxx.Server(server.address)
    assert server.address.rpartition(":")[2] in str(caught.value)

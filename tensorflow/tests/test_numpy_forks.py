"""Children that are forked from a process with an engine: what they have is their own, and they hold nothing open."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import as_completed, wait
from contextlib import contextmanager

import numpy as np
import pytest
from ranks import together

import grpcxx
from grpcxx._engine import CallFuture

SIZES = (4 << 10, 100_000, 1 << 20, 4 << 20)

SERVER = """
import sys, grpcxx, numpy as np
server = grpcxx.Server()
for size in map(int, sys.argv[1:]):
    server.push(str(size), np.ones(size, np.uint8))
print(server.address, flush=True)
sys.stdin.read()
"""


@contextmanager
def process(program, *arguments, **settings):
    command = [sys.executable, "-u", "-c", program, *map(str, arguments)]
    environment = {**os.environ, **settings}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def child(program):
    """Runs `program` in a child: it gets a function that waits until this process says `go`, and returns whether all is
    well. Gives two functions: `go`, and one that waits for the child and tells."""
    told, tell = os.pipe()
    number = os.fork()
    if number == 0:
        os.close(tell)
        is_well = False
        try:
            is_well = program(lambda: os.read(told, 1))
        finally:
            os._exit(0 if is_well else 1)
    os.close(told)
    ended = []

    def is_well():
        ended.append(os.waitpid(number, 0)[1])
        return ended[0] == 0

    try:
        yield lambda: os.write(tell, b"x"), is_well
    finally:
        os.close(tell)
        if not ended:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("shm", ["off", "auto"])
def test_what_was_pulled_is_the_childs_own(shm, copy):
    with process(SERVER, *SIZES, GRPCXX_SHM=shm) as server, grpcxx.Client(server.stdout.readline().strip()) as client:
        names = [str(size) for size in SIZES]
        # Once the link has moved to where it stays.
        for _ in range(3):
            arrays = {**client.pull(names[1:], copy=copy), names[0]: client.pull(names[0], copy=copy)}

        def program(wait):
            for array in arrays.values():
                if array.flags.writeable:
                    array[:] = 7
            wait()
            return all((array == (7 if array.flags.writeable else 1)).all() for array in arrays.values())

        with child(program) as (go, is_well):
            time.sleep(0.1)
            assert all((array == 1).all() for array in arrays.values())
            go()
            assert is_well()

        def looker(wait):
            wait()
            return all((array == 1).all() for array in arrays.values())

        with child(looker) as (go, is_well):
            for array in arrays.values():
                if array.flags.writeable:
                    array[:] = 9
            arrays.clear()
            # Whatever has their memory now.
            client.push({name: np.full(int(name), 5, np.uint8) for name in names})
            again = [client.pull(names) for _ in range(4)]
            go()
            assert is_well()
        assert all((array == 5).all() for pulled in again for array in pulled.values())


def test_signals_do_not_cut_the_wait_for_a_child_short():
    sizes = [str((3 << 20) + index) for index in range(40)]
    with process(SERVER, *sizes) as far, grpcxx.Server() as own:
        client = own.connect(far.stdout.readline().strip())
        arrays = client.pull(sizes)
        signal.signal(signal.SIGALRM, lambda *_: None)

        def program(wait):
            signal.setitimer(signal.ITIMER_REAL, 0)
            wait()
            return all((array == 1).all() for array in arrays.values())

        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
            with child(program) as (go, is_well):
                for array in arrays.values():
                    array[:] = 9
                go()
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert is_well()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_a_child_that_serves_ends_well_although_its_parent_was_in_a_function():
    program = """
import os, sys, threading, grpcxx
server = grpcxx.Server()
inside, done = threading.Event(), threading.Event()

@server.register
def waits():
    inside.set()
    done.wait(60)
    return 1

client = grpcxx.Client(server.address)
thread = threading.Thread(target=lambda: client.call("waits", {}, "result"))
thread.start()
inside.wait(60)
child = os.fork()
if child == 0:
    with grpcxx.Server() as own, grpcxx.Client(own.address) as client:
        own.register(lambda: 2, name="two")
        assert client.call("two", {}, "result") == 2
    sys.exit(0)
status = os.waitpid(child, 0)[1]
done.set()
thread.join()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "still runs" not in ran.stderr


def test_what_a_function_got_is_the_childs_own():
    results = []

    with grpcxx.Server() as server, grpcxx.Client(server.address, timeout=30) as client:

        @server.register
        def split(values):
            def program(wait):
                wait()
                return bool((values == 1).all())

            with child(program) as (go, is_well):
                if values.flags.writeable:
                    values[:] = 3
                go()
                results.append(is_well())
            return values

        for size in SIZES:
            client.call("split", {"values": np.ones(size, np.uint8)})
    assert results == [True] * len(SIZES)


def test_a_childs_pushes_leave_what_the_parent_has_pushed():
    with grpcxx.Server() as server:
        server.push("before", np.full(1 << 20, 1, np.uint8))

        def program(wait):
            with grpcxx.Server() as own, grpcxx.Client(own.address, timeout=30) as client:
                for value in range(2, 6):
                    own.push(f"own {value}", np.full(1 << 20, value, np.uint8))
                    client.push(f"own {value} too", np.full(1 << 20, value, np.uint8))
                wait()
                names = [(f"own {value}", value) for value in range(2, 6)]
                names += [(f"own {value} too", value) for value in range(2, 6)]
                return all((client.pull(name) == value).all() for name, value in names)

        with child(program) as (go, is_well):
            for value in range(10, 14):
                server.push(f"after {value}", np.full(1 << 20, value, np.uint8))
            time.sleep(0.5)
            go()
            assert is_well()
            assert (server.pull("before") == 1).all()
            assert all((server.pull(f"after {value}") == value).all() for value in range(10, 14))


def test_a_child_may_fork_again():
    with process(SERVER, 1 << 20) as server, grpcxx.Client(server.stdout.readline().strip()) as client:
        array = client.pull(str(1 << 20))

        def grandchild(wait):
            wait()
            return bool((array == 2).all())

        def program(_):
            array[:] = 2
            with child(grandchild) as (go, is_well):
                array[:] = 3
                go()
                return is_well()

        with child(program) as (_, is_well):
            assert is_well()
        assert (array == 1).all()


def until_refused(address):
    """The kernel closes the sockets that a ring of io_uring watches some moments after the process."""
    host, port = address.rsplit(":", 1)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            socket.create_connection((host, int(port)), 5).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.01)
    raise AssertionError(f"somebody still listens on {address}")


FORKING = """
import os, sys, time, grpcxx
server = grpcxx.Server(sys.argv[1])
if os.fork() == 0:
    print(server.address, os.getpid(), flush=True)
    time.sleep(600)
sys.stdin.read()
"""


@pytest.mark.parametrize("shm", ["off", "auto"])
def test_a_server_that_is_killed_is_gone_although_its_child_lives(shm):
    with process(FORKING, "127.0.0.1:0", GRPCXX_SHM=shm) as server:
        address, number = server.stdout.readline().split()
        try:
            with grpcxx.Client(address, timeout=20) as client:
                client.status()
                pending = client.recv_async("never")
                time.sleep(0.3)
                server.send_signal(signal.SIGKILL)
                begun = time.monotonic()
                with pytest.raises(grpcxx.Unavailable):
                    pending.result(20)
                assert time.monotonic() - begun < 10, "it was not the end of the process that ended the call"
            os.kill(int(number), 0)
            server.wait(10)
            until_refused(address)
            with grpcxx.Server(address) as other:
                assert other.address == address
        finally:
            os.kill(int(number), signal.SIGKILL)


LOCKED = """
import os, sys, threading, grpcxx
import numpy as np
from grpcxx import _engine, parallel

server = grpcxx.Server()
client = grpcxx.Client(server.address)
server.push("one", np.ones(3))
client.pull("one")
engines = list(_engine._engines)
late = client.recv_async("late")
locks = [_engine._shared_lock, parallel._lock, late._condition, *(engine._lock for engine in engines)]
held, done = threading.Event(), threading.Event()

def hold():
    # As a thread does that makes an engine, closes one, joins a group, or looks at a future.
    for lock in locks:
        lock.acquire()
    held.set()
    done.wait()
    for lock in locks:
        lock.release()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    try:
        client.pull_async("one")
    except grpcxx.Error as error:
        assert error.code == grpcxx.Code.FAILED_PRECONDITION, error
    else:
        os._exit(1)
    assert late.done()
    server.close()
    assert parallel.rank() == 0
    with grpcxx.Client(server.address, timeout=20) as own:
        assert own.pull_async("one").result(20).sum() == 3
    # And its end.
    sys.exit(0)
status = os.waitpid(child, 0)[1]
done.set()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_does_not_wait_for_locks_of_threads_that_it_has_not():
    ran = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def ends_at_once(future):
    """Whether it has ended in a child, with the error that nothing of the parent is used there."""
    has_ended = future.done() and not future.running() and not future.cancel()
    has_ended &= wait([future], 0).done == {future} and list(as_completed([future], 0)) == [future]
    told = []
    future.add_done_callback(told.append)
    error = future.exception(timeout=0)
    is_clear = error.code is grpcxx.Code.FAILED_PRECONDITION and "before fork()" in error.message
    return has_ended and is_clear and told == [future]


def test_a_child_does_not_wait_to_withdraw_a_call_of_its_parent():
    with grpcxx.Server() as server, grpcxx.Client(server.address, timeout=60) as client:
        future = client.recv_async("late")
        told = []
        future.add_done_callback(told.append)
        with child(lambda _: ends_at_once(future) and not told) as (_, is_well):
            assert is_well()
        server.send("late", np.ones(3))
        assert future.result(20).sum() == 3
        assert told == [future]


def test_a_future_that_was_cancelled_at_the_fork_is_told_to_those_who_wait_in_the_child():
    future = CallFuture()
    assert future.cancel()
    # In the parent a thread tells of it once the call has ended.
    assert not wait([future], 0).done
    with child(lambda _: list(as_completed([future], 0)) == [future] and future.cancelled()) as (_, is_well):
        assert is_well()


def test_a_child_that_is_forked_between_futures_gets_the_others():
    with grpcxx.Server() as server, grpcxx.Client(server.address, timeout=60) as client:
        server.send("early", np.ones(3))
        futures = {client.recv_async("early"), client.recv_async("late")}
        completed = as_completed(futures, 60)
        early = next(completed)
        (late,) = futures - {early}
        with child(lambda _: list(completed) == [late] and ends_at_once(late)) as (_, is_well):
            assert is_well()
        server.send("late", np.ones(3))
        assert [future.result(0).sum() for future in completed] == [3]


def test_a_child_has_no_part_in_what_its_parents_group_does():
    def code(group):
        group.barrier()
        if group.rank == 1:
            assert has_forked.wait(60)
            return group.all_reduce(np.ones(3))[0]
        future = group.all_reduce(np.ones(3), async_=True)
        with child(lambda _: ends_at_once(future)) as (_, is_well):
            is_fine = is_well()
        has_forked.set()
        assert is_fine
        return future.result(20)[0]

    has_forked = threading.Event()
    assert together(2, code) == [2, 2]


LOGGING = """
import logging, os, sys, grpcxx

class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())

lines = []
logging.getLogger().addHandler(Lines())
logging.getLogger().setLevel(logging.INFO)
grpcxx.log_to(logging.getLogger())
grpcxx.Server().close()
assert any("shards=" in line for line in lines), lines
child = os.fork()
if child == 0:
    lines.clear()
    grpcxx.Server().close()
    sys.exit(0 if any("shards=" in line for line in lines) else f"the child got {lines}")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_the_log_goes_on_in_a_child():
    ran = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr

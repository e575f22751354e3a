"""What begins while a client, a server or a group is closed ends, or is refused; and what Ctrl-C leaves behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from ports import free_port

import grpcxx


class Closing:
    """An array that closes something while it is converted, as another thread may meanwhile."""

    def __init__(self, closes):
        self.closes = closes

    def __array__(self, dtype=None, copy=None):
        self.closes()
        return np.ones(3)


def is_closed():
    return pytest.raises(grpcxx.Error, match="this is closed")


def test_a_call_for_a_future_is_refused_once_its_client_is_closed(server):
    client = grpcxx.Client(server.address, settings={"GRPCXX_SHARDS": "1"})
    with is_closed():
        client.call_async("none", {"x": Closing(client.close)}, "x")
    client = grpcxx.Client(server.address, settings={"GRPCXX_SHARDS": "1"})
    with is_closed():
        client.push_async("x", Closing(client.close))


def test_an_operation_for_a_future_is_refused_once_its_group_is_closed():
    group = grpcxx.Group(0, 1, "127.0.0.1:0")
    with is_closed():
        group.all_reduce(Closing(group.close), async_=True)


def test_what_began_before_ends(server):
    with grpcxx.Client(server.address, settings={"GRPCXX_SHARDS": "1"}) as client:
        futures = [client.recv_async("never"), client.push_async("x", np.ones(3))]
    with pytest.raises(grpcxx.Error):
        futures[0].result(20)
    futures[1].exception(20)


STANDS_STILL = """
import sys, grpcxx
group = grpcxx.Group(int(sys.argv[1]), 3, sys.argv[2])
if group.rank == 1:
    group.barrier(async_=True)
# Behind it, rank 0 knows that rank 1 has called the other one.
group.barrier(tag=1)
print("called", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def others_that_stand_still(rendezvous):
    """The ranks 1 and 2 of a group of 3. Gives a function that stops them where they are."""
    others = [
        subprocess.Popen(
            [sys.executable, "-c", STANDS_STILL, str(rank), rendezvous],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (1, 2)
    ]

    def stop():
        for other in others:
            assert other.stdout.readline() == "called\n"
            other.send_signal(signal.SIGSTOP)

    try:
        yield stop
    finally:
        for other in others:
            with other:
                other.kill()


def test_a_rank_that_leaves_hears_ctrl_c():
    rendezvous = f"127.0.0.1:{free_port()}"
    with others_that_stand_still(rendezvous) as stop:
        group = grpcxx.Group(0, 3, rendezvous, timeout=4)
        group.barrier(tag=1)
        stop()
        with pytest.raises(grpcxx.Error, match="rank 2"):
            group.barrier()
        heard = []
        before = signal.signal(signal.SIGINT, lambda *_: heard.append(time.monotonic()))
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        # For 2 s rank 1, which has called the same, may still hear that the group is over.
        group._native.leave()
        ended = time.monotonic()
        signal.signal(signal.SIGINT, before)
    group.close()
    assert heard and ended - heard[0] > 0.2, "the signal waited for the other rank"


def test_what_ctrl_c_leaves_is_still_written():
    rendezvous, groups = f"127.0.0.1:{free_port()}", {}

    def join(rank):
        groups[rank] = grpcxx.Group(rank, 2, rendezvous)

    def on_both(call):
        other = threading.Thread(target=call, args=(groups[1],))
        other.start()
        call(groups[0])
        other.join()

    other = threading.Thread(target=join, args=(1,))
    other.start()
    join(0)
    other.join()
    out = np.zeros(100_000)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        groups[0].all_reduce(np.ones(100_000), out=out)
    signal.signal(signal.SIGINT, before)

    def refused(group):
        # Rank 1 refuses something else, so that the group goes on.
        array = out if group.rank == 0 else np.array(["a"])
        with pytest.raises(grpcxx.Error, match="has not ended" if group.rank == 0 else "strings"):
            group.all_reduce(array, tag=1)

    on_both(refused)
    groups[1].all_reduce(np.ones(100_000))
    on_both(lambda group: group.barrier())
    assert (out == 2).all()
    on_both(lambda group: group.all_reduce(out if group.rank == 0 else np.ones(100_000), tag=1))
    on_both(lambda group: group.close())

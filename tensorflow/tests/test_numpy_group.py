"""Groups of ranks: in threads of this process, each with an engine of its own, and in processes."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from ports import free_port
from ranks import together

import grpcxx
from grpcxx import Code


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("elements", [0, 5, 3 << 20])
def test_all_ranks_get_the_sum(size, elements):
    def code(group):
        return group.all_reduce(np.arange(elements, dtype=np.float32) + group.rank)

    for found in together(size, code):
        wanted = size * np.arange(elements, dtype=np.float32) + sum(range(size))
        np.testing.assert_array_equal(found, wanted)


def test_each_operation_gives_each_rank_its_part():
    def code(group):
        rank = group.rank
        mine = np.arange(6.0).reshape(2, 3) + 10 * rank
        parts = mine if rank == 1 else np.zeros((1, 3))
        group.barrier()
        return (
            group.all_reduce(mine, "max"),
            group.reduce_scatter(mine),
            group.all_gather(mine),
            group.broadcast(mine, root=1),
            group.reduce(mine, "mean", root=0),
            group.gather(mine, root=1),
            group.scatter(parts, root=1),
            group.all_to_all(mine),
        )

    first = np.arange(6.0).reshape(2, 3)
    second = first + 10
    for rank, found in enumerate(together(2, code)):
        wanted = (
            second,
            (first + second)[rank : rank + 1],
            np.concatenate([first, second]),
            second,
            first + 5 if rank == 0 else None,
            np.concatenate([first, second]) if rank == 1 else None,
            second[rank : rank + 1],
            np.stack([first[rank], second[rank]]),
        )
        for one, other in zip(found, wanted):
            np.testing.assert_array_equal(one, other)


def test_results_land_in_out_and_in_the_array_itself():
    def code(group):
        array = np.full(1 << 20, float(group.rank + 1), np.float32)
        out = np.empty_like(array)
        assert group.all_reduce(array, out=out) is out
        assert group.all_reduce(array, out=array) is array
        with pytest.raises(grpcxx.Error, match="out is an array of"):
            group.all_reduce(array, out=np.empty(3, np.float32))
        return out, array

    for out, array in together(2, code):
        assert (out == 3).all() and (array == 3).all()


def test_futures_go_on_beside_each_other():
    def code(group):
        futures = [group.all_reduce(np.full(1000, tag), tag=tag, async_=True) for tag in range(20)]
        return [future.result(timeout=60)[0] for future in futures]

    assert together(2, code) == [[2 * tag for tag in range(20)]] * 2


def test_many_arrays_are_combined_one_by_one():
    def code(group):
        return group.all_reduce_many([np.float32(group.rank), np.arange(3), np.ones((2, 2), np.float32)])

    for one, two, three in together(2, code):
        assert one == 1 and (two == [0, 2, 4]).all() and (three == 2).all() and three.shape == (2, 2)


def test_a_rank_that_waits_for_long_sleeps():
    def code(group):
        group.barrier()
        begun = time.thread_time()
        if group.rank == 1:
            time.sleep(1)
        found = group.all_reduce(np.ones(3))
        return found, time.thread_time() - begun

    for found, seconds in together(2, code):
        np.testing.assert_array_equal(found, np.full(3, 2.0))
        assert seconds < 0.3, "a rank that waits takes no CPU"


def test_a_forked_child_takes_no_part():
    def code(group):
        group.barrier()
        child = None
        if group.rank == 0:
            child = os.fork()
            if child == 0:
                try:
                    group.all_reduce(np.ones(3))
                except grpcxx.Error:
                    os._exit(7)
                os._exit(1)
        found = group.all_reduce(np.arange(3.0))
        return found, child and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    (first, ended), (second, _) = together(2, code)
    assert ended == 7
    for found in (first, second):
        np.testing.assert_array_equal(found, [0, 2, 4])


def test_operations_that_differ_are_named_on_all_ranks():
    def code(group):
        return group.all_reduce(np.zeros(4 + group.rank, np.float32))

    for error in together(2, code):
        assert error.code == Code.INVALID_ARGUMENT
        assert "rank 0 called all_reduce(float32 [4], sum), but rank 1 called" in error.message


def test_a_rank_that_is_missing_is_named():
    with pytest.raises(grpcxx.DeadlineExceeded, match=r"1 of 2 ranks are missing \(1\)"):
        grpcxx.Group(0, 2, f"127.0.0.1:{free_port()}", join_timeout=0.5)


def test_a_process_that_is_killed_is_named_by_the_others():
    port = free_port()
    program = (
        "import sys, time, grpcxx\n"
        f"group = grpcxx.Group(1, 2, '127.0.0.1:{port}')\n"
        "group.barrier()\n"
        "time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", program], env=os.environ.copy())
    try:
        group = grpcxx.Group(0, 2, f"127.0.0.1:{port}")
        group.barrier()
        future = group.all_reduce(np.ones(3), async_=True)
        began = time.monotonic()
        other.send_signal(signal.SIGKILL)
        with pytest.raises(grpcxx.Error, match=r"rank 1 \(127\.0\.0\.1:"):
            future.result(timeout=30)
        assert time.monotonic() - began < 20
        group.close()
    finally:
        other.kill()
        other.wait()

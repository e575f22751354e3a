"""Groups of ranks: in threads of this process, each with an engine of its own, and in processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
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


@pytest.mark.parametrize("shm", ["on", "off"])
@pytest.mark.parametrize(
    "refused",
    [
        lambda group: group.all_reduce(np.full(3, 100.0), out=np.zeros(4)),
        lambda group: group.all_reduce(np.array(["a", "b"])),
        lambda group: group.all_reduce(np.ones(3, np.bool_)),
        lambda group: group.all_reduce_many([np.ones(3), np.array(["a"])]),
        lambda group: group.reduce_scatter(np.ones(3)),
        lambda group: group.broadcast(np.ones(3), root=7),
        lambda group: group.all_reduce(np.ones(3), op="most"),
    ],
    ids=["out", "strings", "bool", "many", "parts", "root", "op"],
)
def test_what_one_rank_alone_refuses_is_not_taken_for_its_next_operation(refused, shm):
    def code(group):
        found = [group.all_reduce(np.full(3, 1.0))[0]]
        # All refuse it, and go on.
        with pytest.raises(grpcxx.Error):
            refused(group)
        found.append(group.all_reduce(np.full(3, 10.0))[0])
        if group.rank == 1:
            with pytest.raises(grpcxx.Error):
                refused(group)
        else:
            with pytest.raises(grpcxx.Error, match="rank 1 called what it refused"):
                group.all_reduce(np.full(3, 100.0))
        with pytest.raises(grpcxx.Error, match="rank 1 called what it refused"):
            group.all_reduce(np.full(3, 1000.0))
        return found

    assert together(2, code, settings={"GRPCXX_SHM": shm}) == [[2, 20]] * 2


def test_more_operations_than_a_group_keeps_end_it():
    has_begun_all = threading.Event()

    def code(group):
        if group.rank == 1:
            assert has_begun_all.wait(60)
        futures = [group.all_reduce(np.full(3, float(at)), async_=True) for at in range(4200)]
        has_begun_all.set()
        errors = [future.exception(timeout=60) for future in futures]
        values = [(at, future.result()[0]) for at, future in enumerate(futures) if errors[at] is None]
        assert all(value == 2 * at for at, value in values)
        return str(group_error(group)), len(values)

    def group_error(group):
        with pytest.raises(grpcxx.Error) as caught:
            group.check()
        return caught.value

    told = together(2, code)
    assert all("4096 operations wait under tag 0" in text for text, _ in told), told


def test_what_an_operation_writes_is_not_read_before_it_ends():
    has_tried = threading.Event()

    def code(group):
        array, out, matrix = np.ones(100_000), np.empty(100_000), np.ones((4, 50_000))
        if group.rank == 0:
            futures = [group.all_reduce(array, out=out, async_=True)]
            futures.append(group.all_reduce(array[:50_000], out=matrix[1], async_=True))
            for text, brought, options in (
                # Short, strided and written by itself: copied now.
                ("array", out[3:5], {}),
                ("array", out[::-50_000], {}),
                ("array", out, {"out": out}),
                ("array", matrix[:, 7], {}),
                # Beside it.
                ("array", out, {"tag": 1}),
                ("out", array, {"out": out, "tag": 1}),
            ):
                with pytest.raises(grpcxx.Error, match=f"{text} is the result of .* wait for that first"):
                    group.all_reduce(brought, async_=True, **options)
            has_tried.set()
        else:
            assert has_tried.wait(60)
            futures = [group.all_reduce(array, out=out, async_=True)]
            futures.append(group.all_reduce(array[:50_000], out=matrix[1], async_=True))
            for tag in (0, 0, 0, 0, 1, 1):
                with pytest.raises(grpcxx.Error, match="strings"):
                    group.all_reduce(np.array(["what rank 0 refuses too"]), tag=tag)
        assert all((future.result(60) == 2).all() for future in futures)
        return (group.all_reduce(out, out=out) == 4).all() and (group.all_reduce(matrix[::2]) == 2).all()

    assert together(2, code) == [True, True]


def test_operations_of_one_tag_follow_each_other_also_through_their_arrays():
    def code(group):
        for _ in range(20):
            first, second, third = np.ones(100_000), np.empty(100_000), np.empty(100_000)
            futures = [group.all_reduce(first, out=second, async_=True)]
            # It is lent, and not read before the first one has ended; so is what this one writes.
            futures.append(group.all_reduce(second, out=third, async_=True))
            futures.append(group.all_reduce(third, out=first, async_=True))
            found = [future.result(60) for future in futures]
            assert (found[1] == 4).all() and (found[2] == 8).all()
            mine = np.empty(3)
            futures = [group.reduce(np.full(3, float(at)), root=at, out=mine, async_=True) for at in range(group.size)]
            assert [future.result(60) is mine for future in futures].count(True) == 1
            assert (mine == group.size * group.rank).all()
        return True

    assert together(2, code) == [True, True]


def test_a_child_leaves_a_group_whatever_its_parent_did_at_the_fork():
    def code(group):
        group.barrier()
        for _ in range(20):
            futures = [group.all_reduce(np.ones(50_000), tag=1, async_=True) for _ in range(5)]
            if group.rank == 0:
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    group.close()
                    os._exit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert all((future.result(60) == 2).all() for future in futures)
        return True

    assert together(2, code) == [True, True]


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


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
import grpcxx

# Who starts tests in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
groups = {{}}

def join(rank):
    groups[rank] = grpcxx.Group(rank, 2, sys.argv[1], timeout=600)

other = threading.Thread(target=join, args=(1,), daemon=True)
other.start()
join(0)
other.join()

def interrupt():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)

try:
    # In here, so that it is caught however slow this machine is.
    threading.Thread(target=interrupt, daemon=True).start()
    groups[0].{call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("call", ["all_reduce(np.ones(3))", "all_reduce_many([np.ones(3), np.ones(2)])"])
def test_a_rank_that_waits_hears_ctrl_c(call):
    program = [sys.executable, "-c", INTERRUPTED.format(call=call), f"127.0.0.1:{free_port()}"]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "interrupted\n", ran.stderr


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
        group.check()
        with pytest.raises(grpcxx.Error) as raised:
            group.all_reduce(np.zeros(4 + group.rank, np.float32))
        with pytest.raises(grpcxx.Error) as checked:
            group.check()
        assert str(checked.value) == str(raised.value)
        return raised.value

    for error in together(2, code):
        assert error.code == Code.INVALID_ARGUMENT
        assert "rank 0 called all_reduce(float32 [4], sum), but rank 1 called" in error.message


def test_a_rank_that_is_missing_is_named():
    with pytest.raises(grpcxx.DeadlineExceeded, match=r"1 of 2 ranks are missing \(1\)"):
        grpcxx.Group(0, 2, f"127.0.0.1:{free_port()}", join_timeout=0.5)


def test_who_says_nothing_where_ranks_meet_costs_no_more_than_the_time_to_meet():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(grpcxx.DeadlineExceeded, match="did not meet the group"):
            grpcxx.Group(1, 2, f"127.0.0.1:{silent.getsockname()[1]}", join_timeout=0.5)
        assert time.monotonic() - began < 2


HANGING = """
import os, signal, sys, time
import numpy as np
import grpcxx

rank, timeout = int(sys.argv[2]), 2.0
group = grpcxx.Group(rank, 3, sys.argv[1], timeout=timeout)
group.barrier()
print("begins", flush=True)
try:
    while True:
        # Some ranks are done before others are, and go on.
        futures = [group.reduce(np.ones(100_000), root=root, async_=True) for root in range(3)]
        for future in futures:
            future.result()
except grpcxx.Error as error:
    print(error.message, flush=True)
began = time.monotonic()
group.close()
print(time.monotonic() - began < 2 * timeout, flush=True)
"""


@pytest.mark.parametrize("shm", ["on", "off"])
def test_a_process_that_is_stopped_is_named_alone_and_holds_nobody_who_leaves(shm):
    rendezvous = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "GRPCXX_SHM": shm}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", HANGING, rendezvous, str(rank)], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(3)
    ]
    try:
        for rank in ranks:
            assert rank.stdout.readline() == "begins\n"
        ranks[1].send_signal(signal.SIGSTOP)
        for rank in (ranks[0], ranks[2]):
            told = rank.stdout.readline()
            assert told.startswith("rank 1 (") and told.count(" (127.0.0.1:") == 1, told
            assert rank.stdout.readline() == "True\n"
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


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


MEMBER = """
import sys
import numpy as np
import grpcxx

for line in sys.stdin:
    rank, size, generation = map(int, line.split())
    with grpcxx.Group(rank, size, sys.argv[1], generation=generation) as group:
        print(group.all_reduce(np.full(3, rank + 1.0))[2], flush=True)
        try:
            while True:
                group.barrier()
        except grpcxx.Error as error:
            print(error.message, flush=True)
"""


@pytest.fixture
def member():
    """Starts a process that joins a group as each rank that it is told, and says what it gets, and why that ends."""
    started = []

    def start(rendezvous):
        command = [sys.executable, "-c", MEMBER, rendezvous]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_processes_meet_again_after_one_was_killed_and_with_a_new_one(member):
    rendezvous = f"127.0.0.1:{free_port()}"
    stays, dies = member(rendezvous), member(rendezvous)

    def meet(others, generation):
        size = len(others) + 1
        for rank, process in enumerate(others, 1):
            process.stdin.write(f"{rank} {size} {generation}\n")
            process.stdin.flush()
        group = grpcxx.Group(0, size, rendezvous, generation=generation)
        wanted = sum(range(1, size + 1))
        assert group.all_reduce(np.ones(3))[2] == wanted
        assert [float(process.stdout.readline()) for process in others] == [wanted] * len(others)
        return group

    group = meet([stays, dies], 0)
    dies.kill()
    with pytest.raises(grpcxx.Error, match=r"rank 2 \(127\.0\.0\.1:"):
        while True:
            group.barrier()
    group.close()
    assert stays.stdout.readline().startswith("rank 2 (127.0.0.1:")
    # Those that are left, as the next generation.
    meet([stays], 1).close()
    assert "rank 0 (" in (left := stays.stdout.readline()) and "has left the group" in left
    # With one in place of the one that is gone.
    meet([stays, member(rendezvous)], 2).close()


def test_a_rank_of_a_generation_that_is_over_is_refused():
    rendezvous = f"127.0.0.1:{free_port()}"
    errors = []

    def late():
        with pytest.raises(grpcxx.Error, match="rank 1 expects 2 ranks in generation 0, and rank 0 .* generation 1"):
            grpcxx.Group(1, 2, rendezvous)
        errors.append(True)

    thread = threading.Thread(target=late)
    thread.start()
    with pytest.raises(grpcxx.Error, match="1 of 2 ranks are missing"):
        grpcxx.Group(0, 2, rendezvous, generation=1, join_timeout=2)
    thread.join()
    assert errors

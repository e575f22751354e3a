"""Programs that end while an original sends to them: however they end, the original goes on."""

import contextlib
import signal
import subprocess
import sys
import time

import pytest

from original import OriginalClient, OriginalServer

MEGABYTE = 1 << 20

# Eight answers of 2 MiB are owed when the program ends.
PULLS = """
import grpcxx, os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
client = grpcxx.Client(sys.argv[1])
pulls = [client.pull_async(f"layer.{index}") for index in range(8)]
pulls[0].result()
print("pulled", flush=True)
"""

ENDS = {
    "the end of the program": ("", None, 0),
    "an exception": ("raise ValueError", None, 1),
    "sys.exit": ("sys.exit(3)", None, 3),
    "Ctrl-C": ("pulls[7].result()", signal.SIGINT, -signal.SIGINT),
    "SIGTERM as documented": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); os.kill(os.getpid(), signal.SIGTERM)",
        None,
        143,
    ),
    "close": ("client.close()", None, 0),
}


def run_python(program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-u", "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


@pytest.mark.parametrize("end", ENDS)
def test_an_original_is_not_cut_off_by(end):
    then, sent, code = ENDS[end]
    original = OriginalServer(2 * MEGABYTE)
    process = run_python(PULLS + then, original.address)
    assert process.stdout.readline() == "pulled\n"
    if sent:
        process.send_signal(sent)
    assert process.wait(30) == code
    original.until_left()
    assert not original.was_reset
    assert original.taken_bytes > 16 * MEGABYTE


def test_an_original_is_cut_off_by_a_program_that_is_killed():
    # What the test above is about: it would see the difference.
    original = OriginalServer(2 * MEGABYTE)
    process = run_python(PULLS + "pulls[7].result()", original.address)
    assert process.stdout.readline() == "pulled\n"
    process.kill()
    process.wait(30)
    original.until_left()
    assert original.was_reset


@pytest.mark.parametrize("end", ["", "raise ValueError", "server.close(grace=0)"])
def test_an_original_that_asks_sees_the_end_of_a_server(end):
    serves = "import grpcxx, sys; server = grpcxx.Server(); print(server.address, flush=True); sys.stdin.readline()"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", f"{serves}\n{end}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    original = OriginalClient(process.stdout.readline().strip())
    original.until_asked(10)
    process.stdin.close()
    original.until_ended()
    assert not original.was_reset
    process.wait(30)


STUCK = """
import grpcxx, signal, sys, threading, time

# Who starts tests in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
server = grpcxx.Server()

@server.register
def stuck():
    print("in", flush=True)
    {body}

client = grpcxx.Client(server.address)
threading.Thread(target=lambda: client.call("stuck", {{}}, "result"), daemon=True).start()
# Python may begin a sleep although a signal has come, and hears of it behind the sleep.
while True:
    time.sleep(0.1)
"""
SLEEPS = "time.sleep(600)"
SPINS = "\n    while True: pass"


@contextlib.contextmanager
def stuck(body):
    program = [sys.executable, "-u", "-c", STUCK.format(body=body)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "in\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("body", [SLEEPS, SPINS], ids=["sleeps", "spins"])
def test_a_function_that_does_not_end_is_told_and_left_behind(body):
    with stuck(body) as process:
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        _, log = process.communicate(timeout=60)
        assert time.monotonic() - begun > 5, "it had its grace"
        assert process.returncode == -signal.SIGINT, log
        assert "stuck still runs; Python ends in 5 s, or at once with Ctrl-C" in log
        assert "Python ends although stuck still runs" in log


@pytest.mark.parametrize("body", [SLEEPS, SPINS], ids=["sleeps", "spins"])
def test_a_second_ctrl_c_ends_at_once(body):
    with stuck(body) as process:
        process.send_signal(signal.SIGINT)
        lines = iter(process.stderr.readline, "")
        assert any("or at once with Ctrl-C" in line for line in lines)
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT
        assert "although" not in log


def test_futures_are_refused_where_gevent_has_replaced_threads():
    pytest.importorskip("gevent")
    program = """
from gevent import monkey
monkey.patch_all()
import grpcxx, numpy as np
server = grpcxx.Server()
client = grpcxx.Client(server.address)
client.push("w", np.arange(3))
assert client.pull("w").tolist() == [0, 1, 2]
try:
    client.pull_async("w")
except grpcxx.Error as error:
    print(error.code.name, error.message)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("FAILED_PRECONDITION futures need threads, and gevent has replaced them: use the method")

"""What a server lets go of may have destructors: they may use the server, and let other threads do so."""

import subprocess
import sys

import pytest

PROGRAM = """
import threading, weakref
import numpy as np
import grpcxx

server = grpcxx.Server()
seen = []

def use():
    server.push("used", 1)
    server.counters()
    seen.append("used")

def destructor():
    # As files and sockets do, it gives the interpreter to another thread.
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    use()
    {end}
    seen.append("destroyed")

class Function:
    __name__ = "function"
    def __call__(self):
        return 1

def tracked(value):
    weakref.finalize(value, destructor)
    return value

{begin}
{replaces}
server.close()
print(*seen)
"""

WAYS = {
    "a function": ("server.register(tracked(Function()))", "server.register(lambda: 2, name='function')"),
    "an array": ("server.push('x', tracked(np.zeros(100_000)))", "server.push('x', 1)"),
    "what is removed": ("server.push('x', tracked(np.zeros(100_000)))", "server.remove('x')"),
}


@pytest.mark.parametrize("end", ["pass", "server.close(grace=0)"])
@pytest.mark.parametrize("way", WAYS)
def test_a_destructor_may_use_the_server_that_lets_go_of(way, end):
    begin, replaces = WAYS[way]
    program = PROGRAM.format(begin=begin, replaces=replaces, end=end)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "used used destroyed\n"), ran.stderr

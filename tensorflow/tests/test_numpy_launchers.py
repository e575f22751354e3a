"""The launchers among the examples hold the ports that they tell to others."""

import contextlib
import importlib.util
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LISTEN = "import socket, sys; socket.create_server(('127.0.0.1', int(sys.argv[1]))).close()"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def ports_of_launch():
    module = load(EXAMPLES / "tensorflow" / "launch.py")
    with contextlib.ExitStack() as held:
        yield [int(module.free_address(held).rpartition(":")[2]) for _ in range(2)]


@contextlib.contextmanager
def ports_of_ray_job(monkeypatch):
    ray = types.SimpleNamespace(
        remote=lambda actor: actor, util=types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    rank = load(EXAMPLES / "launch" / "ray_job.py").Rank()
    _, port = rank.free_address()
    yield [port, port + 1]
    del rank


@pytest.mark.parametrize("example", ["launch", "ray_job"])
def test_a_port_goes_to_those_who_are_told_it_and_to_nobody_else(example, monkeypatch):
    chosen = ports_of_launch() if example == "launch" else ports_of_ray_job(monkeypatch)
    with chosen as ports:
        assert len(set(ports)) == 2
        for port in ports:
            # As another program that looks for a port, before and after a task has listened.
            for _ in range(2):
                with socket.socket() as other, pytest.raises(OSError):
                    other.bind(("127.0.0.1", port))
                subprocess.run([sys.executable, "-c", LISTEN, str(port)], check=True)

"""A cluster of the example launcher, with a proxy for the web that lets nobody through."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
EXAMPLES = Path(__file__).parents[2] / "examples" / "tensorflow"


class Refusing:
    """A proxy that answers as those do which allow only the web's own port, and counts who asked."""

    def __init__(self):
        self.asked = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            near, _ = self._listener.accept()
            self.asked += 1
            with near:
                near.recv(4096)
                near.sendall(b"HTTP/1.1 403 Access violation\r\nContent-Length: 0\r\n\r\n")


def test_tasks_of_one_machine_reach_each_other_beside_a_proxy():
    proxy = Refusing()
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment["http_proxy"] = proxy.url
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "launch.py", "--ps", "1", "--workers", "1", "--time-limit", "180"]
        + ["wide_and_deep.py", "--steps", "3"],
        cwd=EXAMPLES,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0 and "result {" in ran.stdout, ran.stdout[-4000:] + ran.stderr
    assert proxy.asked == 0

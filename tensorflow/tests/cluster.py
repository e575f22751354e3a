"""Clusters of real processes for the tests of the plugin.

Each task is a process of its own that runs a program of `programs/` with the cluster, its place in it and the protocol in
the environment. Programs print lines; a line that begins with `RESULT ` carries JSON.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from ports import free_ports

PROGRAMS = Path(__file__).parent / "programs"


class Task:
    """A running program."""

    def __init__(self, name, process):
        self.name = name
        self.process = process
        self.lines = []
        self._condition = threading.Condition()
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self._condition:
                self.lines.append(line.rstrip("\n"))
                self._condition.notify_all()
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def wait_for(self, text, timeout_s=120, begin=0):
        """The first line that holds `text`."""
        deadline = time.monotonic() + timeout_s
        position = begin
        with self._condition:
            while True:
                for line in self.lines[position:]:
                    if text in line:
                        return line
                position = len(self.lines)
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    raise AssertionError(f"{self.name} did not say {text!r}; its output:\n{self.output()}")
                self._condition.wait(left)

    def result(self, timeout_s=180):
        """The JSON of its RESULT line."""
        return _first_json(self.wait_for("RESULT ", timeout_s).partition("RESULT ")[2])

    def ask(self, command, timeout_s=60):
        """Sends a line to a program that serves, and returns the JSON of its answer."""
        begin = len(self.lines)
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return _first_json(self.wait_for("ANSWER ", timeout_s, begin).partition("ANSWER ")[2])

    def output(self, lines=60):
        return "\n".join(self.lines[-lines:])

    def kill(self):
        """kill -9."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Cluster:
    """Tasks on this machine: `jobs` says how many of each job."""

    def __init__(self, protocol, environment=None, network=None, host="127.0.0.1", **jobs):
        self.protocol = protocol
        self.command = network.command if network else []
        self.environment = dict(environment or {})
        ports = free_ports(sum(jobs.values()))
        self.spec = {job: [f"{host}:{ports.pop()}" for _ in range(number)] for job, number in jobs.items()}
        self.tasks = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for task in self.tasks.values():
            task.kill()

    def start(self, job, index, program="serve.py", *arguments, protocol=None, environment=None):
        """Starts one task; a task of that place that has ended is replaced."""
        variables = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="0", CUDA_VISIBLE_DEVICES="", PYTHONUNBUFFERED="1")
        variables.update(TF_USE_LEGACY_KERAS="0", TF_ENABLE_ONEDNN_OPTS="0")
        variables.update(self.environment)
        variables.update(environment or {})
        variables["TEST_TASK"] = json.dumps(
            {"cluster": self.spec, "job": job, "index": index, "protocol": protocol or self.protocol}
        )
        process = subprocess.Popen(
            [*self.command, sys.executable, str(PROGRAMS / program), *map(str, arguments)],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        task = Task(f"{job} {index}", process)
        self.tasks[job, index] = task
        return task

    def start_extra(self, job, program, *arguments):
        """Starts a task that is not part of the cluster's description."""
        return self.start(job, 0, program, *arguments)

    def serve(self, *jobs, **options):
        """Starts `serve.py` for all tasks of these jobs, and waits until they serve."""
        started = [self.start(job, index, **options) for job in jobs for index in range(len(self.spec[job]))]
        for task in started:
            task.wait_for("READY")
        return started


class Network:
    """A loopback network with names of its own. It can be cut: nothing gets through until it is mended."""

    def __init__(self):
        self._names = {}
        self._hosts = tempfile.NamedTemporaryFile("w", prefix="hosts")
        self._hosts.write("127.0.0.1 localhost\n")
        self._hosts.flush()
        begin = f"mount --bind {self._hosts.name} /etc/hosts && ip link set lo up && echo up && exec cat"
        self.keeper = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", begin],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = self.keeper.stdout.readline().strip()
        self.reason = "" if said == "up" else f"no network of its own can be made here: {said}"
        namespaces = f"/proc/{self.keeper.pid}/ns"
        self.command = ["nsenter", f"--net={namespaces}/net", f"--mount={namespaces}/mnt"]

    def cut(self):
        subprocess.run([*self.command, "ip", "link", "set", "lo", "down"], check=True)

    def mend(self):
        subprocess.run([*self.command, "ip", "link", "set", "lo", "up"], check=True)

    def name(self, name, address):
        """Gives a name an address that nobody else has; the address that it had is gone."""
        before = self._names.pop(name, None)
        if before:
            subprocess.run([*self.command, "ip", "address", "del", before, "dev", "lo"], check=True)
        subprocess.run([*self.command, "ip", "address", "add", address, "dev", "lo"], check=True)
        self._names[name] = address
        self._hosts.seek(0)
        self._hosts.truncate()
        self._hosts.write("127.0.0.1 localhost\n" + "".join(f"{at} {one}\n" for one, at in self._names.items()))
        self._hosts.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.keeper.kill()
        self.keeper.wait()
        self._hosts.close()


def _first_json(text):
    """The value that a text begins with: a line of a log may stand behind it."""
    return json.JSONDecoder().raw_decode(text)[0]

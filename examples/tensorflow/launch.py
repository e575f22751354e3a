"""Starts a training script as a cluster of processes on this machine, on free ports.

    python launch.py --protocol grpc++ wide_and_deep.py --steps 200
    python launch.py --protocol grpc --protocol grpc++ wide_and_deep.py

Each process gets its task in TF_CONFIG and `--protocol` as an argument; what follows the script goes to it as it is.
The ps tasks are stopped when all workers have ended. With several protocols the script runs once for each, and the
losses in the lines `result {...}` of the first worker must be the same.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

LOOPBACK = "127.0.0.1"


def main():
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = []
    for protocol in options.protocol or ["grpc++"]:
        result = run_cluster(options, protocol)
        if result is not None:
            results.append(result)
    if len(results) > 1:
        compare(results)


def run_cluster(options, protocol):
    """Runs one cluster to its end; returns the result that the first worker printed, if it printed one."""
    cluster = {"ps": options.ps, "worker": options.workers}
    with contextlib.ExitStack() as ports:
        addresses = {job: [free_address(ports) for _ in range(count)] for job, count in cluster.items()}
        tasks = []
        try:
            for job, count in cluster.items():
                for index in range(count):
                    tasks.append(Task(options, protocol, addresses, job, index))
            wait_for_workers(tasks, time.monotonic() + options.time_limit)
        finally:
            for task in tasks:
                task.stop()
    return next((task.result for task in tasks if task.result is not None), None)


class Task:
    """One process of the cluster, and the thread that repeats what it prints."""

    def __init__(self, options, protocol, addresses, job, index):
        self.job = job
        self.name = f"{job}:{index}"
        self.result = None
        config = json.dumps({"cluster": addresses, "task": {"type": job, "index": index}})
        self.process = subprocess.Popen(
            [sys.executable, "-u", options.script, *options.arguments, "--protocol", protocol],
            env={**os.environ, **without_proxy(), "TF_CONFIG": config},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.reader = threading.Thread(target=self.repeat_output, daemon=True)
        self.reader.start()

    def repeat_output(self):
        for line in self.process.stdout:
            print(f"[{self.name}] {line}", end="", flush=True)
            if line.startswith("result "):
                self.result = json.loads(line.removeprefix("result "))

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(timeout=5)


def without_proxy():
    """Variables with which TensorFlow's gRPC does not dial tasks of this machine through a proxy for the web."""
    name = "no_grpc_proxy" if os.environ.get("no_grpc_proxy") else "no_proxy"
    hosts = [host for host in os.environ.get(name, "").split(",") if host]
    return {name: ",".join([*hosts, LOOPBACK])}


def wait_for_workers(tasks, deadline):
    """Returns when all workers have ended well; ends the program if a task failed or time is up."""
    while True:
        for task in tasks:
            code = task.process.poll()
            if code is not None and (code != 0 or task.job == "ps"):
                task.reader.join(timeout=5)
                sys.exit(f"{task.name} ended with code {code}")
        if all(task.process.poll() == 0 for task in tasks if task.job != "ps"):
            return
        if time.monotonic() > deadline:
            sys.exit("the time limit has passed; see --time-limit")
        time.sleep(0.05)


def free_address(ports):
    """An address on a free port, which nobody else is given until `ports` is closed.

    A socket stays bound to it and does not listen. Servers listen there meanwhile, since they allow that an address is
    used again; the system passes the port over.
    """
    held = ports.enter_context(socket.socket())
    held.bind((LOOPBACK, 0))
    # Allowed before, it would share the port with another that is held like this.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return f"{LOOPBACK}:{held.getsockname()[1]}"


def compare(results):
    first = results[0]
    for result in results:
        ratio = result["steps_per_second"] / first["steps_per_second"]
        print(
            f"{result['protocol']:8} {result['steps_per_second']:8.2f} steps/s"
            f"  {ratio:5.2f} x {first['protocol']}  loss {result['loss']!r}"
        )
    if any(result["loss"] != first["loss"] for result in results):
        sys.exit("the losses differ")
    print("the losses are the same")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", action="append", help="grpc or grpc++ (the default); repeat it to compare")
    parser.add_argument("--ps", type=int, default=2, help="number of ps tasks")
    parser.add_argument("--workers", type=int, default=2, help="number of workers")
    parser.add_argument("--time-limit", type=float, default=600, help="seconds after which a run is given up")
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script gets")
    return parser.parse_args()


if __name__ == "__main__":
    main()

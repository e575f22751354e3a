#!/usr/bin/env python3
"""How fast does a whole job train over grpc++, compared with TensorFlow's own gRPC?

    python tensorflow/bench/job.py [--model dlrm wide_and_deep] [--workers 2 4 8] [--network shm namespaces]
                                   [--steps 50] [--rounds 4]

Two ps and some workers, each a process. `dlrm` has 26 tables and trains without waiting for other workers;
`wide_and_deep` is examples/tensorflow/wide_and_deep.py, whose workers go in step. On the network `shm` all tasks share
the loopback, so grpc++ takes shared memory and gRPC the loopback's TCP; on `namespaces` (as root) each task has a network
namespace of its own behind a bridge, so both take TCP over veth.

gRPC, grpc++ without graph fusion and grpc++ have jobs of their own, which are alive together and take turns. Prints steps
per second of all workers, CPU milliseconds per step of all processes, the 99th percentile of a step, and how much of the
CPUs the job used: near 100 % compute is the limit, not communication.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import cluster as processes

HERE = Path(__file__).parent
SIDES = (
    ("grpc", "grpc", {}),
    ("grpc++ without packs", "grpc++", {"GRPCXX_GRAPH_FUSION": "off"}),
    ("grpc++", "grpc++", {}),
)
PS = 2


class Namespaces:
    """A bridge, and network namespaces on it. They are gone with the processes that hold them."""

    def __init__(self, number):
        self.keepers = [self.keeper() for _ in range(number + 1)]
        self.hub, *self.hosts = self.keepers
        self.inside(self.hub, "ip link add bridge type bridge && ip link set bridge up && ip link set lo up")
        for index, host in enumerate(self.hosts):
            link = f"ip link add host{index} type veth peer name eth0 netns {host.pid}"
            self.inside(self.hub, f"{link} && ip link set host{index} master bridge up")
            up = f"ip address add {self.address(index)}/24 dev eth0 && ip link set eth0 up && ip link set lo up"
            self.inside(host, up)

    @staticmethod
    def keeper():
        command = ["unshare", "--net", "sh", "-c", "echo up && exec cat"]
        keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if keeper.stdout.readline().strip() != "up":
            raise SystemExit("network namespaces cannot be made here: run as root, or with --network shm")
        return keeper

    @staticmethod
    def address(index):
        return f"10.77.0.{index + 1}"

    @staticmethod
    def command(keeper):
        return ["nsenter", f"--net=/proc/{keeper.pid}/ns/net"]

    def inside(self, keeper, script):
        subprocess.run([*self.command(keeper), "sh", "-c", script], check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for keeper in self.keepers:
            keeper.kill()
            keeper.wait()


class Job:
    """The processes of one side."""

    def __init__(self, side, model, workers, namespaces):
        self.name, protocol, environment = side
        self.cluster = processes.Cluster(protocol, environment, ps=PS, worker=workers)
        places = [(job, index) for job, addresses in self.cluster.spec.items() for index in range(len(addresses))]
        if namespaces:
            for host, (job, index) in enumerate(places):
                port = self.cluster.spec[job][index].rpartition(":")[2]
                self.cluster.spec[job][index] = f"{namespaces.address(host)}:{port}"
        self.workers = []
        for host, (job, index) in enumerate(places):
            self.cluster.command = namespaces.command(namespaces.hosts[host]) if namespaces else []
            task = self.cluster.start(job, index, str(HERE / "job_task.py"), model)
            if job == "worker":
                self.workers.append(task)
        for task in self.cluster.tasks.values():
            task.wait_for("READY", timeout_s=600)

    def round(self, steps):
        """Steps per second, CPU milliseconds per step, seconds of each step, and the share of the CPUs."""
        cpu, begin = self.cpu(), time.perf_counter()
        with ThreadPoolExecutor(len(self.workers)) as threads:
            asked = [threads.submit(worker.ask, f"run {steps}", 600) for worker in self.workers]
            took = [second for one in asked for second in one.result()]
        elapsed, cpu = time.perf_counter() - begin, self.cpu() - cpu
        return len(took) / elapsed, 1000 * cpu / len(took), took, cpu / elapsed / os.cpu_count()

    def cpu(self):
        return sum(task.ask("cpu") for task in self.cluster.tasks.values())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cluster.__exit__()


def measure(model, workers, network, steps, rounds):
    """What each side did in its rounds."""
    found = {side[0]: [] for side in SIDES}
    with contextlib.ExitStack() as stack:
        jobs = []
        for side in SIDES:
            print(f"{model}, {workers} workers, {network}: starts {side[0]}", file=sys.stderr, flush=True)
            namespaces = stack.enter_context(Namespaces(PS + workers)) if network == "namespaces" else None
            jobs.append(stack.enter_context(Job(side, model, workers, namespaces)))
        for job in jobs:
            job.round(max(2, steps // 10))
        for number in range(rounds):
            print(f"{model}, {workers} workers, {network}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for job in jobs if number % 2 == 0 else jobs[::-1]:
                found[job.name].append(job.round(steps))
    return found


def rows(label, found):
    """Lines of the table; ratios are medians over rounds that are neighbours in time."""
    for name, rounds in found.items():
        rate, cpu_ms, share = (statistics.median(one[field] for one in rounds) for field in (0, 1, 3))
        p99 = statistics.quantiles([second for one in rounds for second in one[2]], n=100)[98]
        ratio = statistics.median(one[0] / other[0] for one, other in zip(rounds, found["grpc"]))
        yield f"| {label} | {name} | {rate:.1f} | {ratio:.2f} | {cpu_ms:.1f} | {1000 * p99:.0f} | {100 * share:.0f} % |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=["dlrm", "wide_and_deep"], choices=["dlrm", "wide_and_deep"])
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--network", nargs="+", default=["shm", "namespaces"], choices=["shm", "namespaces"])
    parser.add_argument("--steps", type=int, default=50, help="of each worker in a round")
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start")
    print("| job | over | steps/s | times gRPC | CPU ms/step | p99 of a step, ms | of all CPUs |")
    print("|---|---|---:|---:|---:|---:|---:|", flush=True)
    for model in arguments.model:
        for network in arguments.network:
            for workers in arguments.workers:
                found = measure(model, workers, network, arguments.steps, arguments.rounds)
                for row in rows(f"{model}, {workers} workers, {network}", found):
                    print(row, flush=True)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()

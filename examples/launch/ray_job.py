"""Runs a command once in each process of a Ray job, as ranks that `grpcxx launch` lets find each other.

    python examples/launch/ray_job.py --processes 4 -- grpcxx launch --ps 1 -- python train.py

Ray tells no ranks to plain actors, so this program gives each its rank and the host of rank 0, under the names that
Ray Train uses.
"""

import argparse
import os
import socket
import subprocess
import sys

import ray

ATTEMPTS = 100


@ray.remote
class Rank:
    def free_address(self):
        """The host of this rank, and a port: it and the next one, that of the rendezvous, go to nobody else."""
        self.held = hold_two_ports()
        return ray.util.get_node_ip_address(), self.held[0].getsockname()[1]

    def run(self, command, variables):
        done = subprocess.run(
            command, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        return done.returncode, done.stdout.decode(errors="replace")


def hold_two_ports():
    """Sockets on a port and on the next one, which the system gives to nobody else while they are there.

    They do not listen. Who is told a port listens there meanwhile, if it allows that an address is used again.
    """
    for _ in range(ATTEMPTS):
        first, second = socket.socket(), socket.socket()
        try:
            first.bind(("", 0))
            second.bind(("", first.getsockname()[1] + 1))
        except (OSError, OverflowError):
            first.close()
            second.close()
            continue
        for held in (first, second):
            # Allowed before, it would share the port with another that is held like this.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return first, second
    raise OSError(f"{ATTEMPTS} times the port after a free one was taken; are all ports of this host in use?")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--cpus", type=float, default=0, help="CPUs that Ray sets aside for each process")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    # Under `ray job submit` the cluster is there; elsewhere Ray starts one on this host.
    ray.init(log_to_driver=False, include_dashboard=False)
    ranks = [Rank.options(num_cpus=options.cpus).remote() for _ in range(options.processes)]
    host, port = ray.get(ranks[0].free_address.remote())
    runs = [
        rank.run.remote(
            options.command,
            {
                "RANK": str(index),
                "WORLD_SIZE": str(options.processes),
                "MASTER_ADDR": host,
                "MASTER_PORT": str(port),
                "PATH": os.environ["PATH"],
            },
        )
        for index, rank in enumerate(ranks)
    ]
    worst = 0
    for code, output in ray.get(runs):
        sys.stdout.write(output)
        worst = max(worst, code)
    sys.exit(worst)


if __name__ == "__main__":
    main()

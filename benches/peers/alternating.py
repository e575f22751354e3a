"""What the comparisons of example programs with the same server over tonic share: building, serving, measuring in
alternating rounds. A server that spins keeps its CPU while others wait for one: on a busy machine compare CPU, not time.
"""

import argparse
import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TONIC = ROOT / "benches" / "peers" / "tonic"
BUILT = ROOT / "target" / "peers" / "tonic"


def parser(description):
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--seconds", type=float, default=3, help="of each measurement")
    made.add_argument("--tcp", action="store_true", help="without shared memory, which is what grpcxx takes on one host")
    made.add_argument("--debug", action="store_true", help="programs as tests have built them")
    return made


def build(options, package, program):
    """Both programs, ours and that over tonic."""
    if options.tcp:
        os.environ["GRPCXX_SHM"] = "off"
    profile = [] if options.debug else ["--release"]
    folder = "debug" if options.debug else "release"
    subprocess.run(["cargo", "build", *profile, "-p", package], cwd=ROOT, check=True)
    subprocess.run(["cargo", "build", *profile, "--target-dir", BUILT], cwd=TONIC, check=True)
    return ROOT / "target" / folder / program, BUILT / folder / "peer-tonic"


class Server:
    """A server that says where it listens when it is ready."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().split("star=")[1].split()[0]

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def measured(self, command):
        """What a client prints, and the CPU time of the server meanwhile."""
        before = self.cpu_seconds()
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        return result, self.cpu_seconds() - before


@contextmanager
def serving(*commands):
    servers = []
    try:
        for command in commands:
            servers.append(Server(command))
        yield servers
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait()

#!/usr/bin/env python3
"""How fast is TensorFlow over grpc++, compared with its own gRPC?

    python tensorflow/bench/speed.py [CASE ...] [--rounds 5] [--seconds 2]

For each case both protocols have a cluster of their own, and the rounds alternate between them, so that whatever else the
machine does meets both. Prints steps per second and CPU milliseconds per step (all processes of the cluster), medians
over the rounds, and the ratios.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import cluster as processes

HERE = Path(__file__).parent
MIB = 1 << 20

# name: jobs, arguments of task.py, least ratio of steps/s
CASES = {
    "read 1000 x 1 KB": ({"ps": 1, "worker": 1}, ("read", 1000, 1024), 5.0),
    "read 1 x 256 MB": ({"ps": 1, "worker": 1}, ("read", 1, 256 * MIB), 3.0),
    "push 1 x 256 MB": ({"ps": 1, "worker": 1}, ("push", 1, 256 * MIB), 3.0),
    "read 32 x 1 MB": ({"ps": 1, "worker": 1}, ("read", 32, MIB), 2.5),
    "all-reduce 2 x 16.8 MB": ({"worker": 2}, ("reduce", 2, 16_800_000), 3.0),
    "read 1 x 1 KB": ({"ps": 1, "worker": 1}, ("read", 1, 1024), None),
    "read 10 x 1 KB": ({"ps": 1, "worker": 1}, ("read", 10, 1024), None),
    "read 100 x 1 KB": ({"ps": 1, "worker": 1}, ("read", 100, 1024), None),
    "read 10000 x 1 KB": ({"ps": 1, "worker": 1}, ("read", 10000, 1024), None),
    "push 1000 x 1 KB": ({"ps": 1, "worker": 1}, ("push", 1000, 1024), None),
    "no network, 1000 x 1 KB": ({"ps": 1, "worker": 1}, ("local", 1000, 1024), None),
}


class Side:
    """The cluster of one protocol, or of one setting of it."""

    def __init__(self, name, protocol, environment, jobs, arguments):
        self.name = name
        self.cluster = processes.Cluster(protocol, environment, **jobs)
        self.rates, self.cpu_ms = [], []
        program = str(HERE / "task.py")
        leader = ("worker", 0)
        others = [(job, index) for job, number in jobs.items() for index in range(number) if (job, index) != leader]
        tasks = [self.cluster.start(*place, program) for place in others]
        for task in tasks:
            task.wait_for("READY")
        self.leader = self.cluster.start(*leader, program, *arguments)
        self.leader.wait_for("READY", timeout_s=300)

    def round(self, seconds):
        before = self.cpu()
        done = self.leader.ask(f"run {seconds}", timeout_s=60 + 20 * seconds)
        used = self.cpu() - before
        self.rates.append(done["steps"] / done["seconds"])
        self.cpu_ms.append(1000 * used / done["steps"])

    def cpu(self):
        return sum(task.ask("cpu") for task in self.cluster.tasks.values())

    def __exit__(self, *_):
        self.cluster.__exit__()

    def __enter__(self):
        return self


def measure(name, sides, rounds, seconds):
    """Runs all sides in turn; returns their medians."""
    for round_number in range(rounds):
        order = sides if round_number % 2 == 0 else sides[::-1]
        for side in order:
            side.round(seconds)
    return {
        side.name: {
            "steps_per_s": statistics.median(side.rates),
            "cpu_ms_per_step": statistics.median(side.cpu_ms),
            "all_steps_per_s": [round(rate, 2) for rate in side.rates],
        }
        for side in sides
    }


def variants(text):
    """`name:VARIABLE=value,VARIABLE=value` as a name and an environment."""
    name, _, settings = text.partition(":")
    return name, dict(setting.split("=", 1) for setting in settings.split(",") if setting)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; by default those with a wanted ratio")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:VARIABLE=VALUE,...",
                        help="one more side over grpc++ with these variables")
    parser.add_argument("--json", type=Path, help="where to write all numbers")
    arguments = parser.parse_args()
    names = arguments.cases or [name for name, case in CASES.items() if case[2] is not None]
    everything = {}
    print("| case | grpc, steps/s | grpc++, steps/s | ratio | CPU ms/step, grpc -> grpc++ | ratio |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in names:
        jobs, task_arguments, wanted = CASES[name]
        wishes = [("grpc", "grpc", {}), ("grpc++", "grpc++", {})]
        wishes += [(variant, "grpc++", settings) for variant, settings in map(variants, arguments.variant)]
        sides = []
        try:
            for side_name, protocol, settings in wishes:
                sides.append(Side(side_name, protocol, settings, jobs, task_arguments))
            found = measure(name, sides, arguments.rounds, arguments.seconds)
        finally:
            for side in sides:
                side.__exit__()
        everything[name] = found
        base = found["grpc"]
        for side_name in [wish[0] for wish in wishes[1:]]:
            side = found[side_name]
            rate = side["steps_per_s"] / base["steps_per_s"]
            cpu = side["cpu_ms_per_step"] / base["cpu_ms_per_step"]
            label = name if side_name == "grpc++" else f"{name}, {side_name}"
            target = "" if wanted is None else f" (wanted {wanted})"
            print(
                f"| {label} | {base['steps_per_s']:.1f} | {side['steps_per_s']:.1f} | {rate:.1f}{target} |"
                f" {base['cpu_ms_per_step']:.1f} -> {side['cpu_ms_per_step']:.1f} | {cpu:.2f} |",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()

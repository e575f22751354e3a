#!/usr/bin/env python3
"""How fast is TensorFlow over grpc++, compared with its own gRPC?

    python tensorflow/bench/speed.py [CASE ...] [--clusters 5] [--rounds 2] [--seconds 2]

For each case both protocols have clusters of their own, and the rounds alternate between them, so that whatever else the
machine does meets both. How fast a cluster is depends on where the memory and threads of its processes happen to lie, and
stays so for its life: so there are several of each protocol, one after the other. Prints steps per second and CPU
milliseconds per step (all processes of the cluster), medians over all rounds, and the ratios. Ends with an error where
grpc++ is not as much faster as it is wanted to be.
"""

import argparse
import contextlib
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
    "read 1000 x 1 KB": ({"ps": 1, "worker": 1}, ("read", 1000, 1024), 25.0),
    "read 1 x 256 MB": ({"ps": 1, "worker": 1}, ("read", 1, 256 * MIB), 3.0),
    "push 1 x 256 MB": ({"ps": 1, "worker": 1}, ("push", 1, 256 * MIB), 3.0),
    "read 32 x 1 MB": ({"ps": 1, "worker": 1}, ("read", 32, MIB), 2.5),
    "all-reduce 2 x 16.8 MB": ({"worker": 2}, ("reduce", 2, 16_800_000), 3.0),
    "read 1 x 1 KB": ({"ps": 1, "worker": 1}, ("read", 1, 1024), None),
    "read 10 x 1 KB": ({"ps": 1, "worker": 1}, ("read", 10, 1024), None),
    "read 100 x 1 KB": ({"ps": 1, "worker": 1}, ("read", 100, 1024), 5.0),
    "read 10000 x 1 KB": ({"ps": 1, "worker": 1}, ("read", 10000, 1024), None),
    "push 1000 x 1 KB": ({"ps": 1, "worker": 1}, ("push", 1000, 1024), 12.0),
    "strategy of 300 variables": ({"ps": 1, "worker": 1, "chief": 1}, (300, 1024), 2.0),
    "no network, 1000 x 1 KB": ({"ps": 1, "worker": 1}, ("local", 1000, 1024), None),
}


class Side:
    """The cluster of one protocol, or of one setting of it."""

    def __init__(self, name, protocol, environment, jobs, arguments):
        self.name = name
        self.cluster = processes.Cluster(protocol, environment, **jobs)
        program = str(HERE / "task.py")
        leader = ("chief" if "chief" in jobs else "worker", 0)
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
        return done["steps"] / done["seconds"], 1000 * used / done["steps"]

    def cpu(self):
        return sum(task.ask("cpu") for task in self.cluster.tasks.values())

    def __exit__(self, *_):
        self.cluster.__exit__()

    def __enter__(self):
        return self


def measure(wishes, case, clusters, rounds, seconds):
    """Runs clusters of all sides, which take turns; returns the medians of each side."""
    jobs, task_arguments, _ = case
    found = {name: [] for name, *_ in wishes}
    for cluster_number in range(clusters):
        order = wishes if cluster_number % 2 == 0 else wishes[::-1]
        with contextlib.ExitStack() as stack:
            sides = [stack.enter_context(Side(*wish, jobs, task_arguments)) for wish in order]
            for round_number in range(rounds):
                for side in sides if round_number % 2 == 0 else sides[::-1]:
                    found[side.name].append(side.round(seconds))
    return {
        name: {
            "steps_per_s": statistics.median(rate for rate, _ in results),
            "cpu_ms_per_step": statistics.median(cpu_ms for _, cpu_ms in results),
            "all_steps_per_s": [round(rate, 2) for rate, _ in results],
        }
        for name, results in found.items()
    }


def variants(text):
    """`name:VARIABLE=value,VARIABLE=value` as a name and an environment."""
    name, _, settings = text.partition(":")
    return name, dict(setting.split("=", 1) for setting in settings.split(",") if setting)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; by default those with a wanted ratio")
    parser.add_argument("--clusters", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2, help="of each cluster")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:VARIABLE=VALUE,...",
                        help="one more side over grpc++ with these variables")
    parser.add_argument("--json", type=Path, help="where to write all numbers")
    arguments = parser.parse_args()
    names = arguments.cases or [name for name, case in CASES.items() if case[2] is not None]
    everything, missed = {}, []
    print("| case | grpc, steps/s | grpc++, steps/s | ratio | CPU ms/step, grpc -> grpc++ | ratio |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in names:
        wanted = CASES[name][-1]
        wishes = [("grpc", "grpc", {}), ("grpc++", "grpc++", {})]
        wishes += [(variant, "grpc++", settings) for variant, settings in map(variants, arguments.variant)]
        found = measure(wishes, CASES[name], arguments.clusters, arguments.rounds, arguments.seconds)
        everything[name] = found
        base = found["grpc"]
        for side_name in [wish[0] for wish in wishes[1:]]:
            side = found[side_name]
            rate = side["steps_per_s"] / base["steps_per_s"]
            cpu = side["cpu_ms_per_step"] / base["cpu_ms_per_step"]
            label = name if side_name == "grpc++" else f"{name}, {side_name}"
            if side_name == "grpc++" and wanted is not None and rate < wanted:
                missed.append(f"{name}: {rate:.1f}, not {wanted}")
            target = "" if wanted is None else f" (wanted {wanted})"
            print(
                f"| {label} | {base['steps_per_s']:.1f} | {side['steps_per_s']:.1f} | {rate:.1f}{target} |"
                f" {base['cpu_ms_per_step']:.1f} -> {side['cpu_ms_per_step']:.1f} | {cpu:.2f} |",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))
    if missed:
        sys.exit("less than is wanted: " + "; ".join(missed))


if __name__ == "__main__":
    main()

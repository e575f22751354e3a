#!/usr/bin/env python3
"""What do packs change, at which numbers and sizes of tensors?

    python tensorflow/bench/graph_fusion.py [CASE ...] [--clusters 2] [--rounds 6] [--seconds 0.4]

A case is `read NUMBER SIZE` or `push NUMBER SIZE`, such as `read 100 1024`; the size 0 mixes sizes. Two clusters, with
`GRPCXX_GRAPH_FUSION` at `auto` and at `off`, run all cases side by side and take turns. Prints medians of steps per
second, and median and quartiles of the ratios of neighbouring rounds. Ends with an error where packs cost more than 3 %.
"""

import argparse
import contextlib
import statistics
import sys

from speed import Side

SETTINGS = ("auto", "off")
# The least median of the ratios: packs cost no case more than this.
RATIO_MIN = 0.97
NUMBERS_OF_SIZE = {
    64: (1, 3, 10, 100, 1000),
    1024: (1, 3, 10, 32, 100, 1000),
    8192: (3, 10, 100, 1000),
    32768: (3, 10, 100),
    65536: (10, 100),
    1 << 20: (1, 32),
    0: (10, 100, 300),
}
JOBS = {"ps": 1, "worker": 1}


def all_cases():
    for way in ("read", "push"):
        for size, numbers in NUMBERS_OF_SIZE.items():
            yield from (f"{way} {number} {size}" for number in numbers)


def measure(sides, case, rounds, seconds):
    """Pairs of steps per second, with packs and without."""
    for side in sides:
        side.leader.ask(f"case {case}", timeout_s=300)
    pairs = []
    for number in range(rounds):
        order = sides if number % 2 == 0 else sides[::-1]
        rates = {side.name: side.round(seconds)[0] for side in order}
        pairs.append(tuple(rates[name] for name in SETTINGS))
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="by default a sweep over numbers and sizes")
    parser.add_argument("--clusters", type=int, default=2, help="of each setting, one after the other")
    parser.add_argument("--rounds", type=int, default=6, help="of each cluster")
    parser.add_argument("--seconds", type=float, default=0.4)
    arguments = parser.parse_args()
    cases = arguments.cases or list(all_cases())
    pairs = {case: [] for case in cases}
    for _ in range(arguments.clusters):
        with contextlib.ExitStack() as stack:
            sides = [
                stack.enter_context(Side(name, "grpc++", {"GRPCXX_GRAPH_FUSION": name}, JOBS, cases[0].split()))
                for name in SETTINGS
            ]
            for case in cases:
                pairs[case] += measure(sides, case, arguments.rounds, arguments.seconds)
    print("| case | with packs, steps/s | without | median of the ratios | quartiles |\n|---|---:|---:|---:|---|")
    slower = []
    for case, found in pairs.items():
        fused, plain = (statistics.median(rates) for rates in zip(*found))
        ratios = [one / other for one, other in found]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| {case} | {fused:.0f} | {plain:.0f} | {middle:.2f} | {low:.2f}, {high:.2f} |")
        if middle < RATIO_MIN:
            slower.append(f"{case}: {middle:.3f}")
    if slower:
        sys.exit(f"packs make these slower than {RATIO_MIN} of what they were: " + "; ".join(slower))


if __name__ == "__main__":
    main()

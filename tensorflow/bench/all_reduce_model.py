"""How long an all_reduce takes with more ranks than this machine has CPUs: a model, fitted to what is measured here.

    python tensorflow/bench/all_reduce_model.py --ranks 2 4 8 --plot all-reduce.svg
    python tensorflow/bench/all_reduce_model.py --ranks 2 4 8 --gigabits 100 --latency-us 10     # on a network

Ranks of this host combine NumPy arrays of float32 over TCP, and must have a CPU each. The model knows the ways of
docs/collectives.md, and what three things cost: `alpha`, the way of a message in microseconds; `o`, the work of a rank
for each message that it sends and takes, in microseconds; `beta`, the time of a byte that a rank sends and takes, in
nanoseconds. Where the ranks are on hosts of their own, `--gigabits` and `--latency-us` say what the network does; what
is slower then counts, that or what was measured. Ranks that keep each other waiting are not in the model, nor are
switches that are too slow for all at once.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile

import numpy as np

SIZES = (64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
RANKS_BEYOND = (8, 16, 32, 64, 256, 1024)
# Which way is taken; see docs/collectives.md.
DIRECT_RANKS_MAX = 32
EXCHANGE_BYTES_MAX, EXCHANGE_BYTES_OF_ALL_MAX = 32 << 10, 256 << 10
RING_BYTES_OF_RANK_MIN = 12 << 10
PIECE_BYTES = 256 << 10


def main():
    options = parse_options()
    if options.measure:
        return measure(*options.measure)
    if max(options.ranks) > len(os.sched_getaffinity(0)):
        print("more ranks than CPUs: they take turns, and the model fits badly", file=sys.stderr)
    measured = {}
    for ranks in options.ranks:
        rounds = [times_of(ranks) for _ in range(options.rounds)]
        for size in SIZES:
            measured[ranks, size] = statistics.median(times[size] for times in rounds)
    costs = fitted(measured)
    alpha, o, beta = costs
    print(f"alpha {alpha:.1f} us, o {o:.1f} us, beta {beta:.3f} ns\n")
    print("| ranks | bytes | measured, us | model, us | model to measured |\n|---:|---:|---:|---:|---:|")
    for (ranks, size), time in measured.items():
        model = modelled(costs, ranks, size)
        print(f"| {ranks} | {size} | {time:.0f} | {model:.0f} | {model / time:.2f} |")
    if options.gigabits:
        costs = max(alpha, options.latency_us), o, max(beta, 8 / options.gigabits)
    print("\n| model, us | " + " | ".join(f"{ranks} ranks" for ranks in RANKS_BEYOND) + " |")
    print("|---:|" + "---:|" * len(RANKS_BEYOND))
    for size in SIZES:
        print(f"| {size} | " + " | ".join(f"{modelled(costs, ranks, size):.0f}" for ranks in RANKS_BEYOND) + " |")
    if options.plot:
        plot(measured, costs, options.plot)


def parts(ranks, size):
    """How many messages are on the way one after the other, how many a rank works for, and how many bytes."""
    others = ranks - 1
    pieces = math.ceil(size / ranks / PIECE_BYTES)
    if ranks > DIRECT_RANKS_MAX and size < RING_BYTES_OF_RANK_MIN * ranks:
        levels = math.ceil(math.log2(ranks))
        return 2 * levels, 2 * levels, 2 * levels * size
    spread = 2 * others / ranks * size
    if ranks > DIRECT_RANKS_MAX:
        return 2 * others, 2 * others * pieces, spread
    if size <= EXCHANGE_BYTES_MAX and size * others <= EXCHANGE_BYTES_OF_ALL_MAX:
        return 1, others, others * size
    return 2, 2 * others * pieces, spread


def modelled(costs, ranks, size):
    """Microseconds of an all_reduce."""
    alpha, o, beta = costs
    ways, messages, sent_bytes = parts(ranks, size)
    return ways * alpha + messages * o + sent_bytes * beta / 1000


def fitted(measured):
    """The costs with the least sum of squares of relative errors."""
    rows, ones = [], []
    for (ranks, size), time in measured.items():
        ways, messages, sent_bytes = parts(ranks, size)
        rows.append([ways / time, messages / time, sent_bytes / 1000 / time])
        ones.append(1.0)
    found, *_ = np.linalg.lstsq(np.array(rows), np.array(ones), rcond=None)
    return tuple(max(0.0, float(cost)) for cost in found)


def times_of(ranks):
    """Median microseconds of rank 0, by size, from processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        told = os.path.join(folder, "times")
        command = [sys.executable, "-m", "grpcxx.parallel", "-n", str(ranks), "--shard", "none", __file__]
        environment = {**os.environ, "GRPCXX_SHM": "off"}
        done = subprocess.run([*command, "--measure", told], env=environment, stderr=subprocess.PIPE, text=True)
        if not os.path.exists(told):
            raise SystemExit(f"{done.stderr}the ranks have measured nothing")
        with open(told) as lines:
            pairs = [line.split() for line in lines]
    return {int(size): float(time) for size, time in pairs}


def measure(told):
    from collectives import measure as measure_sizes
    from grpcxx import parallel

    group = parallel.group()
    with open(told if parallel.rank() == 0 else os.devnull, "w") as sys.stdout:
        measure_sizes(lambda array, out: group.all_reduce(array, out=out), parallel.rank(), SIZES)


def plot(measured, costs, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "all_reduce", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    counts = [2 ** (step / 4) for step in range(4, 41)]
    for size in SIZES:
        (line,) = axes.plot(counts, [modelled(costs, count, size) for count in counts], linewidth=1, label=text_of(size))
        points = [(ranks, time) for (ranks, of), time in measured.items() if of == size]
        axes.plot(*zip(*points), "o", markersize=4, color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="microseconds of an all_reduce")
    axes.set_xticks([2**power for power in range(1, 11)], [str(2**power) for power in range(1, 11)])
    axes.set_title("points: measured; lines: model")
    axes.grid(alpha=0.3)
    axes.legend(title="array", fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def text_of(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="that measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabits", type=float, help="of a link of the network, in a second")
    parser.add_argument("--latency-us", type=float, default=0, help="of the network, one way")
    parser.add_argument("--plot", metavar="FILE", help="an SVG file; needs matplotlib")
    parser.add_argument("--measure", nargs=1, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

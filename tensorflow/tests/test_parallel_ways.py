"""Gradients in graphs are combined by ops of the plugin, and by functions of Python where it is not there."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.processes

WAYS = ["ops", "functions"]


def run(folder, *arguments, text=None):
    script = folder / "script.py"
    script.write_text(text or SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "grpcxx.parallel", "-n", "2", str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )


@pytest.mark.parametrize("way", WAYS)
def test_each_way_means_gradients(way, tmp_path):
    finished = run(tmp_path, way, "same")
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout.splitlines()[-1])
    means = [number + 0.5 for number in range(3)]
    assert found["means"] == [[[mean] * 3, [[mean] * 2] * 2, [mean] * 3] for mean in means]
    assert found["ops"] == (2 if way == "ops" else 0), "one for each type"


@pytest.mark.parametrize("way", WAYS)
def test_each_way_names_gradients_that_differ(way, tmp_path):
    finished = run(tmp_path, way, "differ")
    assert finished.returncode == os.EX_UNAVAILABLE, finished.stderr
    for text in ("rank 0 called all_reduce(float32 [3], mean)", "rank 1 called all_reduce(float32 [4], mean)"):
        (line,) = {line for line in finished.stderr.splitlines() if line.startswith("grpcxx.parallel: rank 0: ")}
        assert text in line


def test_ops_of_the_script_go_beside_those_of_gradients(tmp_path):
    finished = run(tmp_path, text=BESIDE)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout.splitlines()[-1]) == [4.5, 0.0, -4.5]


BESIDE = """
import json, time
import tensorflow as tf
import grpcxx.parallel, grpcxx.tensorflow

rank = grpcxx.parallel.rank()
weights = tf.Variable(tf.ones(3))

def late(tensor, seconds):
    if seconds == 0:
        return tf.identity(tensor)
    found = tf.numpy_function(lambda value: (time.sleep(seconds), value)[1], [tensor], tensor.dtype)
    found.set_shape(tensor.shape)
    return found

def slow_back(x, seconds):
    return tf.custom_gradient(lambda x: (tf.identity(x), lambda gradient: late(gradient, seconds)))(x)

# The gradients are late on rank 1, the loss on rank 0. The first step shares the variables too.
@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(slow_back(weights, 0.1 * rank) * x)
    mean = grpcxx.tensorflow.all_reduce(late(loss, 0.1 * (1 - rank)), "mean")
    weights.assign_sub(tape.gradient(loss, weights) * 2 / 3)
    return mean

found = [float(step(tf.ones(3) * (rank + 1))) for _ in range(3)]
if rank == 0:
    print(json.dumps(found))
"""

SCRIPT = """
import json, sys
if sys.argv[1] == "functions":
    import grpcxx._library
    grpcxx._library.plugin = lambda: None
import tensorflow as tf
import grpcxx.parallel

rank = grpcxx.parallel.rank()
weights = [tf.Variable(tf.zeros(3)), tf.Variable(tf.zeros((2, 2))), tf.Variable(tf.zeros(3, tf.float64))]
chosen = weights if sys.argv[2] == "same" else weights[rank : rank + 1]

@tf.function
def step(factor):
    with tf.GradientTape() as tape:
        loss = sum(tf.cast(tf.reduce_sum(weight * tf.cast(factor, weight.dtype)), tf.float32) for weight in weights)
    return tape.gradient(loss, chosen)

means = [[gradient.numpy().tolist() for gradient in step(tf.constant(float(rank + number)))] for number in range(3)]
ops = step.get_concrete_function(tf.constant(0.0)).graph.get_operations()
print(json.dumps({"means": means, "ops": sum(op.type == "GrpcxxAllReduce" for op in ops)}))
"""


@pytest.mark.parametrize("how", ["applied", "stopped", "differentiated"])
def test_gradients_that_a_tape_takes_within_another_are_told_of_once(how, tmp_path):
    finished = run(tmp_path, how, text=WITHIN)
    assert finished.returncode == 0, finished.stderr
    first, second = json.loads(finished.stdout.splitlines()[-1])
    told = finished.stderr.count("with outer.stop_recording():")
    # What one rank has applied alone is not that of the others: the line says so.
    assert (first == second, told) == {"applied": (False, 1), "stopped": (True, 0), "differentiated": (True, 1)}[how]


# A step of two networks, whose second tape ends within the first.
WITHIN = """
import contextlib, json, sys
import numpy as np
import tensorflow as tf
import grpcxx.parallel

group = grpcxx.parallel.group()
one, other = tf.Variable(1.0), tf.Variable(1.0)
for _ in range(2):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = other * other * (group.rank + 1.0)
        with outer.stop_recording() if sys.argv[1] == "stopped" else contextlib.nullcontext():
            gradient = inner.gradient(loss, other)
            if sys.argv[1] == "differentiated":
                moved = other - 0.1 * gradient
            else:
                moved = other.assign_sub(0.1 * gradient)
        last = one * moved
    one.assign_sub(outer.gradient(last, one))
print(json.dumps(group.all_gather(np.array([[float(one), float(other)]])).tolist()))
"""

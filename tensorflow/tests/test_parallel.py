"""Scripts of TensorFlow that know of one process, run as several ranks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).parent / "programs"
PAGE = Path(__file__).resolve().parents[2] / "docs/parallel.md"
BATCH = 32


def run(arguments, **environment):
    """What a command says, and its exit code."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
    )


def parallel(ranks, script, *arguments, **environment):
    return run(["-m", "grpcxx.parallel", "-n", ranks, script, *arguments], **environment)


def trained(finished):
    """What the training script has found, and the lines before it."""
    assert finished.returncode == 0, finished.stderr
    *lines, last = finished.stdout.splitlines()
    return json.loads(last), lines


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return trained(run([PROGRAMS / "parallel_train.py", BATCH, folder]))[0]


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.smoke), 4])
def test_ranks_train_as_one_process_with_the_batch_of_all(alone, ranks, tmp_path):
    found, lines = trained(parallel(ranks, PROGRAMS / "parallel_train.py", BATCH // ranks, tmp_path))
    assert lines == ["a line of every rank"], "rank 0 alone prints"
    for name, losses in alone["fit"].items():
        np.testing.assert_allclose(found["fit"][name], losses, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(found["loop"], alone["loop"], rtol=1e-5)
    np.testing.assert_allclose(found["eager"], alone["eager"], rtol=1e-4)
    assert found["steps"] == alone["steps"], "the loop that trains is divided"
    assert found["count"] == ranks * alone["count"], "the loop that counts is not"
    written = sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in written if name.startswith("log")] == ["log-0.csv"]
    assert "last.weights.h5" in written


def test_data_may_be_a_dataset_of_unknown_length_or_without_an_end(tmp_path):
    script = tmp_path / "lengths.py"
    script.write_text(LENGTHS)
    found, _ = trained(parallel(2, script))
    # Of 7 batches three pairs; 10 steps of one process are 5 of two.
    assert found == {"unknown": 3, "endless": 5, "known": 3, "whole": 7, "seen": [0, 2, 4]}


def test_variables_are_those_of_rank_0(tmp_path):
    script = tmp_path / "broadcast.py"
    script.write_text(BROADCAST)
    found, _ = trained(parallel(2, script))
    assert found == [1.0, 1.0], "rank 1 began with 2, and has the value of rank 0 after its first step"


def test_a_rank_that_dies_in_training_ends_all_and_is_named(tmp_path):
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    finished = parallel(2, script)
    assert finished.returncode == 128 + 9, finished.stderr
    assert "rank 1 ended with signal SIGKILL, so the others are stopped" in finished.stderr


@pytest.mark.skipif(not PAGE.is_file(), reason=f"{PAGE} is not here: not a checkout")
def test_the_page_begins_with_a_run_that_works(tmp_path):
    (block,) = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)[:1]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    finished = subprocess.run(
        ["bash", "-ec", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr
    assert "32 steps, loss 0.0" in finished.stdout


LENGTHS = """
import json
import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
seen, steps = [], {}

class Count(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.batches = 0
    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

def batches():
    for at in range(7):
        seen.append(at)
        yield np.full((2, 1), at, np.float32), np.zeros((2, 1), np.float32)

spec = tf.TensorSpec((None, 1), tf.float32)
unknown = tf.data.Dataset.from_generator(batches, output_signature=(spec, spec))
known = tf.data.Dataset.from_tensor_slices((np.zeros((14, 1)), np.zeros((14, 1)))).batch(2)
count = Count()
model.fit(unknown, epochs=2, callbacks=[count], verbose=0)
steps["unknown"] = count.batches
model.fit(unknown.repeat(), steps_per_epoch=10, callbacks=count, verbose=0)
steps["endless"] = count.batches
model.fit(known, epochs=2, callbacks=[count], verbose=0)
steps["known"] = count.batches
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
model.fit(known.with_options(options), callbacks=[count], verbose=0)
steps["whole"] = count.batches
mine = []
weight = tf.Variable(1.0)
for element in tf.data.Dataset.range(7):
    with tf.GradientTape() as tape:
        loss = weight * weight
    tape.gradient(loss, weight)
    mine.append(int(element))
steps["seen"] = mine
print(json.dumps(steps))
"""

BROADCAST = """
import json
import tensorflow as tf
import grpcxx.parallel

weight = tf.Variable(1.0 + grpcxx.parallel.rank())
for _ in tf.data.Dataset.range(4):
    with tf.GradientTape() as tape:
        loss = 0.0 * weight
    weight.assign_sub(tape.gradient(loss, weight))
print(json.dumps(grpcxx.parallel.group().all_gather(weight.numpy().reshape(1)).tolist()))
"""

DIES = """
import os, signal
import numpy as np
import tensorflow as tf
import grpcxx.parallel

class Die(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and grpcxx.parallel.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.zeros((64, 4)), np.zeros((64, 1)), batch_size=4, epochs=100, callbacks=[Die()], verbose=0)
"""


def test_a_loop_over_data_that_is_not_to_be_divided_gets_all_of_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import tensorflow as tf

options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
variable = tf.Variable(1.0)
optimizer = tf.keras.optimizers.SGD(0.0)
seen = []
for value in tf.data.Dataset.range(6).with_options(options):
    with tf.GradientTape() as tape:
        loss = variable * tf.cast(value, tf.float32)
    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
    seen.append(int(value))
print(seen)
"""
    )
    finished = parallel(2, script)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == ["[0, 1, 2, 3, 4, 5]"]


def test_a_checkpoint_before_the_first_gradient_is_of_rank_0_alone(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import sys
import tensorflow as tf

variable = tf.Variable(1.0)
optimizer = tf.keras.optimizers.SGD(0.5)
checkpoint = tf.train.Checkpoint(variable=variable)
checkpoint.save(sys.argv[1] + "/first")
for value in tf.data.Dataset.range(4):
    with tf.GradientTape() as tape:
        loss = variable * tf.cast(value, tf.float32)
    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
checkpoint.save(sys.argv[1] + "/last")
print(float(variable))
"""
    )
    finished = parallel(2, script, tmp_path)
    assert finished.returncode == 0, finished.stderr
    # The means of 0 and 1, and of 2 and 3.
    assert float(finished.stdout) == pytest.approx(1 - 0.5 * 0.5 - 0.5 * 2.5)

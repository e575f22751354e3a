"""Scripts of TensorFlow that know of one process, run as several ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs import parallel, run, trained

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).parent / "programs"
PAGE = Path(__file__).resolve().parents[2] / "docs/parallel.md"
BATCH = 32


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


# The one of TensorFlow, which is Keras 2 up to TensorFlow 2.15, and Keras 2 as `tf_keras` beside later ones.
KERAS = ["own", "legacy"]


def keras_environment(which):
    if which == "legacy":
        pytest.importorskip("tf_keras")
    return {"TF_USE_LEGACY_KERAS": "1" if which == "legacy" else "0"}


@pytest.mark.parametrize("keras", KERAS)
def test_batches_that_the_script_hands_to_keras_are_combined(keras, tmp_path):
    environment = keras_environment(keras)
    script = tmp_path / "script.py"
    script.write_text(ON_BATCH)
    alone, _ = trained(run([script, 8], **environment))
    found, _ = trained(parallel(2, script, 4, **environment))
    np.testing.assert_allclose(found["weights"], alone["weights"], rtol=1e-5)
    np.testing.assert_allclose(found["tested"], alone["tested"], rtol=1e-5)
    assert np.shape(found["predicted"]) == (8, 1)


@pytest.mark.parametrize("keras", KERAS)
def test_layers_adapt_to_all_data_on_each_rank(keras, tmp_path):
    environment = keras_environment(keras)
    script = tmp_path / "script.py"
    script.write_text(ADAPT)
    alone, _ = trained(run([script], **environment))
    found, _ = trained(parallel(2, script, **environment))
    assert found == alone


@pytest.mark.parametrize("keras", KERAS)
def test_what_follows_a_fit_that_has_failed_sees_all_data(keras, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FAILED_FIT)
    found, _ = trained(parallel(2, script, **keras_environment(keras)))
    assert found == [8, 8]


@pytest.mark.parametrize("keras", KERAS)
def test_training_goes_on_where_the_backup_of_rank_0_ended(keras, tmp_path):
    # Each rank has a folder of its own, as on hosts of their own, and rank 0 alone writes.
    environment = keras_environment(keras)
    script = tmp_path / "script.py"
    script.write_text(BACKUP)
    stopped = parallel(2, script, tmp_path / "two", "stop", **environment)
    assert "stops here" in stopped.stderr, stopped.stderr
    found, _ = trained(parallel(2, script, tmp_path / "two", "go on", **environment))
    whole, _ = trained(parallel(2, script, tmp_path / "whole", "go on", **environment))
    assert whole["epochs"] == list(range(5))
    assert found["epochs"] == [2, 3, 4]
    # Momentum and weights are those of the ranks that never stopped, on both.
    np.testing.assert_allclose(found["weights"], whole["weights"], rtol=1e-6)
    assert found["weights"][0] == found["weights"][1]


@pytest.mark.parametrize("keras", KERAS)
def test_a_callback_that_restores_on_rank_0_alone_restores_for_all(keras, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RESTORES)
    found, _ = trained(parallel(2, script, **keras_environment(keras)))
    # From 10, of which one step takes the gradient of (w x)^2 for x = 1.
    assert found == [[8.0], [8.0]]


@pytest.mark.parametrize("keras", KERAS)
def test_statistics_of_batches_are_means_over_all_ranks_when_they_are_used(keras, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(STATISTICS)
    found, _ = trained(parallel(2, script, tmp_path, **keras_environment(keras)))
    own, validated, kept, saved = (np.array(found[name]) for name in ("own", "validated", "kept", "saved"))
    assert (own[0] != own[1]).all(), "each rank has seen batches of its own"
    for name, values in {"in validation": validated, "after fit": kept}.items():
        np.testing.assert_allclose(values[0], own.mean(0), rtol=1e-6, err_msg=name)
        np.testing.assert_array_equal(values[0], values[1], err_msg=name)
    np.testing.assert_array_equal(saved, kept[0])


@pytest.mark.parametrize("kind", ["eager", "function"])
def test_a_loop_begins_with_what_rank_0_has_restored(kind, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LOOP_RESTORES)
    found, _ = trained(parallel(2, script, kind, tmp_path))
    assert found == [8.0, 8.0]


ON_BATCH = """
import json, sys
import numpy as np
import tensorflow as tf

batch = int(sys.argv[1])
random = np.random.RandomState(1)
x, y = random.randn(64, 3).astype(np.float32), random.randn(64, 1).astype(np.float32)
tf.keras.utils.set_random_seed(7)
model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
for features, labels in tf.data.Dataset.from_tensor_slices((x, y)).batch(batch):
    model.train_on_batch(features, labels)
found = {"weights": model.get_weights()[0].ravel().tolist()}
found["tested"] = float(np.ravel(model.test_on_batch(x, y))[0])
found["predicted"] = np.asarray(model.predict_on_batch(x[:8])).tolist()
print(json.dumps(found))
"""

ADAPT = """
import json
import numpy as np
import tensorflow as tf

random = np.random.RandomState(1)
x = random.randn(70, 3).astype(np.float32)
layer = tf.keras.layers.Normalization()
layer.adapt(tf.data.Dataset.from_tensor_slices(x).batch(10))
arrays = tf.keras.layers.Normalization()
arrays.adapt(x)
words = tf.keras.layers.TextVectorization(output_mode="int")
words.adapt(tf.data.Dataset.from_tensor_slices(["a b", "b c", "c b"]).batch(1))
model = tf.keras.Sequential([tf.keras.layers.Input((3,)), layer, tf.keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(tf.keras.optimizers.SGD(0.0), "mse")
model.fit(x[:64], np.zeros((64, 1), np.float32), batch_size=8, verbose=0)
print(json.dumps([layer(x).numpy().tolist(), arrays(x).numpy().tolist(), words.get_vocabulary()]))
"""

FAILED_FIT = """
import json
import numpy as np
import tensorflow as tf

x, y = np.zeros((8, 1), np.float32), np.zeros((8, 1), np.float32)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(1)
model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
found = []
# Both fail before they ask for data: the second one is not compiled.
try:
    model.compile("sgd", "mse")
    model.fit(data, validation_split=0.5, verbose=0)
except ValueError:
    found.append(len(model.predict(x, batch_size=1, verbose=0)))
other = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
try:
    other.fit(data, verbose=0)
except (ValueError, RuntimeError):
    found.append(len(model.predict(x, batch_size=1, verbose=0)))
model.fit(data, verbose=0)
print(json.dumps(found))
"""

BACKUP = """
import json, sys
import numpy as np
import tensorflow as tf
import grpcxx.parallel

folder, how = sys.argv[1], sys.argv[2]
rank = grpcxx.parallel.rank()
random = np.random.RandomState(1)
x, y = random.randn(64, 3).astype(np.float32), random.randn(64, 1).astype(np.float32)
tf.keras.utils.set_random_seed(7)
model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.SGD(0.05, momentum=0.9), "mse")
epochs = []

class Count(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if how == "stop" and epoch == 2:
            raise RuntimeError("stops here")
        epochs.append(epoch)

backup = tf.keras.callbacks.BackupAndRestore(f"{folder}/{rank}")
model.fit(x, y, batch_size=8, epochs=5, shuffle=False, callbacks=[Count(), backup], verbose=0)
mine = model.get_weights()[0].reshape(1, -1)
print(json.dumps({"epochs": epochs, "weights": grpcxx.parallel.group().all_gather(mine).tolist()}))
"""

STATISTICS = """
import json, sys
import numpy as np
import tensorflow as tf
import grpcxx.parallel

folder, group = sys.argv[1], grpcxx.parallel.group()
random = np.random.RandomState(1)
x, y = random.randn(64, 3).astype(np.float32), random.randn(64, 1).astype(np.float32)
normalization = tf.keras.layers.BatchNormalization()
frozen = tf.keras.layers.BatchNormalization(trainable=False)
inner = tf.keras.Sequential([normalization, frozen])
model = tf.keras.Sequential([tf.keras.layers.Input((3,)), inner, tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
found = {}

def all_kept():
    values = [variable.numpy() for variable in (normalization.moving_mean, normalization.moving_variance)]
    return group.all_gather(np.concatenate(values)[None], tag=1).tolist()

class Keep(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        found["own"] = all_kept()
    def on_test_begin(self, logs=None):
        found["validated"] = all_kept()

saves = tf.keras.callbacks.ModelCheckpoint(folder + "/model.weights.h5", save_weights_only=True)
model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), callbacks=[Keep(), saves], verbose=0)
found["kept"] = all_kept()
model.load_weights(folder + "/model.weights.h5")
found["saved"] = np.concatenate([normalization.moving_mean.numpy(), normalization.moving_variance.numpy()]).tolist()
print(json.dumps(found))
"""

RESTORES = """
import json
import numpy as np
import tensorflow as tf
import grpcxx.parallel

class Restore(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        if grpcxx.parallel.rank() == 0:
            self.model.set_weights([np.full((1, 1), 10.0)])

model = tf.keras.Sequential(
    [tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
)
model.compile(tf.keras.optimizers.SGD(0.1), "mse")
model.fit(np.ones((2, 1)), np.zeros((2, 1)), batch_size=1, callbacks=[Restore()], verbose=0)
print(json.dumps(grpcxx.parallel.group().all_gather(model.get_weights()[0].reshape(1, 1)).tolist()))
"""

LOOP_RESTORES = """
import json, sys
import tensorflow as tf
import grpcxx.parallel

weight = tf.Variable(0.0)
if grpcxx.parallel.rank() == 0:
    weight.assign(10.0)
    tf.train.Checkpoint(weight=weight).write(sys.argv[2] + "/saved")
    weight.assign(0.0)
    tf.train.Checkpoint(weight=weight).restore(sys.argv[2] + "/saved")

def step():
    with tf.GradientTape() as tape:
        loss = weight * weight
    weight.assign_sub(0.1 * tape.gradient(loss, weight))

if sys.argv[1] == "function":
    step = tf.function(step)
for _ in tf.data.Dataset.range(2):
    step()
print(json.dumps(grpcxx.parallel.group().all_gather(weight.numpy().reshape(1)).tolist()))
"""

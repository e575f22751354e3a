"""Which elements of datasets the ranks get, whatever the script does with them."""

import pytest
from jobs import parallel, trained

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.processes


def found_by(folder, text, *arguments, ranks=2):
    """What a script finds as several ranks."""
    path = folder / "script.py"
    path.write_text(text)
    return trained(parallel(ranks, path, *arguments))[0]


@pytest.mark.parametrize("how", ["argument", "option"])
@pytest.mark.parametrize("loop", ["own", "fit"])
def test_ranks_divide_datasets_whose_order_may_be_any(how, loop, tmp_path):
    found = found_by(tmp_path, ANY_ORDER, how, loop)
    assert found == [[0, 2, 4, 6], [1, 3, 5, 7]]


# On rank 1 the first element is there when three others are.
ANY_ORDER = """
import json, sys, threading
import numpy as np
import tensorflow as tf
import grpcxx.parallel

how, loop = sys.argv[1:]
others = threading.Semaphore(0)

def late(at):
    if at == 0 and grpcxx.parallel.rank() == 1:
        assert all(others.acquire(timeout=60) for _ in range(3))
    others.release()
    return at

order = {"deterministic": False} if how == "argument" else {}
data = tf.data.Dataset.range(8)
data = data.map(lambda at: tf.numpy_function(late, [at], tf.int64), num_parallel_calls=4, **order)
data = data.map(lambda at: (tf.reshape(tf.cast(at, tf.float32), (1, 1)), tf.zeros((1, 1))))
options = tf.data.Options()
options.threading.private_threadpool_size = 4
if how == "option":
    options.deterministic = False
data = data.with_options(options)
seen = []

class Seeing(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, element):
        seen.append(int(element[0][0, 0]))
        return super().train_step(element)

if loop == "fit":
    model = Seeing()
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(data, verbose=0)
else:
    weight = tf.Variable(1.0)
    for x, _ in data:
        with tf.GradientTape() as tape:
            loss = weight * weight
        tape.gradient(loss, weight)
        seen.append(int(x[0, 0]))
print(json.dumps(grpcxx.parallel.group().all_gather(np.array([seen])).tolist()))
"""

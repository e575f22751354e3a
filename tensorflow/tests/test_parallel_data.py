"""Which elements of datasets the ranks get, whatever the script does with them."""

from types import SimpleNamespace

import pytest
from jobs import parallel, run, trained

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


def trains(text):
    """A script that trains by `train(element)`, and tells what the ranks have trained with."""
    return TRAIN + text + "\nprint(json.dumps(group.all_gather(np.array([seen])).tolist()))\n"


TRAIN = """
import json, sys, threading
import numpy as np
import tensorflow as tf
import grpcxx.parallel

group, rank = grpcxx.parallel.group(), grpcxx.parallel.rank()
weight = tf.Variable(1.0)
data = tf.data.Dataset.range(8)
seen = []

def train(element):
    with tf.GradientTape() as tape:
        loss = weight * weight
    tape.gradient(loss, weight)
    seen.append(int(element))
"""


@pytest.mark.smoke
def test_batches_of_a_dataset_that_are_read_ahead_are_divided(tmp_path):
    found = found_by(tmp_path, trains(READ_AHEAD))
    assert found == [[0, 2, 4, 6], [1, 3, 5, 7]]


# A loop that evaluates gets all, and reading ahead changes nothing in that.
READ_AHEAD = """
from grpcxx.data import prefetch

for element in prefetch(data, ahead=3):
    train(element)
assert sorted(map(int, prefetch(data))) == list(range(8))
assert threading.active_count() == 1
for loop in (prefetch(data), prefetch(data.skip(1), ahead=3)):
    train(next(loop))
    loop.close()
    assert threading.active_count() == 1, "a loop that is left early leaves no thread"
del seen[-2:]
"""


def test_what_reads_ahead_ends_with_a_loop_that_is_left_though_somebody_has_its_elements():
    from grpcxx.parallel._elements import Elements

    ended = []

    def read():
        try:
            yield from range(8)
        finally:
            ended.append(True)

    elements = Elements(read(), None, SimpleNamespace(rank=0, size=2, combined=0, sharded=0))

    def loop():
        yield from elements

    loop = loop()
    assert next(loop) == 0 and not ended
    loop.close()
    assert ended


@pytest.mark.parametrize("way", ["skipped", "one_ahead"])
def test_loops_that_train_without_being_divided_are_told_once(way, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(trains(UNSEEN))
    finished = parallel(2, script, way)
    found, _ = trained(finished)
    assert sorted(found[0]) == sorted(found[1]), "each rank takes all"
    assert finished.stderr.count("start with --shard all") == 1, finished.stderr
    divided = run(["-m", "grpcxx.parallel", "-n", 2, "--shard", "all", script, way])
    begin = 4 if way == "skipped" else 0
    assert trained(divided)[0] == [list(range(begin, 8, 2)), list(range(begin + 1, 8, 2))]
    assert "--shard all" not in divided.stderr


# Neither takes a gradient between the first element and the second.
UNSEEN = """
def one_ahead(elements):
    elements = iter(elements)
    before = next(elements)
    for element in elements:
        yield before
        before = element
    yield before

skips = sys.argv[1] == "skipped"
for at, element in enumerate(data if skips else one_ahead(data)):
    if not skips or at >= 2:
        train(element)
"""


@pytest.mark.parametrize("loop", ["own", "fit"])
def test_a_dataset_within_a_generator_is_divided_once(loop, tmp_path):
    found = found_by(tmp_path, trains(WITHIN), loop)
    assert found == [[0, 2, 4, 6], [1, 3, 5, 7]]


WITHIN = """
def generate():
    for element in data:
        yield element.numpy()

generated = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec((), tf.int64))
if sys.argv[1] == "own":
    for element in generated:
        train(element)
else:
    class Seeing(tf.keras.Model):
        def train_step(self, element):
            train(element[0][0, 0])
            return {"loss": tf.constant(0.0)}

    model = Seeing()
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(generated.map(lambda at: (tf.reshape(at, (1, 1)), tf.zeros((1, 1)))), verbose=0)
"""


@pytest.mark.parametrize("loop", ["trains", "evaluates"])
def test_iterators_of_the_script_are_those_of_tensorflow(loop, tmp_path):
    found = found_by(tmp_path, trains(CHECKPOINT), loop, tmp_path)
    assert found == ([[0, 2, 4, 6], [1, 3, 5, 7]] if loop == "trains" else [[0], [0]])


# As in the guide on training checkpoints: the iterator is saved, and goes on where it was.
CHECKPOINT = """
loop, folder = sys.argv[1:]
iterator = iter(data)
assert isinstance(iterator, tf.data.Iterator)
assert iterator.element_spec == data.element_spec
checkpoint = tf.train.Checkpoint(step=tf.Variable(1), weight=weight, iterator=iterator)
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=3)
if loop == "trains":
    for _ in range(2):
        train(next(iterator))
    manager.save()
    # Rank 0 alone writes.
    group.barrier()
    checkpoint = tf.train.Checkpoint(step=tf.Variable(1), weight=weight, iterator=iter(data))
    checkpoint.restore(manager.latest_checkpoint or tf.train.latest_checkpoint(folder)).assert_consumed()
    for _ in range(2):
        train(checkpoint.iterator.get_next())
    end = checkpoint.iterator.get_next_as_optional()
    assert not end.has_value() and end.element_spec == data.element_spec
else:
    elements = [iterator.get_next_as_optional() for _ in range(9)]
    assert [bool(element.has_value()) for element in elements] == [True] * 8 + [False]
    assert sorted(int(element.get_value()) for element in elements[:8]) == list(range(8))
    train(0)
"""


@pytest.mark.parametrize("does_train, count", [(False, 1), (False, 3), (True, 1)])
def test_no_element_is_lost_where_an_iterator_was_saved(does_train, count, tmp_path):
    found_by(tmp_path, trains(SAVED + "\ntrain(0)\n"), int(does_train), count, tmp_path)


# What is left behind the elements that the ranks have taken, of which each took all or one in each step.
SAVED = """
does_train, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
iterator = iter(data)
taken = [int(next(iterator)) for _ in range(count)]
if does_train:
    train(taken[0])
tf.train.Checkpoint(iterator=iterator).write(folder + "/saved")
# Rank 0 alone writes.
group.barrier()
restored = iter(data)
tf.train.Checkpoint(iterator=restored).read(folder + "/saved").assert_consumed()
assert sorted(map(int, restored)) == list(range(2 if does_train else count, 8))
before = sorted(taken + [int(element) for element in iterator])
assert before == list(range(rank, 8, 2) if does_train else range(8)), before
"""


def test_iterators_that_functions_of_tensorflow_take_are_refused_by_one_clear_line(tmp_path):
    found_by(tmp_path, trains(IN_FUNCTION))


IN_FUNCTION = """
iterator = iter(data)
taken, inside = tf.function(lambda iterator: next(iterator)), tf.function(lambda: next(iterator))
for function, arguments in ((taken, [iterator]), (inside, [])):
    try:
        function(*arguments)
    except ValueError as error:
        assert "start with --shard all" in str(error)
    else:
        raise AssertionError("it is divided by nobody")
train(0)
"""


@pytest.mark.parametrize("path", ["a name", "a tensor"])
def test_each_rank_has_a_cache_of_its_own(path, tmp_path):
    found = found_by(tmp_path, trains(CACHE), path, tmp_path / "cache")
    assert found == [[0, 2, 4, 6] * 2, [1, 3, 5, 7] * 2]
    assert sorted(entry.name for entry in tmp_path.glob("cache*.index")) == ["cache.index", "cache.rank1.index"]


CACHE = """
how, path = sys.argv[1:]
# Both ranks are in the middle of it at once.
cached = data.cache(tf.constant(path) if how == "a tensor" else path)
assert list(map(int, data.cache())) and list(map(int, data.cache(filename="")))
for _ in range(2):
    for at, element in enumerate(cached):
        train(element)
        if at == 1:
            group.barrier()
"""

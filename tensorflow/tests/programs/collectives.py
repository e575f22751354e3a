"""A rank that runs the ops of a group: `collectives.py RANK SIZE RENDEZVOUS CASE`. Prints what it has found as JSON."""

import functools
import hashlib
import json
import os
import signal
import sys
import time

import numpy as np
import tensorflow as tf

import grpcxx
import grpcxx.tensorflow as ops

RANK, SIZE = int(sys.argv[1]), int(sys.argv[2])
GROUP = grpcxx.Group(RANK, SIZE, sys.argv[3], timeout=60.0)


def mine():
    """A row for each rank."""
    return np.arange(2.0 * SIZE, dtype=np.float32).reshape(SIZE, 2) + 10 * RANK


def each(tensor):
    """The result of each op, which do not depend on each other."""
    return {
        "sum": ops.all_reduce(tensor, group=GROUP),
        "max": ops.all_reduce(tensor, "max", group=GROUP),
        "reduce": ops.reduce(tensor, "mean", root=SIZE - 1, group=GROUP),
        "scatter": ops.reduce_scatter(tensor, group=GROUP),
        "gather": ops.all_gather(tensor, group=GROUP),
        "scalars": ops.all_gather(tf.reduce_sum(tensor), group=GROUP),
        "broadcast": ops.broadcast(tensor, root=SIZE - 1, group=GROUP),
        "exchanged": ops.all_to_all(tensor, group=GROUP),
    }


def lists(found):
    return {name: value.numpy().tolist() for name, value in found.items()}


def eager():
    ops.barrier(group=GROUP)
    return lists(each(mine()))


def in_function():
    found = tf.function(each)(tf.constant(mine()))
    function = tf.function(each, input_signature=[tf.TensorSpec([None, 2], tf.float32)])
    again = lists(function(mine()))
    assert again == lists(found)
    return again


def in_session():
    with tf.Graph().as_default():
        found = each(mine())
        barrier = ops.barrier(group=GROUP)
        error, text = refused(
            lambda: tf.cond(tf.constant(True), lambda: ops.all_reduce(1.0, group=GROUP), lambda: 0.0)
        )
        assert error == "ValueError" and "graph for a session, which has no order" in text, text
        with tf.compat.v1.Session() as session:
            session.run(barrier)
            return {name: value.tolist() for name, value in session.run(found).items()}


def late(tensor, seconds):
    """The tensor, some time later. tf.function runs functions of Python one after the other: so only where it waits."""
    if seconds == 0:
        return tf.identity(tensor)

    def sleep(value):
        time.sleep(seconds)
        return value

    found = tf.numpy_function(sleep, [tensor], tensor.dtype)
    found.set_shape(tensor.shape)
    return found


def order():
    """Ops whose inputs come in another order on each rank, within conditions and loops too."""

    @tf.function
    def step(number):
        # The first is late on rank 0, the second on the others.
        first = ops.all_reduce(late(tf.ones(3), 0.03 if RANK == 0 else 0.0), group=GROUP)
        second = ops.all_reduce(late(tf.ones(5), 0.0 if RANK == 0 else 0.03), group=GROUP)
        third = tf.constant(0.0)
        for _ in tf.range(3):
            third += tf.reduce_sum(ops.all_reduce(tf.ones(2), group=GROUP))
        if number % 2 == 0:
            third += ops.all_reduce(1.0, group=GROUP)
        last = ops.all_gather(tf.ones(7), group=GROUP)
        return tf.reduce_sum(first) + tf.reduce_sum(second) + third + tf.reduce_sum(last)

    return [float(step(tf.constant(number))) for number in range(4)]


def slow_back(x, seconds):
    return tf.custom_gradient(lambda x: (tf.identity(x), lambda gradient: late(gradient, seconds)))(x)


@tf.function
def total(x):
    return ops.all_reduce(x, group=GROUP)


def weighed(one, other):
    """The loss of two results, whose gradients come in another order on each rank, and differ."""
    times = (0.05, 0.0) if RANK == 0 else (0.0, 0.05)
    return tf.reduce_sum(slow_back(one, times[0])) + 100 * tf.reduce_sum(slow_back(other, times[1]))


def direct(x):
    return weighed(ops.all_reduce(x, group=GROUP), ops.all_reduce(10 * x, group=GROUP))


def nested(x):
    return weighed(total(x), total(10 * x))


def mixed(x):
    return weighed(total(x), ops.all_reduce(10 * x, group=GROUP))


def recomputed(x):
    again = tf.recompute_grad(lambda x: ops.all_reduce(x, group=GROUP))
    return weighed(again(x), again(10 * x))


def conditions(x):
    def one(factor):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: ops.all_reduce(factor * x, group=GROUP), lambda: x)

    return weighed(one(1.0), one(10.0))


def condition(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: nested(x), lambda: 0.0)


def loops(x):
    def one(factor):
        body = lambda at, sum: (at + 1, sum + ops.all_reduce(factor * x, group=GROUP))
        return tf.while_loop(lambda at, _: at < 2, body, (0, tf.zeros_like(x)))[1]

    return weighed(one(1.0), one(10.0))


def in_loop(x):
    """The gradient, taken within a loop."""
    return tf.while_loop(lambda at, _: at < 2, lambda at, sum: (at + 1, sum + gradient_of(nested, x)), (0, 0 * x))[1]


def twice(loss, x):
    """The gradient of a gradient."""
    return tf.reduce_sum(gradient_of(lambda x: loss(x * x), x))


def gradient_of(loss, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = loss(x)
    return tape.gradient(found, x)


def order_of_gradients():
    """Of losses in a tf.function: the gradients are taken inside of it, then outside."""
    x = tf.ones(1)
    found = {}
    for loss in (direct, nested, mixed, recomputed, conditions, condition, loops):
        inside = tf.function(functools.partial(gradient_of, loss), autograph=False)
        outside = functools.partial(gradient_of, tf.function(loss, autograph=False))
        found[loss.__name__] = [kept(lambda: step(x).numpy().tolist()) for step in (inside, outside)]
    for loss in (direct, nested):
        second = tf.function(functools.partial(gradient_of, functools.partial(twice, loss)), autograph=False)
        found[f"twice_{loss.__name__}"] = kept(lambda: second(x).numpy().tolist())
    function = tf.function(direct, autograph=False)
    found["twice_outside"] = kept(lambda: gradient_of(functools.partial(twice, function), x).numpy().tolist())
    found["in_loop"] = tf.function(in_loop, autograph=False)(x).numpy().tolist()
    # Without delays too: ranks have unlike amounts of work.
    step = tf.function(functools.partial(gradient_of, unlike), autograph=False)
    found["unlike"] = [step(x).numpy().tolist() for _ in range(30)]
    return found


def unlike(x):
    rows = (600, 10) if RANK == 0 else (10, 600)
    found = []
    for result, count in zip((total(x), total(10 * x)), rows):
        work = tf.tanh(tf.matmul(tf.ones([count, 300]), tf.ones([300, 300]) * tf.reduce_mean(result)))
        found.append(tf.reduce_sum(result) + 0 * tf.reduce_sum(work))
    return found[0] + 100 * found[1]


def kept(code):
    """What the code returns, or its error."""
    try:
        return code()
    except Exception as error:
        return [type(error).__name__, str(error)]


def tags():
    found = [kept(lambda: ops.barrier(group=GROUP, tag=65535)), kept(lambda: GROUP.barrier(tag=65535))]
    return [*found, kept(lambda: GROUP.all_reduce_many([np.ones(1)], tag=-1))]


def forked():
    """A child of a process of a group."""
    ops.barrier(group=GROUP)
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.write(there, json.dumps(refused(lambda: ops.barrier(group=GROUP))).encode())
        os._exit(0)
    os.close(there)
    with os.fdopen(here) as said:
        found = json.load(said)
    os.waitpid(child, 0)
    ops.barrier(group=GROUP)
    return found


def backward():
    """Gradients of a function, which come in another order on each rank and are ops of a function of their own."""

    @tf.function
    def function(x):
        one = ops.all_reduce(x, group=GROUP)
        other = ops.all_gather(x, group=GROUP)
        times = (0.05, 0.0) if RANK == 0 else (0.0, 0.05)
        return tf.reduce_sum(slow_back(one, times[0])) + tf.reduce_sum(slow_back(other, times[1]))

    found = []
    for _ in range(3):
        x = tf.Variable(tf.ones(4))
        with tf.GradientTape() as tape:
            loss = function(x)
        found.append(tape.gradient(loss, x).numpy().tolist())
    return found


def beside():
    """Two tags, whose tensors come in another order on each rank, with one thread of TensorFlow."""
    with tf.Graph().as_default():
        slow, fast = (late(tf.ones(4), seconds) for seconds in (0.3, 0.0))
        one, other = (slow, fast) if RANK == 0 else (fast, slow)
        found = [ops.all_reduce(one, group=GROUP, tag=1), ops.all_reduce(other, group=GROUP, tag=2)]
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
        with tf.compat.v1.Session(config=config) as session:
            return [value.tolist() for value in session.run(found)]


def gradients():
    """Of the sum of the losses of all ranks, where that of a rank is `weight` times the sum of its result."""
    weight, factor = float(RANK + 1), tf.constant(np.arange(1.0, 3.0, dtype=np.float32))
    cases = {
        "sum": lambda x: ops.all_reduce(x, group=GROUP),
        "mean": lambda x: ops.all_reduce(x, "mean", group=GROUP),
        "reduce": lambda x: ops.reduce(x, "mean", root=SIZE - 1, group=GROUP),
        "scatter": lambda x: ops.reduce_scatter(x, "mean", group=GROUP),
        "gather": lambda x: ops.all_gather(x, group=GROUP),
        "scalars": lambda x: ops.all_gather(tf.reduce_sum(x * factor), group=GROUP),
        "broadcast": lambda x: ops.broadcast(x, root=SIZE - 1, group=GROUP),
        "exchanged": lambda x: ops.all_to_all(x, group=GROUP),
    }

    def gradient(case, x):
        x = tf.convert_to_tensor(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = case(x)
            weights = weight if found.shape.rank == 1 else weight * factor
            loss = tf.reduce_sum(weights * found)
        return tape.gradient(loss, x)

    result = {}
    for name, case in cases.items():
        found = gradient(case, mine())
        np.testing.assert_array_equal(found, tf.function(gradient)(case, mine()), name)
        result[name] = found.numpy().tolist()
    try:
        gradient(lambda x: ops.all_reduce(x, "max", group=GROUP), mine())
    except (ValueError, LookupError) as error:
        result["max"] = str(error)
    return result


def bits():
    """Digests of long sums, whose rounding depends on the order."""
    values = np.random.default_rng(RANK).standard_normal(300_001)
    found = []
    for dtype in (tf.float32, tf.bfloat16, tf.half, tf.float64, tf.complex64):
        value = ops.all_reduce(tf.cast(values, dtype), group=GROUP)
        found.append(hashlib.sha256(value.numpy().tobytes()).hexdigest())
    flags = ops.broadcast(tf.constant([RANK == 0, True]), group=GROUP)
    empty = ops.all_reduce(tf.zeros([0, 3]), group=GROUP)
    return [*found, flags.numpy().tolist(), empty.shape.as_list()]


def keras():
    """Each rank has its half of the data; means of gradients make it training with all of it."""
    tf.keras.utils.set_random_seed(7)

    class Together(tf.keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            found = tape.gradient(loss, self.trainable_variables)
            found = [ops.all_reduce(gradient, "mean", group=GROUP) for gradient in found]
            self.optimizer.apply_gradients(zip(found, self.trainable_variables))
            return {"loss": ops.all_reduce(loss, "mean", group=GROUP)}

    model = Together([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, "tanh"), tf.keras.layers.Dense(1)])
    model.compile("sgd", jit_compile=False)
    x = np.random.default_rng(0).standard_normal((8 * 4, 4)).astype(np.float32)
    y = np.sin(x.sum(1, keepdims=True))
    whole = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).batch(SIZE)
    data = whole.map(lambda x, y: (tf.reshape(x, [SIZE, -1, 4])[RANK], tf.reshape(y, [SIZE, -1, 1])[RANK]))
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    weights = b"".join(np.ascontiguousarray(value).tobytes() for value in model.get_weights())
    return [losses, hashlib.sha256(weights).hexdigest()]


def closed():
    GROUP.close()
    return refused(lambda: ops.barrier(group=GROUP))


def refused(code):
    try:
        code()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def differs():
    found = [refused(lambda: tf.function(lambda: ops.all_reduce(tf.ones(3 + RANK), group=GROUP))())]
    found.append(refused(lambda: ops.barrier(group=GROUP)))
    return found


def cannot_begin():
    """Rank 1 brings rows of no bytes, so many that the result has no shape, and goes on."""
    few = tf.zeros((2, 0))
    many = tf.zeros((2**62, 0)) if RANK == 1 else few
    return [refused(lambda: ops.all_gather(rows, group=GROUP)) for rows in (many, few)]


def dies():
    """Rank 1 ends without a word."""
    ops.barrier(group=GROUP)
    if RANK == 1:
        print("null", flush=True)
        os._exit(0)
    return refused(lambda: tf.function(lambda: ops.all_reduce(tf.ones(3), group=GROUP))())


def everything():
    cases = (eager, in_function, in_session, order, order_of_gradients, backward, beside, gradients, bits, keras)
    cases = (*cases, tags, closed)
    return {case.__name__: case() for case in cases}


CASES = (everything, differs, cannot_begin, dies, forked)
print(json.dumps({case.__name__: case for case in CASES}[sys.argv[4]]()))

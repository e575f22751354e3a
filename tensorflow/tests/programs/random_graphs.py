"""Runs random graphs over the tasks of the cluster, and prints a digest of all that they compute.

    random_graphs.py FIRST_SEED NUMBER

A seed makes one graph, whatever the tasks do with it. All accesses to a variable are in order, and all
else is a function of its inputs, so that each result is one of bits.
"""

import hashlib
import sys

import common
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()

SHAPES = [(), (3,), (2, 3), (0,), (5, 1)]
STEPS = 3
TIMEOUT_MS = 120_000


class Variable:
    """A variable whose accesses stay in the order in which they are made."""

    def __init__(self, variable, is_written):
        self.variable = variable
        self.is_written = is_written
        self.writes, self.reads = [], []

    def read(self):
        with tf.control_dependencies(self.writes):
            value = self.variable.read_value() if self.is_written else tf.raw_ops.Identity(input=self.variable)
        self.reads.append(value.op)
        return value

    def write(self, change):
        with tf.control_dependencies(self.writes + self.reads):
            done = change(self.variable)
        self.writes, self.reads = [done], []
        return done


class Maker:
    """Makes one graph."""

    def __init__(self, seed, devices):
        self.seed = seed
        self.is_optimized = seed % 3 != 0
        self.random = np.random.RandomState(seed)
        self.devices = [devices[i] for i in self.random.permutation(len(devices))[: self.random.randint(2, 5)]]
        self.values, self.variables, self.ops, self.feeds = [], [], [], []
        self.number = 0

    def pick(self, things):
        return things[self.random.randint(len(things))]

    def name(self):
        self.number += 1
        return f"n{self.seed}_{self.number}"

    def numbers(self, shape, dtype=np.float32):
        return self.random.randint(-8, 9, size=shape).astype(dtype)

    def value(self, dtype=tf.float32):
        return self.pick([value for value in self.values if value.dtype == dtype])

    def like(self, shape):
        """A value of this shape, if there is one."""
        found = [value for value in self.values if value.dtype == tf.float32 and value.shape.as_list() == list(shape)]
        return self.pick(found) if found else tf.constant(self.numbers(shape))

    def somewhere(self):
        return tf.device(self.pick(self.devices))

    def make(self):
        with self.somewhere():
            self.values += [tf.constant(self.numbers(shape)) for shape in SHAPES]
        for _ in range(self.random.randint(4, 8)):
            self.new_variable()
        steps = [self.compute] * 6 + [self.burst] * 4 + [self.burst_of_reads] * 3 + [self.write] * 3
        steps += [self.feed, self.odd_type, self.lose_shape, self.queue, self.condition, self.loop, self.function]
        for _ in range(self.random.randint(15, 40)):
            before = self.random.permutation(len(self.ops))[:2] if self.random.rand() < 0.2 else []
            with tf.control_dependencies([self.ops[i] for i in before]), self.somewhere():
                self.pick(steps)()

    def add(self, value):
        self.values.append(value)
        self.ops.append(value.op)
        return value

    def new_variable(self):
        is_written = self.random.rand() < 0.8
        shape = self.pick(SHAPES)
        with self.somewhere():
            variable = v1.get_variable(self.name(), initializer=self.numbers(shape), use_resource=is_written)
        self.variables.append(Variable(variable, is_written))

    def compute(self):
        value = self.value()
        kind = self.random.randint(4)
        if kind == 0:
            self.add(tf.raw_ops.Identity(input=value))
        elif kind == 1:
            self.add(value - 1.5)
        elif value.shape.is_fully_defined():
            self.add(0.5 * value + self.like(value.shape.as_list()))
        else:
            self.add(tf.abs(value))

    def burst(self):
        """Several values that are made here and used there."""
        here = [self.value() * float(self.random.randint(1, 4)) for _ in range(self.random.randint(3, 12))]
        with self.somewhere():
            for value in here:
                self.add(tf.raw_ops.Identity(input=value) + 1.0)
            # Not `add_n`, whose order differs from run to run.
            self.add(tf.reduce_sum(tf.stack([tf.reduce_sum(value) for value in here])))

    def burst_of_reads(self):
        """Reads of variables, which lie where they lie, used here."""
        chosen = self.random.permutation(len(self.variables))[: self.random.randint(4, 9)]
        for variable in [self.variables[i] for i in chosen]:
            self.add(tf.raw_ops.Identity(input=variable.read()) * 0.25)

    def write(self):
        writable = [one for one in self.variables if one.is_written]
        for _ in range(self.random.randint(1, 6)):
            if not writable:
                return
            variable = self.pick(writable)
            value = self.like(variable.variable.shape.as_list())
            bounded = tf.clip_by_value(value, -100.0, 100.0)
            if self.random.rand() < 0.5:
                self.ops.append(variable.write(lambda one: one.assign(bounded, read_value=False)))
            else:
                self.ops.append(variable.write(lambda one: one.assign_add(bounded, read_value=False)))

    def feed(self):
        shape = self.pick(SHAPES)
        known = [None if self.random.rand() < 0.3 else size for size in shape]
        holder = v1.placeholder(tf.float32, known)
        self.feeds.append((holder, shape))
        self.add(holder + 1.0)
        if self.random.rand() < 0.3:
            self.values.append(holder)

    def odd_type(self):
        kind = self.random.randint(3)
        if kind == 0:
            self.add(tf.strings.as_string(tf.cast(self.value(), tf.int32)))
        elif kind == 1:
            self.add(tf.cast(self.value(), tf.bool))
        else:
            self.add(tf.cast(self.value(), self.pick([tf.int32, tf.float64, tf.complex64, tf.bfloat16])))
        odd = self.values[-1]
        with self.somewhere():
            self.add(tf.raw_ops.Identity(input=odd))

    def lose_shape(self):
        value = tf.reshape(self.value(), [-1])
        self.add(tf.boolean_mask(value, value > 0.0))

    def queue(self):
        """A value that comes out of a queue which is filled elsewhere: no edge tells that one waits for the other."""
        queue = v1.FIFOQueue(10, [tf.float32], shapes=[()], shared_name=self.name())
        with self.somewhere():
            self.ops.append(queue.enqueue(tf.reduce_sum(self.value())))
        with self.somewhere():
            self.add(queue.dequeue())

    def condition(self):
        holder = v1.placeholder(tf.bool, [])
        self.feeds.append((holder, bool))
        a, b = self.value(), self.value()

        def branch(device, value, times):
            def make():
                with tf.device(device):
                    parts = [tf.reduce_sum(value) * float(i) for i in range(times)]
                with self.somewhere():
                    return [part + 1.0 for part in parts]

            return make

        merged = v1.cond(holder, branch(self.pick(self.devices), a, 5), branch(self.pick(self.devices), b, 5))
        for value in merged:
            self.add(tf.raw_ops.Identity(input=value))

    def loop(self):
        outer = [tf.reduce_sum(self.value()) for _ in range(5)]
        device = self.pick(self.devices)

        def body(i, *values):
            with tf.device(device):
                changed = [0.5 * value + tf.raw_ops.Identity(input=one) for value, one in zip(values, outer)]
            return (i + 1, *[tf.raw_ops.Identity(input=value) for value in changed])

        found = v1.while_loop(lambda i, *_: i < 3, body, [tf.constant(0), *[tf.constant(0.0) for _ in outer]])
        for value in found[1:]:
            self.add(tf.raw_ops.Identity(input=value))

    def function(self):
        first, second = self.pick(self.devices), self.pick(self.devices)
        if not self.is_optimized:
            # Functions span tasks only if they are inlined.
            second = first

        @tf.function
        def called(*values):
            with tf.device(first):
                here = [value * 2.0 for value in values]
            with tf.device(second):
                return [tf.raw_ops.Identity(input=value) - 1.0 for value in here]

        values = [tf.reduce_sum(self.value()) for _ in range(6)]
        with tf.device(first):
            for value in called(*values):
                self.add(value)

    def fed(self):
        return {
            holder: bool(self.random.rand() < 0.5) if shape is bool else self.numbers(shape)
            for holder, shape in self.feeds
        }


def digest(values):
    text = hashlib.sha256()
    for value in values:
        array = np.asarray(value)
        data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        text.update(f"{array.dtype} {array.shape} ".encode() + data)
    return text.hexdigest()[:16]


def run(seed, devices, target):
    (v1.enable_control_flow_v2 if seed % 2 else v1.disable_control_flow_v2)()
    maker = Maker(seed, devices)
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not maker.is_optimized
    found = []
    options = v1.RunOptions(timeout_in_ms=TIMEOUT_MS)
    with tf.Graph().as_default():
        maker.make()
        state = [one.variable for one in maker.variables]
        initialize = v1.global_variables_initializer()
        # Everything, then a part: what is not asked for is cut off, and the rest is fused anew.
        parts = [maker.values, [value for value in maker.values if maker.random.rand() < 0.3] or maker.values[:1]]
        with v1.Session(target, config=config) as session:
            session.run(initialize, options=options)
            for step in range(STEPS):
                values = parts[step % 2]
                targets = maker.ops if step % 2 == 0 or "Queue" in str([op.type for op in maker.ops]) else []
                got, _ = session.run([values, targets], maker.fed(), options=options)
                found.append(digest(got))
            found.append(digest(session.run(state, options=options)))
    return found


server = common.start_server()
tasks = [f"/job:{job}/task:{index}" for job, places in common.TASK["cluster"].items() for index in range(len(places))]
graphs = {}
for number in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
    try:
        graphs[number] = run(number, tasks, server.target)
    except Exception as error:  # noqa: BLE001 - the comparison shows it
        graphs[number] = f"ERROR {type(error).__name__}"
        print("TEXT", number, repr(str(error)[:1000]), flush=True)
    print("SEED", number, graphs[number], flush=True)
common.result({"graphs": graphs, "counters": common.counters()})
sys.stdin.readline()
common.leave()

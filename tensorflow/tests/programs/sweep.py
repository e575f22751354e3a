"""Sends tensors of all kinds from a ps to this worker and back, and prints a digest of each result.

    sweep.py [DIM ...]

With dimensions, one tensor of bytes of that shape is sent instead.
"""

import hashlib
import math
import sys

import numpy as np
import common
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
v1.disable_control_flow_v2()
PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"

random = np.random.RandomState(11)
SHAPES = [(), (1,), (0,), (3, 0, 5), (7,), (2, 3), (4, 5, 6), (2, 1, 2, 1, 2, 1), (2,) * 7, (1, 1, 1, 70000), (3, 70000), (70000,)]


def digest(value):
    if isinstance(value, (list, tuple)):
        return [digest(part) for part in value]
    array = np.asarray(value)
    if array.dtype == object:
        data = repr([bytes(element) for element in array.ravel()]).encode()
    else:
        data = array.tobytes()
    return f"{array.dtype} {array.shape} {hashlib.sha256(data).hexdigest()[:16]}"


def numbers(dtype, shape):
    size = int(np.prod(shape))
    if dtype == tf.bool:
        return np.asarray(random.rand(*shape) > 0.5)
    itemsize = dtype.size or 1
    if dtype.name in ("int4", "uint4"):
        return random.randint(0, 8, size).astype(dtype.as_numpy_dtype).reshape(shape)
    raw = random.randint(0, 256, size * itemsize).astype(np.uint8).tobytes()
    return np.frombuffer(raw, dtype=dtype.as_numpy_dtype, count=size).reshape(shape)


def there_and_back(value):
    """The value as it is after it was on the ps and came back."""
    with tf.device(WORKER):
        here = tf.raw_ops.Identity(input=value)
    with tf.device(PS):
        there = tf.raw_ops.Identity(input=here)
    with tf.device(WORKER):
        return tf.raw_ops.Identity(input=there)


CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


NUMBER_TYPES = [
    tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16,
    tf.uint32, tf.uint64, tf.bool, tf.complex64, tf.complex128,
]  # fmt: skip
ODD_TYPES = [getattr(tf.dtypes, name, None) or getattr(tf.dtypes.experimental, name, None) for name in
             ("float8_e5m2", "float8_e4m3fn", "int4", "uint4")]  # fmt: skip
for number_type in NUMBER_TYPES + [odd for odd in ODD_TYPES if odd is not None]:

    def numeric(session, number_type=number_type):
        found = []
        for shape in SHAPES:
            holder = v1.placeholder(number_type, shape)
            value = numbers(number_type, shape)
            back = session.run(there_and_back(holder), {holder: value})
            assert np.asarray(back).tobytes() == value.tobytes(), (number_type, shape)
            found.append(digest(back))
        return found

    CASES[f"type_{number_type.name}"] = numeric

for quantized, carrier in [(tf.qint8, tf.int8), (tf.quint8, tf.uint8), (tf.qint16, tf.int16), (tf.quint16, tf.uint16), (tf.qint32, tf.int32)]:

    def quantized_case(session, quantized=quantized, carrier=carrier):
        value = numbers(carrier, (5, 3))
        with tf.device(PS):
            there = tf.bitcast(tf.raw_ops.Identity(input=tf.constant(value)), quantized)
        with tf.device(WORKER):
            here = tf.bitcast(tf.raw_ops.Identity(input=there), carrier)
        return digest(session.run(here))

    CASES[f"type_{quantized.name}"] = quantized_case


@case
def strings(session):
    found = []
    for shape in [(), (0,), (1,), (5,), (3, 4), (2,) * 7, (2000,)]:
        size = int(np.prod(shape))
        value = np.array([random.bytes(random.randint(0, 400)) for _ in range(size)], dtype=object).reshape(shape)
        holder = v1.placeholder(tf.string, shape)
        back = session.run(there_and_back(holder), {holder: value})
        found.append(digest(back))
    return found


@case
def unicode_and_empty_strings(session):
    return digest(session.run(there_and_back(tf.constant(["", "äöü", "漢字", "a\0b"]))))


@case
def variant_of_a_tensor_list(session):
    with tf.device(PS):
        values = tf.constant(random.randn(6, 4).astype(np.float32))
        handle = tf.raw_ops.TensorListFromTensor(tensor=values, element_shape=tf.constant([4]))
    with tf.device(WORKER):
        back = tf.raw_ops.TensorListStack(
            input_handle=handle, element_shape=tf.constant([4]), element_dtype=tf.float32, num_elements=6
        )
    return digest(session.run(back))


@case
def resource_handle(session):
    with tf.device(PS):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3], shared_name="swept")
        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant([1.5, -2.5, 3.5]))
    session.run(assign)

    @tf.function
    def carried(value):
        return tf.identity(value)

    with tf.device(WORKER):
        packed = tf.raw_ops.Pack(values=[handle, handle], axis=0)
    with tf.device(PS):
        first = tf.raw_ops.StridedSlice(
            input=packed, begin=[0], end=[1], strides=[1], begin_mask=0, end_mask=0, ellipsis_mask=0,
            new_axis_mask=0, shrink_axis_mask=1,
        )  # fmt: skip
        value = tf.raw_ops.ReadVariableOp(resource=first, dtype=tf.float32)
    return digest(session.run(value))


@case
def reference_variable(session):
    with tf.device(PS):
        variable = v1.get_variable("swept_ref", initializer=tf.constant([1.0, 2.0]), use_resource=False)
    session.run(variable.initializer)
    found = []
    for _ in range(3):
        with tf.device(WORKER):
            delta = variable * 0.5
        session.run(v1.assign_add(variable, delta))
        found.append(digest(session.run(there_and_back(variable))))
    return found


@case
def resource_variable(session):
    with tf.device(PS):
        variable = v1.get_variable("swept_resource", initializer=tf.constant([1.0, 2.0]), use_resource=True)
    session.run(variable.initializer)
    found = []
    for _ in range(3):
        with tf.device(WORKER):
            delta = variable * 0.5
        session.run(v1.assign_add(variable, delta))
        found.append(digest(session.run(there_and_back(variable.read_value()))))
    return found


@case
def branches_on_two_tasks_with_dead_tensors(session):
    condition = v1.placeholder(tf.bool, [])
    with tf.device(PS):
        x = tf.constant([1.0, 2.0, 3.0])
        switched_false, switched_true = v1.raw_ops.Switch(data=x, pred=condition)
    with tf.device(WORKER):
        on_true = switched_true * 2.0
        on_false = switched_false - 5.0
    with tf.device(PS):
        merged = tf.raw_ops.Merge(inputs=[on_false + 1.0, on_true + 1.0])
    with tf.device(WORKER):
        out = tf.identity(merged.output)
        index = tf.identity(merged.value_index)
    return [digest(session.run([out, index], {condition: taken})) for taken in (True, False, True)]


@case
def loop_across_tasks(session):
    def body(i, x):
        with tf.device(PS):
            x = tf.matmul(x, tf.constant([[0.5, 0.25], [0.125, 1.0]]))
        with tf.device(WORKER):
            return i + 1, x + 1.0

    with tf.device(WORKER):
        _, out = v1.while_loop(lambda i, x: i < 20, body, [tf.constant(0), tf.ones([2, 2])], parallel_iterations=4)
    return digest(session.run(out))


@case
def condition_across_tasks(session):
    flag = v1.placeholder(tf.bool, [])

    def on_ps():
        with tf.device(PS):
            return tf.constant([4.0, 5.0]) * 3.0

    def on_worker():
        with tf.device(WORKER):
            return tf.constant([1.0, 2.0])

    with tf.device(WORKER):
        out = v1.cond(flag, on_ps, on_worker) + 1.0
    return [digest(session.run(out, {flag: taken})) for taken in (True, False)]


@case
def failure_of_the_other_task(session):
    try:
        with tf.device(PS):
            bad = tf.raw_ops.CheckNumerics(tensor=tf.constant([1.0, float("nan")]), message="swept")
        with tf.device(WORKER):
            out = tf.identity(bad)
        session.run(out)
    except tf.errors.OpError as error:
        return [type(error).__name__, "swept" in str(error)]
    return ["no error"]


@case
def many_small_tensors(session):
    outs = []
    for number in range(300):
        with tf.device(PS):
            value = tf.raw_ops.Identity(input=tf.constant(random.randn(16).astype(np.float32)))
        with tf.device(WORKER):
            outs.append(tf.reduce_sum(value) * number)
    with tf.device(WORKER):
        total = tf.add_n(outs)
    return [digest(session.run(total)) for _ in range(5)]


def large(session, dims):
    size = math.prod(dims)
    with tf.device(PS):
        value = tf.raw_ops.Fill(dims=tf.constant([size], tf.int64), value=tf.constant(7, tf.uint8))
        marked = tf.tensor_scatter_nd_update(value, [[0], [size // 2], [size - 1]], tf.constant([1, 2, 3], tf.uint8))
        shaped = tf.reshape(marked, tf.constant(dims, tf.int64))
    with tf.device(WORKER):
        here = tf.reshape(tf.raw_ops.Identity(input=shaped), [-1])
        parts = tf.stack([here[0], here[1], here[size // 2], here[size - 1]])
        total = tf.reduce_sum(tf.cast(tf.reshape(here[: size // 4096 * 4096], [-1, 4096])[:: 1024], tf.int64))
        length = tf.size(here, out_type=tf.int64)
    return [digest(part) for part in session.run([parts, total, length])]


server = common.start_server()
config = v1.ConfigProto()
config.graph_options.rewrite_options.disable_meta_optimizer = True
config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
config.graph_options.optimizer_options.do_constant_folding = False
found = {}
if len(sys.argv) > 1:
    dims = [int(dim) for dim in sys.argv[1:]]
    CASES = {"large": lambda session: large(session, dims)}
for name, function in CASES.items():
    with tf.Graph().as_default():
        try:
            with v1.Session(server.target, config=config) as session:
                found[name] = function(session)
        except Exception as error:  # noqa: BLE001 - the comparison shows it
            found[name] = f"ERROR {type(error).__name__}: {str(error)[:400]}"
    print("CASE", name, flush=True)
common.result({"cases": found, "counters": common.counters()})
sys.stdin.readline()
common.leave()

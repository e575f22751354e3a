"""Packs and unpacks tensors with the ops of graph fusion, in one process, and damages packs in between.

    packs.py SEED NUMBER

prints how many damaged packs were refused, and how many gave tensors.
"""

import sys

import common
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()

random = np.random.RandomState(int(sys.argv[1]))
TYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int64, tf.bool, tf.complex128, tf.uint16]
SHAPES = [(), (0,), (3,), (3, 0, 5), (2, 3), (2,) * 7, (70,)]


def types_attribute(types):
    value = v1.AttrValue()
    value.list.type.extend([one.as_datatype_enum for one in types])
    return value


def flags_attribute(flags):
    value = v1.AttrValue()
    value.list.b.extend(flags)
    return value


def op(kind, inputs, outputs, **attributes):
    made = v1.get_default_graph().create_op(kind, inputs, outputs, attrs=attributes)
    return made.outputs


def values():
    made = []
    for number in range(40):
        dtype, shape = TYPES[number % len(TYPES)], SHAPES[random.randint(len(SHAPES))]
        made.append(random.randint(0, 100, size=shape).astype(dtype.as_numpy_dtype))
    return made


def damage(pack):
    """A copy with a few wrong bytes, cut off, or longer."""
    changed = bytearray(pack)
    kind = random.randint(4)
    if kind < 2:
        for _ in range(random.randint(1, 4)):
            # The head is what offsets come from.
            changed[random.randint(min(len(changed), 900))] = random.randint(256)
    elif kind == 2:
        changed = changed[: random.randint(len(changed))]
    else:
        changed += bytes(random.randint(1, 200))
    return np.frombuffer(bytes(changed), np.uint8)


with tf.Graph().as_default(), v1.Session() as session, tf.device("/cpu:0"):
    arrays = values()
    types = [tf.as_dtype(array.dtype) for array in arrays]
    inputs = [tf.constant(array) for array in arrays]
    (pack,) = op("GrpcxxPack", inputs, [tf.uint8], T=types_attribute(types))
    holder = v1.placeholder(tf.uint8, [None])
    slices = op("GrpcxxUnpack", [holder], types, T=types_attribute(types), copies=flags_attribute([False] * len(types)))
    copies = op("GrpcxxUnpack", [holder], types, T=types_attribute(types), copies=flags_attribute([True] * len(types)))
    bytes_of_pack = session.run(pack)
    for unpacked in (slices, copies):
        for array, found in zip(arrays, session.run(list(unpacked), {holder: bytes_of_pack})):
            assert array.dtype == found.dtype and array.shape == found.shape and array.tobytes() == found.tobytes()
    refused = taken = 0
    reasons = set()
    for _ in range(int(sys.argv[2])):
        try:
            session.run(list(slices), {holder: damage(bytes_of_pack)})
            taken += 1
        except tf.errors.InvalidArgumentError as error:
            refused += 1
            reasons.add(error.message.split(" bytes")[0][:12])
common.result({"refused": refused, "taken": taken, "reasons": sorted(reasons), "counters": common.counters()})
common.leave()

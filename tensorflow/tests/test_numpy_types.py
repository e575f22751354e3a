"""Types of ml_dtypes, and more arrays in a push than a call of star has."""

import ctypes
import functools
import subprocess
import sys

import numpy as np
import pytest
from ports import free_port
from ranks import together

import grpcxx
from grpcxx import Code, _library

ml_dtypes = pytest.importorskip("ml_dtypes")


def types():
    found = (getattr(ml_dtypes, name) for name in dir(ml_dtypes) if not name.startswith("_"))
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, np.generic)]


@pytest.fixture(scope="module")
def server():
    with grpcxx.Server() as server:
        server.register(lambda x: {"x": x}, name="echo")
        yield server


@pytest.fixture(scope="module")
def client(server):
    with grpcxx.Client(server.address, timeout=60) as client:
        yield client


def array_of(kind, shape=(3, 700)):
    bits = np.random.default_rng(1).integers(0, 2, (*shape, np.dtype(kind).itemsize), np.uint8)
    return bits.view(kind).reshape(shape)


@pytest.mark.parametrize("kind", types(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("shape", [(), (5,), (3, 700)], ids=str)
def test_every_type_comes_back_as_it_went(server, client, kind, shape):
    array = array_of(kind, shape)
    with grpcxx.Client(server.address, timeout=60) as first:
        first.push("first", array)
    client.push("x", array)
    client.send("key", array)
    server.push("own", array)
    server.send("away", array)
    came = {
        "pushed by the first call": client.pull("first"),
        "pushed": client.pull("x"),
        "called": client.call("echo", {"x": array}, "x"),
        "sent": server.recv("key", timeout=60),
        "received": client.recv("away"),
        "stored": client.pull("own"),
        "kept": server.pull("x"),
        "into out": client.pull("x", out=np.zeros_like(array)),
    }
    for how, returned in came.items():
        assert (returned.dtype, returned.shape) == (array.dtype, array.shape), how
        assert returned.tobytes() == array.tobytes(), how
    assert client.stored()["x"].dtype == kind.__name__


@pytest.mark.parametrize("kind", [ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.float6_e2m3fn])
def test_groups_move_what_they_cannot_reduce(kind):
    with grpcxx.Group(0, 1, f"127.0.0.1:{free_port()}") as group:
        array = array_of(kind, (8,))
        assert group.broadcast(array).tobytes() == array.tobytes()
        with pytest.raises(grpcxx.Error, match=f"sum of {kind.__name__} is not defined") as refused:
            group.all_reduce(array)
        assert refused.value.code == Code.INVALID_ARGUMENT


# Ranks on one host show each other the short ones, which go by messages without shared memory; the others are cut.
in_groups = pytest.mark.parametrize("shared_memory", ["on", "off"])
of_lengths = pytest.mark.parametrize("elements", [60, 480_000])
REDUCED = [np.float16, ml_dtypes.bfloat16, np.int8, np.uint8]
OPERATORS = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


def combined(arrays, op):
    """What all ranks get: combined in their order, floating point as float32 and rounded once."""
    kind = arrays[0].dtype
    if kind.kind in "iu":
        return functools.reduce(OPERATORS[op], arrays)
    with np.errstate(over="ignore"):
        wide = functools.reduce(OPERATORS[op], [array.astype(np.float32) for array in arrays])
        return (wide / np.float32(len(arrays)) if op == "mean" else wide).astype(kind)


@in_groups
@of_lengths
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", REDUCED, ids=lambda kind: np.dtype(kind).name)
def test_groups_reduce_short_types_to_the_same_bits(kind, size, elements, shared_memory):
    arrays = [np.random.default_rng(rank).integers(-90, 110, elements) for rank in range(size)]
    fraction = 1 if np.dtype(kind).kind in "iu" else np.float32(1.01)
    arrays = [(array * fraction).astype(kind) for array in arrays]
    operators = [op for op in OPERATORS if op != "mean" or fraction != 1]

    def code(group):
        mine = arrays[group.rank]
        return [(group.all_reduce(mine, op), group.reduce_scatter(mine, op)) for op in operators]

    wanted = [combined(arrays, op) for op in operators]
    for rank, found in enumerate(together(size, code, settings={"GRPCXX_SHM": shared_memory})):
        for op, all_of_it, (reduced, part) in zip(operators, wanted, found):
            assert reduced.dtype == part.dtype == kind
            assert reduced.tobytes() == all_of_it.tobytes(), op
            assert part.tobytes() == np.split(all_of_it, size)[rank].tobytes(), op


@in_groups
@of_lengths
@pytest.mark.parametrize("kind", [ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn], ids=lambda kind: kind.__name__)
def test_groups_of_ranks_move_float8_and_refuse_to_reduce_it(kind, elements, shared_memory):
    arrays = [np.random.default_rng(rank).integers(0, 256, elements, np.uint8).view(kind) for rank in range(3)]

    def code(group):
        mine = arrays[group.rank]
        moved = group.broadcast(mine, 2), group.all_gather(mine), group.all_to_all(mine)
        for call in (group.all_reduce, group.reduce_scatter, group.reduce):
            with pytest.raises(grpcxx.Error, match=f"sum of {kind.__name__} is not defined"):
                call(mine)
        group.barrier()
        return moved

    for rank, found in enumerate(together(3, code, settings={"GRPCXX_SHM": shared_memory})):
        parts = [np.split(array, 3)[rank] for array in arrays]
        for one, other in zip(found, (arrays[2], np.concatenate(arrays), np.concatenate(parts))):
            assert one.dtype == kind and one.tobytes() == other.tobytes()


def test_a_type_that_nobody_knows_is_refused_by_name(client):
    with pytest.raises(grpcxx.Error, match="arrays of longdouble|arrays of float128"):
        client.push("x", np.zeros(2, np.longdouble))


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class Holder:
    """A server by the C interface, which can make tensors of types that no array has."""

    def __init__(self):
        self.library = ctypes.CDLL(str(_library.library_path()))
        self.library.grpcxx_options_new.restype = ctypes.c_void_p
        self.library.grpcxx_engine_star_address.restype = ctypes.c_char_p
        options = ctypes.c_void_p(self.library.grpcxx_options_new())
        self.ok("grpcxx_options_set_listen", options, b"127.0.0.1:0", ctypes.c_size_t(11))
        self.engine = ctypes.c_void_p()
        self.ok("grpcxx_engine_start", options, ctypes.byref(self.engine))
        self.library.grpcxx_options_free(options)
        self.address = self.library.grpcxx_engine_star_address(self.engine).decode()

    def ok(self, function, *arguments):
        call = getattr(self.library, function)
        call.restype = ctypes.c_void_p
        assert call(*arguments) is None, function

    def keep(self, name, dtype, shape, data):
        tensor, dims = ctypes.c_void_p(), (ctypes.c_int64 * len(shape))(*shape)
        size, rank = ctypes.c_size_t(len(data)), ctypes.c_size_t(len(shape))
        self.ok("grpcxx_tensor_copy_new", dtype, dims, rank, False, data, size, ctypes.byref(tensor))
        names, tensors = (Text * 1)((name, len(name))), (ctypes.c_void_p * 1)(tensor)
        self.ok("grpcxx_store_put", self.engine, names, tensors, ctypes.c_size_t(1))
        self.library.grpcxx_tensor_release(tensor)

    def close(self):
        self.ok("grpcxx_engine_shutdown", self.engine, ctypes.c_uint64(100))
        self.library.grpcxx_engine_free(self.engine)


def test_packed_types_come_as_their_bytes():
    holder, data = Holder(), bytes(range(6))
    for name, dtype, shape in [(b"four", 220, (3, 4)), (b"six", 221, (2, 4)), (b"within a byte", 220, (4, 3))]:
        holder.keep(name, dtype, shape, data)
    with grpcxx.Client(holder.address, timeout=60) as client:
        assert client.stored()["six"] == ("float6_e2m3fn_packed", (2, 4), 6)
        pulled = client.pull(["four", "six", "within a byte"])
        assert [array.shape for array in pulled.values()] == [(3, 2), (2, 3), (6,)]
        assert all(array.dtype == np.uint8 and array.tobytes() == data for array in pulled.values())
        with pytest.raises(grpcxx.Error, match="float4_e2m1fn_packed"):
            client.pull("four", out=np.zeros((3, 2), np.uint8))
    holder.close()


# ---- Many arrays


MANY = 40_000


def test_a_push_of_many_arrays_is_one(server, client):
    arrays = {f"many.{index}": np.full(2, index, np.int32) for index in range(MANY)}
    client.push(arrays)
    assert len([name for name in client.stored() if name.startswith("many.")]) == MANY
    pulled = client.pull(list(arrays))
    assert list(pulled) == list(arrays)
    assert all(np.array_equal(pulled[name], array) for name, array in arrays.items())


def test_a_push_of_many_arrays_that_fails_leaves_nothing(client):
    arrays = {f"none.{index}": np.int8(1) for index in range(MANY)}
    with pytest.raises(grpcxx.Error):
        client.push({**arrays, "x" * 70_000: np.int8(1)})
    with pytest.raises(grpcxx.Error, match="name"):
        client.push({**arrays, "": np.int8(1)})
    assert not [name for name in client.stored() if name.startswith("none.")]


def test_many_arrays_as_the_first_call_of_a_client():
    code = f"""
import numpy as np, grpcxx
with grpcxx.Server() as server, grpcxx.Client(server.address, timeout=60) as client:
    client.push({{str(index): np.int8(1) for index in range({MANY})}})
    assert len(client.pull([str(index) for index in range({MANY})])) == {MANY}
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

"""Values that are more than their elements, or less: they arrive as they are, or are refused with what to do instead."""

import contextlib

import numpy as np
import pytest

import grpcxx
from grpcxx import Code


@pytest.fixture(scope="module")
def server():
    with grpcxx.Server() as server:
        server.register(lambda x: {"x": x}, name="echo")
        yield server


@pytest.fixture(scope="module")
def client(server):
    with grpcxx.Client(server.address, timeout=30) as client:
        yield client


class WithUnit(np.ndarray):
    """As packages for physics have them."""


MASKED = np.ma.masked_array([1, 2, 3], [False, True, False])
TITLED = np.zeros(2, np.dtype([(("the title", "a"), "<i4"), ("b", "<f8")]))

# Each with what the error says.
REFUSED = {
    "masked": (MASKED, ["1 of 3 elements are masked", ".filled(value)"]),
    "masked, 2D": (np.ma.masked_less(np.arange(6.0).reshape(2, 3), 3), ["3 of 6 elements are masked"]),
    "all masked": (np.ma.masked_all(4), ["4 of 4"]),
    "unit": (np.arange(3.0).view(WithUnit), ["WithUnit", "numpy.asarray"]),
    "records": (TITLED, ["records", "a, b"]),
    "recarray": (TITLED.view(np.recarray), ["records"]),
    "objects": (np.array([object(), 1], object), ["objects", "str and bytes"]),
    "numbers as objects": (np.array([1, 2], object), ["objects", "int"]),
    "none": (None, ["NoneType"]),
    "ragged": ([[1], [2, 3]], ["list"]),
    "dates": (np.array(["2026-01-01"], "datetime64[D]"), ["datetime64", "convert"]),
    "long double": (np.ones(2, np.longdouble), ["convert"]),
    "a set": ({1, 2}, ["objects"]),
}

ELEMENTS = {
    "matrix": np.arange(4).reshape(2, 2).view(np.matrix),
    "nothing masked": np.ma.masked_array([1.5, 2.5], [False, False]),
    "memmap": None,
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "big endian": np.arange(5, dtype=">i4"),
    "strides": np.arange(10)[::-3],
    "range": range(4),
    "scalar": np.float32(2.5),
}


def ways(server, client):
    """All that takes arrays, each with the name that its error gives."""
    yield "w", lambda value: client.push("w", value)
    yield "w", lambda value: client.push({"w": value})
    yield "w", lambda value: client.push_async("w", value).result(30)
    yield "x", lambda value: client.call("echo", {"x": value}, "x")
    yield "key", lambda value: client.send("key", value)
    yield "w", lambda value: server.push("w", value)
    yield "w", lambda value: server.push({"w": value})
    yield "key", lambda value: server.send("key", value)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_lose_its_meaning_is_refused(server, client, kind):
    value, texts = REFUSED[kind]
    for name, send in ways(server, client):
        with pytest.raises(grpcxx.Error) as refused:
            send(value)
        assert refused.value.code == Code.INVALID_ARGUMENT
        assert refused.value.message.startswith(f"{name}: "), refused.value.message
        for text in texts:
            assert text in refused.value.message
    server.register(lambda: {"y": value}, name="returns")
    with pytest.raises(grpcxx.Error) as refused:
        client.call("returns", {}, "y")
    assert all(text in refused.value.message for text in ["y: ", *texts])


@pytest.mark.parametrize("kind", ELEMENTS)
def test_what_is_its_elements_arrives(server, client, kind, tmp_path):
    value = ELEMENTS[kind]
    if kind == "memmap":
        value = np.memmap(tmp_path / "file", np.int32, "w+", shape=(1000, 3))
        value[:] = np.arange(3)
    wanted = np.asarray(value)
    np.testing.assert_array_equal(client.call("echo", {"x": value}, "x"), wanted)
    for push in (client.push, server.push):
        push("v", value)
        arrived = client.pull("v")
        assert type(arrived) is np.ndarray and arrived.shape == wanted.shape
        np.testing.assert_array_equal(arrived, wanted)


def test_strings_of_all_kinds_are_strings(client):
    texts = ["", "a", "längerer Text, und mehr davon"]
    kinds = [np.array(texts), np.array(texts, object), np.array([text.encode() for text in texts])]
    with contextlib.suppress(AttributeError):
        kinds.append(np.array(texts, np.dtypes.StringDType()))
    for kind in kinds:
        client.push("s", kind)
        assert [text.decode() for text in client.pull("s")] == texts


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1 has no such strings")
def test_strings_that_are_missing_are_refused(client):
    array = np.array(["a", None], np.dtypes.StringDType(na_object=None))
    with pytest.raises(grpcxx.Error, match="s: .*NoneType"):
        client.push("s", array)


def test_what_lacks_elements_is_refused(client):
    arrow = pytest.importorskip("pyarrow")
    np.testing.assert_array_equal(client.call("echo", {"x": arrow.array([1, 2])}, "x"), [1, 2])
    with pytest.raises(grpcxx.Error, match="x: .*lacks 1 of its elements"):
        client.call("echo", {"x": arrow.array([1, None, 3])}, "x")


def test_columns_of_pandas_arrive_or_are_refused(client):
    pandas = pytest.importorskip("pandas")
    for whole in (pandas.Series([1.5, 2.5]), pandas.array([1, 2], dtype="Int64"), pandas.Series([1, 2], dtype="Int8")):
        np.testing.assert_array_equal(client.call("echo", {"x": np.asarray(whole, float)}, "x"), np.asarray(whole, float))
    assert np.isnan(client.call("echo", {"x": pandas.Series([1.5, np.nan])}, "x")[1])
    for partial in (pandas.array([1, None], dtype="Int64"), pandas.Series([True, None], dtype="boolean")):
        with pytest.raises(grpcxx.Error, match="x: .*lacks 1 of its elements"):
            client.call("echo", {"x": partial}, "x")


def test_a_mask_is_not_overwritten(client):
    client.push("w", np.arange(3))
    with pytest.raises(grpcxx.Error, match="out must be"):
        client.pull("w", out=np.ma.masked_array([0, 0, 0], [True, False, False]))


# What groups refuse beside that.
TEXTS = {
    "str": np.array(["a", "bc"]),
    "bytes": np.array([b"a", b"bc"]),
    "str as objects": np.array(["a", "bc"], object),
}
with contextlib.suppress(AttributeError):
    TEXTS["StringDType"] = np.array(["a", "bc"], np.dtypes.StringDType())


@pytest.fixture(scope="module")
def group():
    with grpcxx.Group(0, 1, "127.0.0.1:0") as group:
        yield group


def ways_of_group(group):
    """All operations that take arrays, each with the name that its error gives."""
    names = "all_reduce reduce_scatter all_gather broadcast reduce gather scatter all_to_all"
    for operation in (getattr(group, name) for name in names.split()):
        yield "array", operation
        yield "array", lambda value, operation=operation: operation(value, async_=True).result(30)
    yield "arrays[1]", lambda value: group.all_reduce_many([np.zeros(2), value])


def assert_group_refuses(group, value, texts):
    for name, operation in ways_of_group(group):
        with pytest.raises(grpcxx.Error) as refused:
            operation(value)
        assert refused.value.code == Code.INVALID_ARGUMENT
        assert refused.value.message.startswith(f"{name}: "), refused.value.message
        assert all(text in refused.value.message for text in texts), refused.value.message


@pytest.mark.parametrize("kind", REFUSED)
def test_groups_refuse_what_would_lose_its_meaning(group, kind):
    assert_group_refuses(group, *REFUSED[kind])


@pytest.mark.parametrize("kind", TEXTS)
def test_groups_refuse_strings(group, kind):
    assert_group_refuses(group, TEXTS[kind], ["numbers", "strings"])


def test_groups_refuse_extension_arrays_that_are_no_numbers(group):
    pandas = pytest.importorskip("pandas")
    for value, texts in (
        (pandas.array([1, None], dtype="Int64"), ["IntegerArray lacks 1"]),
        (pandas.Series([True, None], dtype="boolean"), ["Series lacks 1"]),
        (pandas.array(["a", "b"], dtype="string"), ["strings"]),
        (pandas.Categorical(["a", "b"]), ["strings"]),
        (pandas.period_range("2026", periods=2, freq="D"), ["pandas.Period"]),
        (pandas.Series(["2026-01-01"], dtype="datetime64[ns]"), ["datetime64", "convert"]),
        (pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}), ["objects"]),
    ):
        assert_group_refuses(group, value, texts)


def test_groups_take_what_is_its_elements(group):
    values = [value for value in ELEMENTS.values() if value is not None]
    with contextlib.suppress(ImportError):
        import pandas

        values += [pandas.array([1, 2], dtype="Int64"), pandas.Series([1.5, np.nan])]
        values += [pandas.DataFrame({"a": [1, 2], "b": [1.5, 2]}), pandas.arrays.SparseArray([0, 0, 1])]
    for value in values:
        wanted = np.asarray(value)
        found = [group.all_reduce(value), group.broadcast(value), group.all_reduce_many([value])[0]]
        found += [group.all_gather(value).reshape(wanted.shape)]
        for array in found:
            assert type(array) is np.ndarray and array.shape == wanted.shape
            np.testing.assert_array_equal(array, wanted)


def test_groups_overwrite_no_mask(group):
    for out in (np.ma.masked_array([0.0, 0.0], [True, False]), np.zeros(2).view(WithUnit)):
        with pytest.raises(grpcxx.Error, match="out must be"):
            group.all_reduce(np.ones(2), out=out)
    matrix = np.zeros((1, 2)).view(np.matrix)
    group.all_reduce(np.ones((1, 2)), out=matrix)
    np.testing.assert_array_equal(matrix, [[1, 1]])

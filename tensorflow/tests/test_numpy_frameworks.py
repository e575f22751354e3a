"""Tensors of PyTorch and arrays of JAX, in both directions; each is left out where it is not installed."""

import numpy as np
import pytest
from ranks import together

import grpcxx
from grpcxx import Code

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def server():
    with grpcxx.Server() as server:
        yield server


@pytest.fixture
def client(server):
    with grpcxx.Client(server.address, timeout=30) as client:
        yield client


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def jax():
    jax = pytest.importorskip("jax")
    # Arrays of a GPU are refused.
    jax.config.update("jax_platforms", "cpu")
    return jax


def lent_bytes(code):
    before = grpcxx.memory_counters()
    code()
    after = grpcxx.memory_counters()
    return after["lent_bytes"] - before["lent_bytes"], after["copied_bytes"] - before["copied_bytes"]


@pytest.mark.parametrize("dtype", "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 complex64".split())
def test_torch_tensors_go_and_come_without_a_copy(client, torch, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    tensor = (torch.arange(MEGABYTE) % 100).to(getattr(torch, dtype))
    size = tensor.element_size() * tensor.nelement()
    assert lent_bytes(lambda: client.push("x", tensor)) == (size, 0)
    returned = grpcxx.torch_tensor(client.pull("x"))
    assert returned.dtype == tensor.dtype and torch.equal(returned, tensor)


def test_torch_tensors_with_gradients_and_strides_are_taken(client, torch):
    weights = torch.ones(100, 200, requires_grad=True)
    client.push({"weights": weights, "turned": weights.T, "part": weights[:, ::2]})
    pulled = client.pull(["weights", "turned", "part"])
    assert [array.shape for array in pulled.values()] == [(100, 200), (200, 100), (100, 100)]


def test_torch_tensors_without_plain_memory_are_refused_by_name(client, torch):
    with pytest.raises(grpcxx.Error, match="layout torch.sparse_coo") as caught:
        client.push("x", torch.eye(3).to_sparse())
    assert caught.value.code is Code.INVALID_ARGUMENT
    with pytest.raises(grpcxx.Error, match="does not lend its memory"):
        client.push("x", torch.ones(3, device="meta"))


@pytest.mark.parametrize("dtype", "bool uint8 int32 float16 bfloat16 float32 complex64".split())
def test_jax_arrays_go_and_come(client, jax, dtype):
    array = (jax.numpy.arange(MEGABYTE) % 100).astype(dtype)
    size = array.nbytes
    assert lent_bytes(lambda: client.push("x", array)) == (size, 0)
    returned = jax.numpy.asarray(client.pull("x"))
    assert returned.dtype == array.dtype and bool((returned == array).all())


def test_jax_arrays_are_combined_and_come_back(jax):
    mine = jax.numpy.arange(6.0, dtype="bfloat16").reshape(2, 3)

    def code(group):
        total = group.all_reduce(mine * (group.rank + 1))
        many = group.all_reduce_many([mine[group.rank], jax.numpy.float32(group.rank)], "max")
        # What one call returns, the next takes.
        return [jax.numpy.asarray(array) for array in (total, group.broadcast(jax.numpy.asarray(total)), *many)]

    expected = [3 * mine, 3 * mine, mine[1], jax.numpy.float32(1)]
    for found in together(2, code):
        assert [array.dtype for array in found] == [array.dtype for array in expected]
        assert all(bool((one == other).all()) for one, other in zip(found, expected))


class OnDevice:
    """An array of another library in memory of a device."""

    def __init__(self, kind):
        self._kind = kind

    def __dlpack_device__(self):
        return self._kind, 0

    def __dlpack__(self, **_):
        raise AssertionError("the memory of a device is asked for")


@pytest.mark.parametrize("kind, name", [(2, "cuda:0"), (10, "rocm:0"), (99, "device type 99:0")])
def test_memory_of_a_device_is_refused_by_one_clear_line(client, kind, name):
    with pytest.raises(grpcxx.Error, match=f"OnDevice lies in memory of {name}, .* copy it to the CPU") as caught:
        client.push("x", OnDevice(kind))
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert "\n" not in caught.value.message


def test_types_that_cannot_be_sent_are_refused_with_those_that_can(client):
    with pytest.raises(grpcxx.Error, match="float128 cannot be sent; convert it to one of .*bfloat16"):
        client.push("x", np.zeros(3, np.longdouble))

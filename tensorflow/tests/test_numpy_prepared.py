"""What a server is started with is there for those who come while it starts."""

import functools
import time

import numpy as np
import pytest
from ports import free_port

import grpcxx


def double(x):
    return 2 * x


def halve(x):
    return x / 2


class Early:
    """An array of the store whose server is called while it is converted, as by who has waited for the port."""

    def __init__(self, client):
        self.client = client

    def __array__(self, dtype=None, copy=None):
        it = self.client
        self.calls = [it.call_async("double", {"x": 2.0}), it.call_async("half", {"x": 2.0}), it.pull_async("w")]
        self.sent = it.send_async("k", np.full(3, 7.0))
        # A server that let them in already would answer meanwhile that there is nothing of these names.
        time.sleep(0.1)
        return np.array(3.0)


@pytest.mark.parametrize("functions", [{"double": double}, [double], (double,)])
def test_who_comes_early_finds_functions_and_arrays(functions):
    address = f"127.0.0.1:{free_port()}"
    with grpcxx.Client(address, timeout=20) as client:
        early = Early(client)
        with grpcxx.Server(address, functions=functions, short_functions={"half": halve}, store={"w": early}) as server:
            assert [call.result(20) for call in early.calls] == [4, 1, 3]
            early.sent.result(20)
            np.testing.assert_array_equal(server.recv("k", timeout=20), np.full(3, 7.0))


async def awaited(x):
    return x


@pytest.mark.parametrize(
    "wrong, error, text",
    [
        ({"store": {"w": object}}, grpcxx.Error, "w: an array of objects"),
        ({"store": "w"}, TypeError, "a mapping of names to arrays, and is a str"),
        ({"functions": {1: double}}, TypeError, "int"),
        ({"functions": {"double": 2}}, TypeError, "peers call functions, and 2 cannot be called"),
        ({"functions": "double"}, TypeError, "peers call functions, and 'd' cannot be called"),
        ({"functions": [functools.partial(double, 2)]}, TypeError, "has no name of its own: say by which"),
        ({"functions": [double], "short_functions": [double]}, grpcxx.Error, "2 functions are named double"),
        ({"functions": awaited}, TypeError, "awaited is async, and nothing awaits it"),
    ],
)
def test_what_cannot_be_prepared_is_told_and_leaves_the_port_free(wrong, error, text):
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(error, match=text) as kept:
        grpcxx.Server(address, **wrong)
    with grpcxx.Server(address, functions=[double]) as server, grpcxx.Client(server.address) as client:
        assert client.call("double", {"x": 2.0}) == 4
    del kept


@pytest.mark.parametrize(
    "wrong, name, error, text",
    [
        (2, None, TypeError, "peers call functions, and 2 cannot be called"),
        (functools.partial(double, 2), None, TypeError, "has no name of its own: say by which"),
        (awaited, None, TypeError, "awaited is async, and nothing awaits it"),
    ],
)
def test_what_cannot_be_called_is_not_registered(server, wrong, name, error, text):
    with pytest.raises(error, match=text):
        server.register(wrong, name=name)


def test_a_function_without_a_name_of_its_own_is_registered_by_another(server, client):
    server.register(functools.partial(lambda x, y: x - y, y=1), name="less")
    assert client.call("less", {"x": 3}) == 2

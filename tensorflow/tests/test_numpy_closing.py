"""What begins while a client, a server or a group is closed: it ends, or is refused."""

import numpy as np
import pytest

import grpcxx


class Closing:
    """An array that closes something while it is converted, as another thread may meanwhile."""

    def __init__(self, closes):
        self.closes = closes

    def __array__(self, dtype=None, copy=None):
        self.closes()
        return np.ones(3)


def is_closed():
    return pytest.raises(grpcxx.Error, match="this is closed")


def test_a_call_for_a_future_is_refused_once_its_client_is_closed(server):
    client = grpcxx.Client(server.address, settings={"GRPCXX_SHARDS": "1"})
    with is_closed():
        client.call_async("none", {"x": Closing(client.close)}, "x")
    client = grpcxx.Client(server.address, settings={"GRPCXX_SHARDS": "1"})
    with is_closed():
        client.push_async("x", Closing(client.close))


def test_an_operation_for_a_future_is_refused_once_its_group_is_closed():
    group = grpcxx.Group(0, 1, "127.0.0.1:0")
    with is_closed():
        group.all_reduce(Closing(group.close), async_=True)


def test_what_began_before_ends(server):
    with grpcxx.Client(server.address, settings={"GRPCXX_SHARDS": "1"}) as client:
        futures = [client.recv_async("never"), client.push_async("x", np.ones(3))]
    with pytest.raises(grpcxx.Error):
        futures[0].result(20)
    futures[1].exception(20)

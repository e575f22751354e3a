"""A rank that fails before its operation begins: it is not taken for its next operation."""

import numpy as np
import pytest
from ranks import together

import grpcxx


def gradients():
    yield np.ones(3)
    raise RuntimeError("there are no more gradients")


FAILS = {
    "an iterator": lambda group: group.all_reduce_many(gradients()),
    "what is no list": lambda group: group.all_reduce_many(3),
    "op of many": lambda group: group.all_reduce_many([np.ones(3)], op=None),
    "op": lambda group: group.all_reduce(np.ones(3), op=None),
    "op of a future": lambda group: group.all_reduce(np.ones(3), op=None, async_=True),
    "a root below 0": lambda group: group.broadcast(np.ones(3), root=-1),
    "a root too large": lambda group: group.reduce(np.ones(3), root=2**32),
    "a root that is no number": lambda group: group.gather(np.ones(3), root="0"),
    "a root of a future": lambda group: group.broadcast(np.ones(3), root=-1, async_=True),
}


@pytest.mark.parametrize("failure", FAILS)
def test_what_fails_before_it_begins_takes_the_place_of_an_operation(failure):
    def fails(group):
        with pytest.raises((grpcxx.Error, RuntimeError, TypeError)) as caught:
            FAILS[failure](group)
        assert "rank 1" not in str(caught.value)

    def code(group):
        # All fail, and go on.
        fails(group)
        assert (group.all_reduce(np.ones(3)) == 2).all()
        if group.rank == 1:
            fails(group)
        else:
            with pytest.raises(grpcxx.Error, match="rank 1 called what it refused"):
                group.all_reduce(np.ones(3))
        with pytest.raises(grpcxx.Error, match="rank 1 called what it refused"):
            group.all_reduce(np.full(3, 10.0))
        return True

    assert together(2, code, timeout=10) == [True, True]


def test_many_arrays_may_come_one_by_one():
    def code(group):
        return [found.tolist() for found in group.all_reduce_many(np.full(at, 1.0) for at in range(3))]

    assert together(2, code) == [[[], [2], [2, 2]]] * 2

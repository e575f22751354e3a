"""The exceptions of the package, beside what they have of Python's own."""

import pickle

import pytest

import grpcxx
from grpcxx import Code


@pytest.mark.parametrize("kind", [grpcxx.DeadlineExceeded, grpcxx.Unavailable])
def test_failures_have_no_number_of_the_system(kind):
    error = kind(Code.UNAVAILABLE, "gone")
    for found in (error, pickle.loads(pickle.dumps(error))):
        assert (found.errno, found.strerror) == (None, None), "code that looks for EINTR would call again"
        assert str(found) == "UNAVAILABLE: gone" and found.args == error.args

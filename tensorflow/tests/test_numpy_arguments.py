"""What a call cannot mean is refused at once, by the name of the argument and with what is allowed."""

import numpy as np
import pytest

import grpcxx
from grpcxx import Code

ARRAY = np.ones(3)
# A text that no encoding has, as `os.fsdecode` makes of bytes that are none.
NO_TEXT = "\udc80"


@pytest.fixture(scope="module")
def client():
    with grpcxx.Server() as server, grpcxx.Client(server.address) as client:
        yield client


REFUSED = {
    "a step that is too large": (lambda it: it.send("k", ARRAY, step=2**63), "step must be from -9223372036854775808 to"),
    "a step to receive": (lambda it: it.recv("k", step=-(2**70)), "step must be from .* and is -1180591620717411303424"),
    "an index": (lambda it: grpcxx.Client(it.address, task=("ps", -1)), "the index of a task, must be from 0 to 4294967295"),
    "a server's index": (lambda _: grpcxx.Server(index=2**32), "index of a task, must be from 0 to .* is 4294967296"),
    "a rank": (lambda _: grpcxx.Group(0, 2**40, "127.0.0.1:0"), "size must be from 0 to 4294967295, and is 1099511627776"),
    "a timeout of a client": (lambda it: grpcxx.Client(it.address, timeout=-1), "more than 0 seconds, and is -1"),
    "an address": (lambda _: grpcxx.Client(f"{NO_TEXT}:1"), "is no text that has an encoding"),
    "an address of a server": (lambda _: grpcxx.Server(f"{NO_TEXT}:1"), "is no text that has an encoding"),
    "a function": (lambda it: it.call(NO_TEXT), "is no text that has an encoding"),
    "a key": (lambda it: it.send(NO_TEXT, ARRAY), "is no text that has an encoding"),
    "a name to pull": (lambda it: it.pull(b"x"), "names of arrays are str, and 120 is not"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_call_can_mean_is_refused_by_name(client, what):
    call, text = REFUSED[what]
    with pytest.raises(grpcxx.Error, match=text) as caught:
        call(client)
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda it: it.send("k", ARRAY, step=1.5), "step must be an int"),
        (lambda it: it.send("k", ARRAY, step="1"), "step must be an int"),
        (lambda _: grpcxx.Group("0", 2, "127.0.0.1:0"), "a rank, or the index of a task, must be an int"),
    ],
)
def test_another_type_is_refused_by_name(client, call, text):
    with pytest.raises(TypeError, match=text):
        call(client)


def test_a_list_of_single_strings_is_an_array_of_strings(client):
    client.push("words", [np.array("one"), np.array(b"two"), np.str_("three")])
    assert client.pull("words").tolist() == [b"one", b"two", b"three"]

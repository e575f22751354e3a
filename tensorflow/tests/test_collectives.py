"""Ops that combine tensors of all ranks of a group."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ports import free_port

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).parent / "programs/collectives.py"
PAGE = Path(__file__).resolve().parents[2] / "docs/collectives.md"


def ranks(size, command):
    """What each of so many processes says."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    started = [
        subprocess.Popen(
            [sys.executable, *map(str, command(rank))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    try:
        ends = [process.communicate(timeout=180) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(started, ends):
        assert process.returncode == 0, errors
    return [output for output, _ in ends]


def found(size, case):
    rendezvous = f"127.0.0.1:{free_port()}"
    outputs = ranks(size, lambda rank: [PROGRAM, rank, size, rendezvous, case])
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.mark.smoke
@pytest.mark.parametrize("size", [1, 2])
def test_ops_of_all_ranks_give_what_they_should(size):
    results = found(size, "everything")
    brought = [np.arange(2.0 * size).reshape(size, 2) + 10 * rank for rank in range(size)]
    last = size - 1
    # In each step: 3 and 5 and 7 n ones, three loops of two, and every second time one more.
    steps = [size * (3 + 5 + 6 + 7 + (number % 2 == 0)) for number in range(4)]
    for rank, result in enumerate(results):
        wanted = {
            "sum": sum(brought),
            "max": brought[last],
            "reduce": sum(brought) / size * (rank == last),
            "scatter": sum(brought)[rank : rank + 1],
            "gather": np.concatenate(brought),
            "scalars": [array.sum() for array in brought],
            "broadcast": brought[last],
            "exchanged": np.stack([array[rank] for array in brought]),
        }
        for way in ("eager", "in_function", "in_session"):
            assert result[way].keys() == wanted.keys()
            for name, values in wanted.items():
                np.testing.assert_array_equal(result[way][name], values, f"{name} {way}")
        assert result["order"] == steps
        assert result["backward"] == [[2 * size] * 4] * 3
        check_order_of_gradients(size, result["order_of_gradients"])
        assert result["beside"] == [[size] * 4] * 2
        check_gradients(rank, size, result["gradients"])
        for error, text in result["tags"]:
            assert error == "ValueError" and "tags go from 0 to 65534" in text
        assert result["closed"][0] == "AbortedError" and "has left the group" in result["closed"][1]
    for case in ("bits", "keras"):
        assert all(result[case] == results[0][case] for result in results), case
    assert results[0]["bits"][-2:] == [[True, True], [0, 3]]


def check_order_of_gradients(size, found):
    right = [1001.0 * size]
    for case in ("nested", "mixed", "recomputed", "conditions", "condition", "direct"):
        assert found[case][0] == right, case
    assert found["direct"][1] == found["recomputed"][1] == right
    for case in ("nested", "mixed", "conditions", "condition"):
        error, text = found[case][1]
        assert error == "ValueError" and "take the gradient inside of the tf.function that holds" in text, case
    for error, text in found["loops"]:
        assert error == "ValueError" and "gradient of a loop" in text
    assert found["twice_direct"] == [2 * right[0]]
    error, text = found["twice_nested"]
    assert error == "ValueError" and "a gradient that several tapes record" in text
    error, text = found["twice_outside"]
    assert error == "ValueError" and "several tapes or a persistent one" in text
    assert found["in_loop"] == [2 * right[0]]
    assert found["unlike"] == [right] * 30


def check_gradients(rank, size, gradients):
    weights, factor = np.arange(1.0, size + 1), np.ones((size, 1)) * [1.0, 2.0]
    total, last = weights.sum(), size - 1
    wanted = {
        "sum": total * factor,
        "mean": weights.mean() * factor,
        "reduce": weights[last] / size * factor,
        # Row r of what this rank brings goes to rank r.
        "scatter": weights[:, np.newaxis] / size * factor,
        "gather": total * factor,
        "scalars": total * factor,
        "broadcast": total * factor * (rank == last),
        "exchanged": weights[:, np.newaxis] * factor,
    }
    for name, values in wanted.items():
        np.testing.assert_allclose(gradients[name], values, rtol=1e-6, err_msg=name)
    assert "GrpcxxAllReduce by max has no gradient; use sum or mean" in gradients["max"]


def test_what_differs_is_named_on_all_ranks_and_ends_the_group():
    for first, second in found(2, "differs"):
        assert first[0] == "InvalidArgumentError"
        assert "rank 1 called all_reduce(float32 [4], sum)" in first[1]
        assert second[0] == "InvalidArgumentError" and "called all_reduce" in second[1]


def test_what_a_rank_cannot_begin_is_not_taken_for_its_next_op():
    results = found(2, "cannot_begin")
    for error, text in results[0]:
        assert error == "InvalidArgumentError" and "rank 1 called what it refused" in text
    assert "rank 1 called what it refused" in results[1][1][1]


def test_a_forked_process_is_refused():
    for error, text in found(2, "forked"):
        assert error == "FailedPreconditionError" and "was forked from" in text


def test_a_rank_that_dies_is_named_by_an_op_that_waits_for_it():
    error, _ = found(2, "dies")
    assert error[0] == "AbortedError" and "rank 1 (127.0.0.1:" in error[1]


@pytest.mark.skipif(not PAGE.is_file(), reason=f"{PAGE} is not here: not a checkout")
def test_the_program_of_the_page_prints_what_it_says():
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    (program,) = [text for text in programs if "grpcxx.tensorflow" in text]
    program = program.replace("127.0.0.1:7777", f"127.0.0.1:{free_port()}")
    assert ranks(2, lambda rank: ["-c", program, rank]) == ["[1. 2.] [2. 2.]\n"] * 2

"""Processes that a rank of `grpcxx.parallel` starts, without TensorFlow."""

import json
import subprocess
import sys

import pytest

# Says what it finds as a worker, and what a worker of a worker finds.
WORKER = """
import json, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import grpcxx
from grpcxx import parallel
from grpcxx.data import shards

at_import = parallel.rank()

def look(depth):
    try:
        found = f"sum {parallel.group().all_reduce([1.0])[0]}"
    except grpcxx.Error as error:
        found = f"{error.code.name}: {error.message}"
    rows = [int(row) for batch in shards("x.npy", batch_rows=1) for row in batch["array"]]
    below = elsewhere(look, depth - 1) if depth else None
    return [at_import, parallel.rank(), parallel.size(), parallel.local_rank(), rows, found, below]

def elsewhere(function, *arguments):
    with ProcessPoolExecutor(1, multiprocessing.get_context("METHOD")) as pool:
        return pool.submit(function, *arguments).result()

if __name__ == "__main__":
    found = elsewhere(look, 1)
    text = f"{json.dumps(found):1000}".encode()
    every = parallel.group().all_gather(np.frombuffer(text, np.uint8)[None])
    print(json.dumps([json.loads(each.tobytes()) for each in every]))
"""


def ranks(folder, program):
    """What two ranks print."""
    path = folder / "script.py"
    path.write_text(program)
    finished = subprocess.run(
        [sys.executable, "-m", "grpcxx.parallel", "-n", "2", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_have_the_rank_of_the_process_that_starts_them(tmp_path, method):
    import numpy as np

    np.save(tmp_path / "x.npy", np.arange(4))
    for rank, found in enumerate(json.loads(ranks(tmp_path, WORKER.replace("METHOD", method)))):
        below = found.pop()
        for each in (found, below[:-1]):
            assert each[:5] == [rank, rank, 2, rank, [rank, rank + 2]]
            assert each[5].startswith("FAILED_PRECONDITION: "), "a worker is no rank of its own"


NESTED = """
import os, subprocess, sys

from grpcxx import parallel

parallel.group()
command = [sys.executable, "-c", "from grpcxx import parallel; print(parallel.rank(), parallel.size())"]
told = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "h", "MASTER_PORT": "7"}
for variables in ({}, told):
    print(subprocess.check_output(command, text=True, env={**os.environ, **variables}).strip(), flush=True)
if parallel.rank() == 0 and sys.argv[1:] == []:
    subprocess.check_call([sys.executable, "-m", "grpcxx.parallel", "-n", "3", __file__, "inner"])
"""


def test_a_job_that_a_rank_starts_has_ranks_of_its_own(tmp_path):
    assert ranks(tmp_path, NESTED).splitlines() == ["0 2", "2 3", "0 3", "2 3"]

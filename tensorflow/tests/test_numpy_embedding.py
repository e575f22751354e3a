"""The Python worker of examples/embedding, against its servers."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "embedding" / "python"))
# Behind what is installed, for the package without its engine lies there too.
sys.path.append(str(ROOT / "tensorflow"))

import embedding  # noqa: E402
import native  # noqa: E402

import grpcxx  # noqa: E402


@pytest.fixture(scope="module")
def program():
    chosen = native.FOR_TESTS if os.environ.get("TEST_ENGINE") else ["-p", "grpcxx-embedding"]
    subprocess.run(["cargo", "build", "--locked", "--quiet", *chosen], cwd=ROOT, check=True)
    return ROOT / "target" / "debug" / "embedding"


@pytest.fixture(params=[1, 2], ids=["one server", "two servers"])
def worker(program, request, tmp_path):
    servers, addresses = [], []
    try:
        for index in range(request.param):
            command = [program, "serve", "--listen", "127.0.0.1:0", "--table", "users:64:adagrad", "--table", "items:8"]
            command += ["--snapshots", tmp_path, "--index", str(index), "--servers", str(request.param)]
            servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            addresses.append(servers[-1].stdout.readline().split("star=")[1].split()[0])
        yield embedding.Embedding(*addresses)
    finally:
        for server in servers:
            server.terminate()
            assert server.wait(60) == 0


def test_rows_move_by_the_sum_of_their_gradients(worker):
    ids = np.array([1, 2, 2**63 + 5, 2], np.uint64)
    before = worker.lookup("items", ids)
    assert before.shape == (4, 8) and before.dtype == np.float32
    np.testing.assert_array_equal(before[1], before[3])
    worker.update("items", ids, np.ones((4, 8)), rate=0.5)
    moved = before - worker.lookup("items", ids)
    np.testing.assert_allclose(moved, np.outer([0.5, 1, 0.5, 1], np.ones(8)), atol=1e-6)


def test_adagrad_divides_by_what_it_has_seen(worker):
    ids = np.arange(1000)
    before = worker.lookup("users", ids)
    worker.update("users", ids, np.full((1000, 64), 2.0), rate=0.1)
    moved = before - worker.lookup("users", ids)
    np.testing.assert_allclose(moved, 0.1 * 2 / np.sqrt(0.1 + 4), rtol=1e-4)


def test_snapshots_have_all_rows(worker):
    worker.lookup("users", np.arange(500))
    assert sum(written["rows"] for written in worker.snapshot()) == 500


def test_wrong_shapes_and_tables_are_refused(worker):
    with pytest.raises(grpcxx.Error, match="want"):
        worker.update("items", [1], np.ones((1, 9)), rate=0.1)
    with pytest.raises(ValueError, match="2 gradients came with 1 ids"):
        worker.update("items", [1], np.ones((2, 8)), rate=0.1)
    with pytest.raises(grpcxx.Error, match="no function"):
        worker.update("nobody", [1], np.ones((1, 8)), rate=0.1)

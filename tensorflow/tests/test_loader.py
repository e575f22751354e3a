"""What TensorFlow opens on import: silent, and helpful where there is no plugin for this TensorFlow."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "plugin"))

import build

pytestmark = pytest.mark.processes

PROGRAM = """
import sys
import tensorflow as tf
tf.load_library(sys.argv[1])
print(tf.reduce_sum(tf.ones([3])).numpy())
tf.distribute.Server({"worker": ["127.0.0.1:" + sys.argv[2]]}, job_name="worker", task_index=0, protocol=sys.argv[3])
print("SERVES", flush=True)
import os
os._exit(0)
"""


@pytest.fixture
def packages(tmp_path):
    """A folder like site-packages with the loader, and a plugin for another version."""
    build.build_loader(tmp_path / "tensorflow-plugins")
    (tmp_path / "grpcxx/lib").mkdir(parents=True)
    (tmp_path / "grpcxx/lib/libgrpcxx_tensorflow_0.0.1.so").write_bytes(b"")
    shutil.copy(HERE.parent / "grpcxx/_missing.py", tmp_path / "grpcxx")
    return tmp_path


def run(packages, protocol):
    from ports import free_ports

    loader = packages / "tensorflow-plugins" / build.LOADER_NAME
    command = [sys.executable, "-c", PROGRAM, loader, str(free_ports(1)[0]), protocol]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.smoke
def test_without_a_build_tensorflow_works_and_grpcxx_says_what_to_do(packages):
    finished = run(packages, "grpc++")
    assert "3.0" in finished.stdout
    assert finished.returncode != 0
    assert "holds no plugin for TensorFlow" in finished.stderr
    assert "only for 0.0.1" in finished.stderr
    assert "pip install ./tensorflow" in finished.stderr


def test_without_a_build_other_protocols_stay_as_they_are(packages):
    finished = run(packages, "grpc")
    assert finished.returncode == 0, finished.stderr
    assert "SERVES" in finished.stdout
    assert "grpcxx" not in finished.stderr


def test_a_build_that_does_not_load_is_told(packages):
    version, _ = build.describe(sys.executable)
    (packages / "grpcxx/lib" / build.plugin_name(version)).write_bytes(b"no library")
    finished = run(packages, "grpc++")
    assert "does not load" in finished.stderr

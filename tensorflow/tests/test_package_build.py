"""Building, installing and removing the package, without TensorFlow and with something that looks like it."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
if not (PROJECT / "native.py").is_file():
    pytest.skip("needs a checkout", allow_module_level=True)
sys.path.insert(0, str(PROJECT))
import native  # noqa: E402

BUILD_TIMEOUT_S = 3000


def site_packages(folder):
    return folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture
def environment(tmp_path):
    """A virtual environment without packages; returns its interpreter."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    return folder / "bin/python"


def pip(*arguments, **variables):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRPCXX_")}
    finished = subprocess.run(
        command, env={**inherited, **variables}, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    return finished.returncode, finished.stdout + finished.stderr


def wheel(tmp_path, **variables):
    code, output = pip("wheel", "--no-deps", "--wheel-dir", tmp_path, PROJECT, **variables)
    assert code == 0, output
    (built,) = tmp_path.glob("*.whl")
    return built


def names(built):
    with zipfile.ZipFile(built) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def fake_tensorflow(folder, version):
    """Something that looks like an installed TensorFlow."""
    package = site_packages(folder) / "tensorflow"
    (package / "include").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    info = package.parent / f"tensorflow-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {version}\n")


def test_a_wheel_without_tensorflow_holds_the_engine_alone(tmp_path):
    built = wheel(tmp_path, GRPCXX_TENSORFLOW="none")
    assert built.name.startswith("grpcxx-0.1.0-cp39-abi3-manylinux_2_")
    files = names(built)
    assert {"grpcxx/__init__.py", "grpcxx/py.typed", "grpcxx/lib/libgrpcxx_capi.so"} <= files
    assert not [name for name in files if "tensorflow" in name and name != "grpcxx/tensorflow.py"]
    assert not [name for name in files if name.startswith("tests/")]


def test_finished_plugins_go_into_one_wheel(tmp_path):
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    for name in ("grpcxx_loader.so", "libgrpcxx_tensorflow_2.15.1.so", "libgrpcxx_tensorflow_2.21.0.so"):
        (plugins / name).write_bytes(b"fake")
    files = names(wheel(tmp_path, GRPCXX_PLUGINS=str(plugins)))
    assert {
        "tensorflow-plugins/grpcxx_loader.so",
        "grpcxx/lib/libgrpcxx_tensorflow_2.15.1.so",
        "grpcxx/lib/libgrpcxx_tensorflow_2.21.0.so",
    } <= files


def test_uninstalling_removes_all(tmp_path, environment):
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    for name in ("grpcxx_loader.so", "libgrpcxx_tensorflow_9.9.9.so"):
        (plugins / name).write_bytes(b"fake")
    built = wheel(tmp_path, GRPCXX_PLUGINS=str(plugins))
    packages = site_packages(environment.parents[1])
    code, output = pip("--python", environment, "install", "--no-deps", built)
    assert code == 0, output
    assert (packages / "tensorflow-plugins/grpcxx_loader.so").is_file()
    code, output = pip("--python", environment, "uninstall", "--yes", "grpcxx")
    assert code == 0, output
    assert list(packages.iterdir()) == []


def test_a_missing_cargo_is_told(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), str(tmp_path)])
    code, output = pip("wheel", "--no-deps", "--wheel-dir", tmp_path, PROJECT, PATH=path, HOME=str(tmp_path))
    assert code != 0
    assert "cargo is missing: install Rust" in output


def test_an_editable_install_is_refused(tmp_path, environment):
    code, output = pip("--python", environment, "install", "--no-deps", "-e", PROJECT)
    assert code != 0
    assert "cannot be installed with -e" in output


def test_the_tensorflow_of_an_environment_is_found_without_importing_it(environment, monkeypatch):
    fake_tensorflow(environment.parents[1], "2.99.1")
    monkeypatch.setenv("GRPCXX_TENSORFLOW", str(environment))
    # As in pip's build environment.
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    found = native.find_tensorflow(lambda _: None)
    assert found.version == "2.99.1"
    assert found.folder == site_packages(environment.parents[1]) / "tensorflow"


def test_an_environment_without_tensorflow_is_told(environment, monkeypatch):
    said = []
    monkeypatch.setenv("GRPCXX_TENSORFLOW", str(environment))
    assert native.find_tensorflow(said.append) is None
    assert "no TensorFlow is installed" in said[0]
    # A folder of that name is no package.
    (site_packages(environment.parents[1]) / "tensorflow").mkdir()
    assert native.find_tensorflow(said.append) is None


def test_a_choice_that_is_no_interpreter_is_refused(monkeypatch):
    monkeypatch.setenv("GRPCXX_TENSORFLOW", "2.21.0")
    with pytest.raises(native.BuildError, match="must be an interpreter or none"):
        native.find_tensorflow(lambda _: None)


def test_a_missing_compiler_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    tensorflow = native.TensorFlow("2.99.1", tmp_path, sys.executable)
    with pytest.raises(native.BuildError, match="no-such-compiler is missing: apt-get install g"):
        native.build_plugin(tensorflow, tmp_path / "libgrpcxx_capi.so", tmp_path, lambda _: None)

"""Compiles what of grpcxx is not Python: the engine (Rust), the TensorFlow plugin and its loader (C++).

Uses the standard library only, since it runs before anything is installed.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path


class BuildError(Exception):
    """Something is missing or does not compile; the text says what to do."""


@dataclass(frozen=True)
class TensorFlow:
    """An installed TensorFlow."""

    version: str
    """As TF_Version() gives it, such as 2.21.0."""
    folder: Path
    """The package, with `include/` and the shared libraries in it."""
    python: str
    """The interpreter that has it."""
    path: str = ""
    """What the interpreter needs in PYTHONPATH to see it."""


def installed_files(output, finished, say):
    """Compiles what is not there yet; returns where each file belongs in site-packages.

    `finished` is a folder with the plugins that `build_plugin` has made, and maybe the engine; with None the plugin is
    compiled for the TensorFlow that is installed, if there is one.
    """
    library = None if finished is None else finished / LIBRARY_NAME
    if library is None or not library.is_file():
        library = build_engine(output, say)
    if finished is None:
        tensorflow = find_tensorflow(say)
        plugins = [] if tensorflow is None else build_plugin(tensorflow, library, output / tensorflow.version, say)
    else:
        plugins = sorted(plugin for plugin in finished.glob("*.so") if plugin.name != LIBRARY_NAME)
        if LOADER_NAME not in [plugin.name for plugin in plugins]:
            raise BuildError(f"GRPCXX_PLUGINS names {finished}, which holds no {LOADER_NAME}")
    files = {library: f"grpcxx/lib/{library.name}"}
    for plugin in plugins:
        folder = "tensorflow-plugins" if plugin.name == LOADER_NAME else "grpcxx/lib"
        files[plugin] = f"{folder}/{plugin.name}"
    return files


def installed_programs(finished):
    """Which programs belong beside the interpreter: those that lie among what is finished."""
    if finished is None:
        return {}
    return {finished / name: name for name in PROGRAMS if (finished / name).is_file()}


def build_engine(output, say):
    """Compiles the engine, with the C interface and the extension module; returns the shared library."""
    cargo = shutil.which("cargo") or shutil.which(str(Path.home() / ".cargo/bin/cargo"))
    if cargo is None:
        raise BuildError("cargo is missing: install Rust 1.88 or later from https://rustup.rs")
    if shutil.which("cc") is None:
        raise BuildError("a C compiler is missing: apt-get install gcc libc6-dev")
    if not (REPOSITORY / "capi/Cargo.toml").is_file():
        raise BuildError(f"{REPOSITORY} is not a checkout of grpcxx: run pip install on the folder tensorflow/ of one")
    say("grpcxx: compiling the engine (minutes, the first time)")
    command = [cargo, "build", "--locked", "--message-format=json-render-diagnostics"]
    environment = dict(os.environ)
    if os.environ.get("TEST_ENGINE"):
        # With the features of the whole workspace nothing is compiled anew.
        command += FOR_TESTS
    elif is_free_threaded():
        # There is no stable ABI for these: the library is for this interpreter alone.
        command += [*FOR_USE, "--no-default-features"]
        environment["PYO3_PYTHON"] = sys.executable
    else:
        command += FOR_USE
        environment["PYO3_NO_PYTHON"] = "1"
    finished = subprocess.run(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if finished.returncode != 0:
        raise BuildError("cargo could not compile the engine; the reason is above")
    for line in finished.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == "grpcxx_python":
            built = next(name for name in message["filenames"] if name.endswith(".so"))
            output.mkdir(parents=True, exist_ok=True)
            return Path(shutil.copy(built, output / LIBRARY_NAME))
    raise BuildError("cargo compiled no shared library of the engine")


def build_plugin(tensorflow, library, output, say):
    """Compiles the plugin for one TensorFlow, and the loader; returns both."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise BuildError(
            f"the C++ compiler {compiler} is missing: apt-get install g++;"
            " or set GRPCXX_TENSORFLOW=none, for a package without the plugin"
        )
    say(f"grpcxx: compiling the plugin for TensorFlow {tensorflow.version} (a minute)")
    command = [sys.executable, REPOSITORY / "tensorflow/plugin/build.py", "--python", tensorflow.python]
    command += ["--out", output, "--engine", library]
    environment = dict(clean_environment(), PYTHONPATH=tensorflow.path)
    if subprocess.run(list(map(str, command)), env=environment, stdout=sys.stderr, check=False).returncode != 0:
        raise BuildError(f"the plugin does not compile against TensorFlow {tensorflow.version}; the reason is above")
    return [output / LOADER_NAME, output / f"libgrpcxx_tensorflow_{tensorflow.version}.so"]


def find_tensorflow(say):
    """The TensorFlow of the interpreter that is installed into, or of the one that GRPCXX_TENSORFLOW names."""
    chosen = os.environ.get("GRPCXX_TENSORFLOW", "")
    if chosen == "none":
        say("grpcxx: GRPCXX_TENSORFLOW=none, so there will be no plugin")
        return None
    if chosen and not os.access(chosen, os.X_OK):
        raise BuildError(f"GRPCXX_TENSORFLOW must be an interpreter or none, and is {chosen}")
    python = chosen or sys.executable
    finished = subprocess.run(
        [python, "-c", QUESTION], cwd="/", env=clean_environment(), stdout=subprocess.PIPE, text=True, check=False
    )
    if finished.returncode != 0:
        raise BuildError(f"{python} could not be asked for its TensorFlow; the reason is above")
    answer = json.loads(finished.stdout)
    if answer is None:
        say("grpcxx: no TensorFlow is installed, so there will be no plugin")
        return None
    tensorflow = TensorFlow(answer["version"], Path(answer["folder"]), python)
    if not (tensorflow.folder / "include").is_dir():
        raise BuildError(f"{tensorflow.folder} has no headers: install TensorFlow from a wheel of PyPI")
    say(f"grpcxx: found TensorFlow {tensorflow.version} in {tensorflow.folder}")
    return tensorflow


def clean_environment():
    """The environment without what pip sets for its build environment, which hides what is installed."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONNOUSERSITE")}


def is_free_threaded():
    """Whether the interpreter has no GIL."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def wheel_tag(finished):
    """What the wheel is for: every Python from 3.9 on, or one without a GIL; this platform.

    An engine that was compiled before may ask for another C library than that of this machine: auditwheel finds out.
    """
    is_compiled_here = finished is None or not (finished / LIBRARY_NAME).is_file()
    platform_name = platform_tag() if is_compiled_here else f"linux_{platform.machine()}"
    if not is_free_threaded():
        return f"cp39-abi3-{platform_name}"
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{python}-{python}t-{platform_name}"


def platform_tag():
    """The platform of the wheel: this machine, and its C library or a later one."""
    library, version = platform.libc_ver()
    if library != "glibc":
        raise BuildError(f"grpcxx needs Linux with glibc, and this is {platform.platform()}")
    return f"manylinux_{version.replace('.', '_')}_{platform.machine()}"


def output_folder():
    """Where compiled files are kept between builds."""
    return Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve() / "python"


REPOSITORY = Path(__file__).resolve().parent.parent
LOADER_NAME = "grpcxx_loader.so"
# The plugin looks for the C interface by this name.
LIBRARY_NAME = "libgrpcxx_capi.so"
# What cargo compiles: the engine alone, or what the tests of Rust need.
FOR_USE = ["--release", "-p", "grpcxx-python", "--lib"]
FOR_TESTS = ["--workspace", "--lib", "--bins", "--tests"]
PROGRAMS = ("grpcxx", "grpcxx-server")

# Does not import TensorFlow, which takes seconds. A folder `tensorflow` without a package in it also has a spec.
QUESTION = """
import importlib.metadata, importlib.util, json, os
spec = importlib.util.find_spec("tensorflow")
answer = None
if spec is not None and spec.origin:
    names = ["tensorflow", "tensorflow-cpu", "tensorflow-rocm", "intel-tensorflow", "tf-nightly"]
    for name in names:
        try:
            answer = {"version": importlib.metadata.version(name), "folder": os.path.dirname(spec.origin)}
            break
        except importlib.metadata.PackageNotFoundError:
            pass
print(json.dumps(answer))
"""

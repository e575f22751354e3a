"""Says what grpcxx finds on this machine, what is wrong, and what to do about it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from . import __version__

EXIT_WELL, EXIT_WRONG, EXIT_USAGE = 0, 1, 64

MEMLOCK_ENOUGH_BYTES = 8 << 20
SHARED_MEMORY_ENOUGH_BYTES = 256 << 20
TENSORFLOW_TIMEOUT_S = 120


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    subject: str
    value: str
    state: str = "ok"
    """`ok`; `note`: slower than it could be, or good to know; `wrong`: something will not work."""
    advice: str = ""
    """What to do, if anything."""


def main(arguments: list[str] | None = None) -> int:
    """Runs `python -m grpcxx`; returns the exit code."""
    options = _parse(arguments)
    findings = list(examine(options.endpoint_map, options.tensorflow))
    if options.json:
        wrong = sum(finding.state == "wrong" for finding in findings)
        print(json.dumps({"wrong": wrong, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _print(findings)
    return EXIT_WRONG if any(finding.state == "wrong" for finding in findings) else EXIT_WELL


def examine(endpoint_map: str | None = None, with_tensorflow: bool = True) -> Iterator[Finding]:
    """All findings. With TensorFlow it starts a server in a process of its own, which takes some seconds."""
    yield Finding("grpcxx", f"{__version__} in {Path(__file__).parent}")
    yield Finding("Python", f"{platform.python_version()} at {sys.executable}")
    yield Finding("NumPy", np.__version__)
    yield from _optional_types()
    try:
        from . import _library
    except (ImportError, OSError, AttributeError) as error:
        yield Finding("engine", str(error), "wrong", REINSTALL)
        return
    yield Finding("engine", f"{_library.version()} at {_library.library_path()}")
    yield from _tensorflow(with_tensorflow)
    yield from _machine(_library.facts())
    yield from _endpoint_map(endpoint_map)
    yield from _proxy()
    yield from _environment(_library.variables())


def _optional_types() -> Iterator[Finding]:
    try:
        yield Finding("ml_dtypes", importlib.metadata.version("ml_dtypes"))
    except importlib.metadata.PackageNotFoundError:
        yield Finding("ml_dtypes", "not installed", "note", "pip install ml_dtypes, for arrays of bfloat16, float8, int4")


def _tensorflow(is_tried: bool) -> Iterator[Finding]:
    builds = sorted(path.stem.rpartition("_")[2] for path in PLUGIN_FOLDER.glob("libgrpcxx_tensorflow_*.so"))
    version = _tensorflow_version()
    if version is None:
        advice = "install TensorFlow, then: " + REINSTALL if not builds else ""
        yield Finding("TensorFlow", "not installed; NumPy arrays need none", "note", advice)
        return
    yield Finding("TensorFlow", version)
    yield from _protobuf(version)
    if version not in builds:
        found = f"builds for {', '.join(builds)}" if builds else "no build"
        yield Finding("plugin", f"{found}, and TensorFlow is {version}", "wrong", REINSTALL)
        return
    yield Finding("plugin", f"built for {', '.join(builds)}")
    if not LOADER.is_file():
        yield Finding("loader", f"{LOADER} is missing", "wrong", REINSTALL)
        return
    yield Finding("loader", str(LOADER))
    if not is_tried:
        return
    finished = _try_server()
    if finished is None:
        yield Finding(
            "grpc++", f"no server within {TENSORFLOW_TIMEOUT_S} s", "wrong", "look at the load of the machine"
        )
    elif finished.returncode == 0:
        yield Finding("grpc++", "a server started with protocol grpc++")
    else:
        lines = [line for line in finished.stderr.splitlines() if line.strip()]
        reason = "\n".join(lines[-5:]) or f"the process ended with code {finished.returncode}"
        yield Finding("grpc++", reason, "wrong", "set GRPCXX_LOG=debug and try again; " + REINSTALL)


def _protobuf(tensorflow: str) -> Iterator[Finding]:
    try:
        version = importlib.metadata.version("protobuf")
    except importlib.metadata.PackageNotFoundError:
        return
    # pip takes the newest, which TensorFlow 2.20 does not forbid.
    if tensorflow.startswith("2.20.") and int(version.partition(".")[0]) >= 7:
        value = f"{version}, with which TensorFlow {tensorflow} cannot write checkpoints"
        yield Finding("protobuf", value, "wrong", "pip install 'protobuf<6'")
    else:
        yield Finding("protobuf", version)


def _tensorflow_version() -> str | None:
    # A folder `tensorflow` in the working directory has a spec too, but no origin.
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.origin:
        return None
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "intel-tensorflow", "tf-nightly"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return "of unknown version"


def _try_server() -> subprocess.CompletedProcess | None:
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    command = [sys.executable, "-c", TRY_SERVER]
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TENSORFLOW_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None


def _machine(facts: dict[str, str]) -> Iterator[Finding]:
    driver = f"{facts.get('driver', 'unknown')} ({facts.get('driver_why', 'no reason told')})"
    if facts.get("io_uring", "yes") == "yes":
        yield Finding("sockets", driver)
        yield from _locked_memory(facts.get("memlock_bytes", "unlimited"))
    else:
        advice = (
            "allow io_uring for less CPU time and latency: kernel 5.19 or later, sysctl kernel.io_uring_disabled=0, and"
            " in containers a seccomp profile with io_uring_setup, io_uring_enter and io_uring_register"
        )
        yield Finding("sockets", f"{driver}; io_uring: {facts['io_uring']}", "note", advice)
    yield Finding("threads", f"{facts.get('host', 'unknown')} ({facts.get('host_why', 'no reason told')})")
    yield _cpus(facts.get("cpus_allowed", "?"), facts.get("cpu_time", "?"))
    yield Finding("memory", _bytes(facts.get("memory_bytes", "unknown")))
    yield Finding("huge pages", facts.get("huge_pages", "unknown"))
    yield from _shared_memory(facts.get("shared_memory", "unknown"))
    yield _rdma(facts)
    yield Finding("policy", facts.get("policy", "unknown"))
    configuration = facts.get("configuration", "ok")
    if configuration == "ok":
        yield Finding("variables", "all can be read")
    else:
        yield Finding("variables", configuration, "wrong", "correct or unset them; docs/configuration.md has the list")


def _cpus(allowed: str, time: str) -> Finding:
    found = f"{allowed} that this process may use"
    if time in (allowed, "?"):
        return Finding("CPUs", found)
    advice = (
        "a control group limits the time of CPUs: a task that used up its part waits for the next period, up to 0.1 s;"
        " polling is left out where shards need more than that"
    )
    return Finding("CPUs", f"{found}, and the time of {time}", "note", advice)


def _locked_memory(limit: str) -> Iterator[Finding]:
    if limit.isdigit() and int(limit) < MEMLOCK_ENOUGH_BYTES:
        advice = "ulimit -l 65536, LimitMEMLOCK=64M in systemd, or --ulimit memlock=67108864 for Docker"
        yield Finding("locked memory", _bytes(limit), "note", advice)
    else:
        yield Finding("locked memory", _bytes(limit))


def _shared_memory(usable: str) -> Iterator[Finding]:
    if not usable.isdigit():
        yield Finding("shared memory", usable, "note", "without it peers on the same host use TCP")
        return
    value = f"counts as memory of the process, of which {_bytes(usable)} may be used; /dev/shm is not used"
    if int(usable) >= SHARED_MEMORY_ENOUGH_BYTES:
        yield Finding("shared memory", value)
    else:
        yield Finding("shared memory", value, "note", "allow more memory, such as --memory=4g for Docker")


def _rdma(facts: dict[str, str]) -> Finding:
    device = facts.get("rdma", "unknown")
    if device != "none":
        return Finding("RDMA", device)
    why = f"not used: {facts.get('rdma_why', 'unknown')}"
    if facts.get("rdma_devices", "none") == "none":
        return Finding("RDMA", f"{why}; the kernel has no device")
    advice = "install libibverbs1 and ibverbs-providers, and see that the port is up (ibv_devinfo) and GRPCXX_RDMA is auto"
    return Finding("RDMA", f"{why}; the kernel has {facts['rdma_devices']}", "note", advice)


def _endpoint_map(path: str | None) -> Iterator[Finding]:
    from ._library import endpoint_map, native
    from ._status import Code, Error

    try:
        found = endpoint_map(path)
    except Error as error:
        if error.code is Code.NOT_FOUND and path is None:
            yield Finding("endpoint map", "none: TensorFlow peers tell each other their data ports")
        else:
            advice = "the form is grpc_host:port=star_host:port, a line for each task; see docs/tensorflow.md"
            yield Finding("endpoint map", error.message, "wrong", advice)
        return
    yield Finding("endpoint map", f"{found.path} with {len(found.entries)} tasks")
    ports = [address.rpartition(":")[2] for address in found.entries.values()]
    warning = native.outgoing_ports_warning([int(port) for port in ports if port.isdecimal() and int(port) <= 65535])
    if warning:
        what, _, advice = warning.rpartition("; ")
        yield Finding("star ports", what, "note", advice)


def _proxy() -> Iterator[Finding]:
    """Whether TensorFlow's gRPC reaches the tasks of TF_CONFIG without a proxy."""
    from ._library import native

    with contextlib.suppress(AttributeError, TypeError, ValueError):
        cluster = json.loads(os.environ.get("TF_CONFIG", "")).get("cluster", {})
        lists = [tasks.values() if isinstance(tasks, dict) else tasks for tasks in cluster.values()]
        addresses = [address for tasks in lists for address in tasks]
        warning = native.proxy_warning([address.rpartition(":")[0].strip("[]") for address in addresses])
        if warning:
            what, _, advice = warning.rpartition("; ")
            yield Finding("proxy", what, "wrong", advice)


def _environment(variables: dict) -> Iterator[Finding]:
    for name, value in sorted(os.environ.items()):
        if name in variables or name.startswith("GRPCXX_"):
            yield Finding(name, ("(not shown)" if name == TOKEN else value) or "(empty)")


def _bytes(text: str) -> str:
    if not text.isdigit():
        return text
    size = float(text)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        first, *further = finding.value.splitlines() or [""]
        print(f"{MARKS[finding.state]} {finding.subject:{width}}  {first}")
        for line in further:
            print(f"{'':{width + 8}}{line}")
        if finding.advice:
            print(f"{'':{width + 8}}-> {finding.advice}")
    wrong = sum(finding.state == "wrong" for finding in findings)
    print("All is well." if not wrong else f"{wrong} wrong: see the lines marked with {MARKS['wrong'].strip()}.")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m grpcxx", description="GRPC++ for TensorFlow and NumPy.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    doctor = commands.add_parser(
        "doctor",
        help="say what is there and what is wrong",
        epilog="Exit codes: 0 well, 1 something is wrong, 64 usage.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--endpoint-map", metavar="FILE", help="the map to look at; else where DeepRec looks")
    doctor.add_argument(
        "--no-tensorflow", dest="tensorflow", action="store_false", help="do not start TensorFlow to try the plugin"
    )
    return parser.parse_args(arguments)


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


PLUGIN_FOLDER = Path(__file__).resolve().parent / "lib"
LOADER = Path(__file__).resolve().parent.parent / "tensorflow-plugins" / "grpcxx_loader.so"
# The variable whose value is a secret.
TOKEN = "GRPCXX_TOKEN"
REINSTALL = "in a checkout of grpcxx: pip install --force-reinstall --no-deps ./tensorflow"
MARKS = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}

# Port 0 would not do: the server's own address must be in the cluster.
TRY_SERVER = """
import socket
import tensorflow as tf
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = "127.0.0.1:%d" % free.getsockname()[1]
tf.distribute.Server({"ps": [address]}, job_name="ps", task_index=0, protocol="grpc++")
"""

"""Starts the ranks of a job on this host, and ends all of them when one fails; they begin again if that is asked."""

from __future__ import annotations

import argparse
import collections
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from . import _devices
from ._script import NOTHING_COMBINED, OTHER_FAILED

# How many last lines of a rank are kept, and how long one may be.
LINES_MAX, LINE_BYTES_MAX = 20, 2000
# How long a rank may take to end when it is told to.
STOP_S = 5.0
# How long to look for the rank that failed first, when one says that it was another.
CULPRIT_S = 3.0
# Exit codes that would be the same again: there is no script, or it combines nothing.
FINAL = {os.EX_NOINPUT, NOTHING_COMBINED}


def run(options: argparse.Namespace) -> int:
    """Runs the script as `-n` ranks; returns the exit code of the job."""
    held = _held_port()
    rendezvous = options.rendezvous or f"127.0.0.1:{held.getsockname()[1]}"
    for number in _ends():
        signal.signal(number, _end_by)
    try:
        gpus = _gpus(options)
        for restart in range(options.restarts + 1):
            code = _attempt(options, rendezvous, restart, gpus)
            if code == 0 or code in FINAL or restart == options.restarts:
                break
            told = f"restart {restart + 1} of {options.restarts}"
            print(f"grpcxx.parallel: all ranks begin again ({told})", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except _Ended as ended:
        return 128 + ended.number
    finally:
        held.close()


def _attempt(options: argparse.Namespace, rendezvous: str, restart: int, gpus: list[dict[str, str]]) -> int:
    """Runs the script once, until all ranks have ended or are stopped."""
    children: list[_Child] = []
    try:
        for rank in range(options.processes):
            children.append(_Child(rank, options, rendezvous, restart, gpus[rank]))
        return _watch(children)
    finally:
        _stop(children)


def python() -> list[str]:
    """This interpreter with its own flags, such as `-O`, `-X utf8` and `-u`."""
    # With those two a rank would not take the seed of its hashes.
    flags = [flag for flag in subprocess._args_from_interpreter_flags() if flag not in ("-E", "-I")]
    # Python tells `-u` by what it does alone.
    is_unbuffered = sys.stdout is not None and getattr(sys.stdout, "write_through", False)
    return [sys.executable, *flags, *(["-u"] if is_unbuffered else [])]


class _Child:
    """One rank. What it says on standard error goes on for rank 0, and is kept for the others."""

    def __init__(
        self, rank: int, options: argparse.Namespace, rendezvous: str, restart: int, variables: dict[str, str]
    ):
        self.rank = rank
        self.last: collections.deque[str] = collections.deque(maxlen=LINES_MAX)
        command = [*python(), "-m", "grpcxx.parallel", "--child"]
        command += ["--rank", str(rank), "--size", str(options.processes)]
        command += ["--rendezvous", rendezvous, "--shard", options.shard, "--bucket-mib", str(options.bucket_mib)]
        command += ["--timeout", str(options.timeout), "--join-timeout", str(options.join_timeout)]
        command += ["--output", options.output] if options.output else []
        command += ["--", options.script, *options.arguments]
        # Sets of strings have the same order in all ranks. Python takes an empty seed for none.
        seed = os.environ.get("PYTHONHASHSEED") or "0"
        environment = {**os.environ, **variables, "PYTHONHASHSEED": seed}
        self.log: IO[bytes] | None = None
        output = None if rank == 0 else subprocess.DEVNULL
        if options.output:
            Path(options.output).mkdir(parents=True, exist_ok=True)
            # What was said before a restart stays.
            path, mode = Path(options.output) / f"rank-{rank}.log", "ab" if restart else "wb"
            self.log = open(path, mode, buffering=0)
            output = None if rank == 0 else self.log
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=None if rank == 0 else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        cpus = _share(rank, options.processes)
        if cpus:
            os.sched_setaffinity(self.process.pid, cpus)
        self._reader = threading.Thread(target=self._read, name=f"rank-{rank}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Passes on what comes as it comes: a progress bar has no end of line for a long time."""
        targets = [target for target in (_own_stderr() if self.rank == 0 else None, self.log) if target is not None]
        rest = b""
        for piece in iter(lambda: self.process.stderr.read1(LINE_BYTES_MAX), b""):
            # The rank waits for its words to be taken, so they are even where nobody reads them any more.
            targets = [target for target in targets if _is_written(target, piece)]
            rest = self._keep(rest + piece)
        self._keep(rest + b"\n" if rest else b"")

    def _keep(self, text: bytes) -> bytes:
        """Keeps the lines of a text that others have not overwritten, and returns the last one while it has no end."""
        lines = text.splitlines(keepends=True)
        # The end of a line may be `\r\n`, of which a part has come.
        open_line = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if len(open_line) > LINE_BYTES_MAX:
            lines.append(open_line)
            open_line = b""
        shown = [line.rstrip(b"\r\n") for line in lines if not line.endswith(b"\r")]
        self.last.extend(line[:LINE_BYTES_MAX].decode(errors="replace") for line in shown)
        return open_line

    def heard(self) -> None:
        """Waits for the last lines, which a process that the rank has started may hold open."""
        self._reader.join(1.0)

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass


def _watch(children: list[_Child]) -> int:
    """Waits until all ranks have ended well, or one has not."""
    running = list(children)
    others: list[_Child] = []
    deadline = None
    verdict = 0
    while running and (deadline is None or time.monotonic() < deadline):
        for child in list(running):
            code = child.process.poll()
            if code is None:
                continue
            running.remove(child)
            if code == OTHER_FAILED:
                # It says that another rank has failed, which may take longer to end.
                others.append(child)
                deadline = deadline or time.monotonic() + CULPRIT_S
            elif code == NOTHING_COMBINED and child.rank == 0:
                # It has told so, and the others may still do work of their own.
                verdict = code
            elif code != 0:
                return _failed(child, code)
        time.sleep(0.05)
    return _failed(others[0], OTHER_FAILED) if others else verdict


def _failed(child: _Child, code: int) -> int:
    child.heard()
    how = f"exit code {code}" if code >= 0 else f"signal {_name(-code)}"
    print(f"grpcxx.parallel: rank {child.rank} ended with {how}, so the others are stopped", file=sys.stderr)
    if child.rank != 0 and child.last:
        print(f"grpcxx.parallel: the last lines of rank {child.rank}:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in child.last), file=sys.stderr)
    return code if code > 0 else 128 - code


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Real-time signals have numbers alone.
        return str(number)


def _stop(children: list[_Child]) -> None:
    """Ends all ranks and what they have started. Signals that come meanwhile are heard after it."""
    came: list[int] = []
    numbers = [signal.SIGINT, *_ends()]
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}
    try:
        _end(children)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)


def _end(children: list[_Child]) -> None:
    for child in children:
        if child.process.poll() is None:
            child.signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.signal(signal.SIGKILL)
            child.process.wait()
        # What a rank has started may have outlived it, and would be there when all begin again.
        child.signal(signal.SIGKILL)
        child.heard()
        if child.log is not None:
            child.log.close()


def _own_stderr() -> IO[bytes] | None:
    """Standard error without a buffer, which would keep what cannot be written until the end."""
    return None if sys.stderr is None else open(sys.stderr.fileno(), "wb", buffering=0, closefd=False)


def _is_written(target: IO[bytes], piece: bytes) -> bool:
    """Whether the target takes a piece, or does not any more."""
    try:
        while piece:
            written = target.write(piece)
            if written is None:
                # Whoever shares the terminal has made it one that does not block.
                select.select([], [target], [])
            else:
                piece = piece[written:]
    except OSError:
        return False
    return True


def _share(rank: int, size: int) -> set[int]:
    """The CPUs of a rank: an equal share of those that this process may use, if there is one for each."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < size:
        return set()
    return set(cpus[rank * len(cpus) // size : (rank + 1) * len(cpus) // size])


def _gpus(options: argparse.Namespace) -> list[dict[str, str]]:
    """What tells each rank its GPUs, unless there is nothing to divide."""
    size = options.processes
    if options.gpus == "all":
        return [{}] * size
    variable, devices = _devices.visible(os.environ)
    if 0 < len(devices) < size:
        count = f"{len(devices)} GPU{'s' * (len(devices) > 1)}"
        advice = "TF_FORCE_GPU_ALLOW_GROWTH=true keeps TensorFlow from taking all memory of one for one rank"
        print(f"grpcxx.parallel: {size} ranks share {count}; {advice}", file=sys.stderr)
    if len(devices) < 2:
        return [{}] * size
    return [{variable: ",".join(_devices.share(rank, size, devices))} for rank in range(size)]


def _held_port() -> socket.socket:
    """A socket at a port that the system gives to nobody else while it is open, and on which rank 0 can listen.

    It does not listen, and shares its port with listeners that say so before, as those of the engine do.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


class _Ended(BaseException):
    """A signal has come that ends the job."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def _end_by(number: int, _: object) -> None:
    raise _Ended(number)


def _ends() -> list[int]:
    """Signals that end the job beside Ctrl-C. A closed terminal sends SIGHUP, which nohup has ignored."""
    hears_hangup = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return [signal.SIGTERM, *([signal.SIGHUP] if hears_hangup else [])]

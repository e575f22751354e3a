"""Runs a script as one rank: joins the group, hooks into TensorFlow as it is imported, and leaves at the end."""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.abc
import importlib.util
import os
import random
import runpy
import signal
import sys
import threading
import traceback
from types import ModuleType
from typing import Any, Callable

import numpy as np

from .. import parallel
from ._ranks import Place

# Of what is called beside the gradients: a script may use ops of the group just then, by default under tag 0.
OWN_TAG = 65534

# Exit codes: another rank has failed; nothing was combined.
OTHER_FAILED, NOTHING_COMBINED = os.EX_UNAVAILABLE, os.EX_DATAERR


class State:
    """What the hooks of a rank share."""

    def __init__(self, place: Place, options: argparse.Namespace):
        self.rank, self.size = place.rank, place.size
        self.shard: str = options.shard
        self.bucket_bytes: int = options.bucket_mib << 20
        self.group = parallel._join(place)
        self.seed = 0
        self.combined = 0
        """How often gradients were combined."""
        self.sharded = 0
        """How many datasets were divided among the ranks."""
        self.failure: BaseException | None = None
        """The first error of the group."""
        self.variables: Any = None
        """The variables of TensorFlow, once it is imported."""
        self.divide_next = False
        """Whether the next data that Keras asks for is that for training."""

        self._told: set[str] = set()

    def say(self, text: str) -> None:
        """Tells the user, once for all ranks."""
        if self.rank == 0:
            print(f"grpcxx.parallel: {text}", file=sys.stderr, flush=True)

    def say_once(self, text: str) -> None:
        """The same, the first time that there is reason for it."""
        if text not in self._told:
            self._told.add(text)
            self.say(text)


def run(place: Place, options: argparse.Namespace) -> int:
    """Runs the script; returns its exit code, or raises what it raises."""
    if options.child:
        _end_with_parent()
    # The script trains alone, as far as it knows.
    os.environ.pop("TF_CONFIG", None)
    if place.rank != 0:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if not options.output:
            _silence()
    if not os.path.isfile(options.script):
        print(f"grpcxx.parallel: there is no script {options.script}", file=sys.stderr)
        return os.EX_NOINPUT
    from .._status import Error

    try:
        state = State(place, options)
        state.seed = _same_seed(state)
    except Error as error:
        print(f"grpcxx.parallel: rank {place.rank}: {error}", file=sys.stderr)
        return OTHER_FAILED
    _hook(state)
    sys.argv = [options.script, *options.arguments]
    # As Python tells them: a script may change its folder.
    path = os.path.abspath(options.script)
    sys.path[0] = os.path.dirname(path)
    code = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        if not _is_of_parser(end):
            code = _verdict(state, options.script)
    except BaseException as error:
        # TensorFlow makes errors of its own of what its ops raise.
        failure = error if isinstance(error, Error) else state.failure or _why_over(state)
        if failure is None:
            raise
        traceback.print_exc()
        print(f"grpcxx.parallel: rank {place.rank}: {failure}", file=sys.stderr, flush=True)
        code = OTHER_FAILED
    else:
        code = _verdict(state, options.script)
    finally:
        try:
            parallel._leave()
        except Error:
            # Why is told already, or does not matter any more.
            pass
    return code


def _is_of_parser(end: SystemExit) -> bool:
    """Whether a parser of arguments has ended the script, as for `--help`."""
    traceback_ = end.__traceback__
    while traceback_ is not None and traceback_.tb_next is not None:
        traceback_ = traceback_.tb_next
    name = traceback_.tb_frame.f_globals.get("__name__", "") if traceback_ is not None else ""
    return name.partition(".")[0] in ("absl", "argparse", "click", "optparse")


def _why_over(state: State) -> BaseException | None:
    """Why the group has failed, if it has."""
    from .._status import Error

    try:
        state.group.check()
    except Error as error:
        return error
    return None


def _verdict(state: State, script: str) -> int:
    # A script that asks for the group combines what it wants.
    if state.combined == 0 and not parallel._is_asked_for:
        state.say(
            f"{script} took no gradients of variables by Keras or tf.GradientTape, so nothing was combined:"
            f" each of the {state.size} ranks has done all of its work alone"
        )
        # Rank 0 tells it when it is done; another rank that failed before would have it stopped.
        return NOTHING_COMBINED if state.rank == 0 else 0
    if state.combined and state.sharded == 0 and state.size > 1 and state.shard != "none":
        state.say(
            "no dataset was divided: all ranks have trained with the same elements, unless the script divides them by"
            " grpcxx.parallel.rank() and size(). Model.fit and loops over a tf.data.Dataset do it by themselves"
        )
    return 0


def _same_seed(state: State) -> int:
    """Random numbers that the script does not seed are the same on all ranks, which divide what they shuffle."""
    drawn = np.array([random.SystemRandom().randrange(1 << 31)], np.int64)
    seed = int(state.group.broadcast(drawn, tag=OWN_TAG)[0])
    random.seed(seed)
    np.random.seed(seed)
    _seed_generators(seed)
    return seed


def _seed_generators(seed: int) -> None:
    """Generators that are made without a seed have the same one on all ranks, which make them in the same order."""
    original, seeds = np.random.default_rng, np.random.SeedSequence(seed)

    @functools.wraps(original)
    def default_rng(seed=None):
        return original(seeds.spawn(1)[0] if seed is None else seed)

    np.random.default_rng = default_rng


def _silence() -> None:
    """Standard output belongs to rank 0."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _end_with_parent() -> None:
    """This process ends when the one that has started it does, however that ends."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _hook(state: State) -> None:
    def tensorflow(module: ModuleType) -> None:
        from . import _gradients

        _gradients.install(module, state)

    def keras(module: ModuleType) -> None:
        from . import _keras

        _keras.install(module, state)

    def torch(module: ModuleType) -> None:
        module.manual_seed(state.seed)

    hooks = {"tensorflow": tensorflow, "keras": keras, "tf_keras": keras, "torch": torch}
    sys.meta_path.insert(0, _Finder(hooks))


class _Finder(importlib.abc.MetaPathFinder):
    """Runs code after the first import of a module."""

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]):
        self._hooks = hooks
        self._looking = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name not in self._hooks or getattr(self._looking, "name", None) == name:
            return None
        self._looking.name = name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.name = None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._hooks)
        return spec


class _Loader(importlib.abc.Loader):
    """A loader of another kind, and what follows it."""

    def __init__(self, loader: importlib.abc.Loader, hooks: dict[str, Callable[[ModuleType], None]]):
        self._loader, self._hooks = loader, hooks

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        hook = self._hooks.pop(module.__name__, None)
        if hook is not None:
            hook(module)

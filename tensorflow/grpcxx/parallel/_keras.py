"""`Model.fit` of Keras 2 and Keras 3: divides its data, means its logs, begins with the variables of rank 0."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import numpy as np

from ._data import divided, is_whole, keras_iterates, whole_steps
from ._script import State
from ._writes import leave_out


def install(keras: Any, state: State) -> None:
    """Changes Keras, in this process, as it has just been imported."""
    import tensorflow as tf

    name = keras.__name__
    if keras.__version__.startswith("2."):
        owner = importlib.import_module(f"{name}.src.engine.training").Model
        _divide_keras2(tf, importlib.import_module(f"{name}.src.engine.data_adapter"), state)
    elif keras.config.backend() == "tensorflow":
        owner = importlib.import_module(f"{name}.src.backend.tensorflow.trainer").TensorFlowTrainer
        _divide_keras3(tf, importlib.import_module(f"{name}.src.trainers.epoch_iterator"), state)
    else:
        state.say(f"Keras runs over {keras.config.backend()} here; gradients are combined over TensorFlow alone")
        return
    _fit(tf, keras, owner, state)
    _never_compile(owner, state)
    for method in ("evaluate", "predict"):
        _iterates_whole(owner, method)
    if state.rank != 0:
        _write_nothing(keras)


def _fit(tf: Any, keras: Any, owner: Any, state: State) -> None:
    original = owner.fit
    signature = inspect.signature(original)

    class Together(keras.callbacks.Callback):
        """Comes before all other callbacks, which therefore see the same on all ranks."""

        def on_train_begin(self, logs=None):
            state.variables.share()

        def on_epoch_end(self, epoch, logs=None):
            _mean_logs(state, logs)

    def chosen(callback):
        # They write, and training does not depend on them.
        writers = (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
        return state.rank == 0 or not isinstance(callback, writers)

    @functools.wraps(original)
    def fit(model, *arguments, **named):
        bound = signature.bind(model, *arguments, **named)
        given = bound.arguments
        callbacks = given.get("callbacks")
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks[:] = [Together(), *filter(chosen, callbacks.callbacks)]
            callbacks.callbacks[0].set_model(model)
        else:
            alone = [callbacks] if isinstance(callbacks, keras.callbacks.Callback) else callbacks
            given["callbacks"] = [Together(), *filter(chosen, alone or [])]
        if state.rank != 0:
            given["verbose"] = 0
        data = given.get("x")
        if isinstance(data, tf.data.Dataset) and is_whole(tf, data):
            # The script has divided it.
            state.sharded += 1
        elif state.shard != "none" and state.size > 1:
            # The first data that fit asks for is that for training.
            state.divide_next = True
            if given.get("steps_per_epoch"):
                given["steps_per_epoch"] = max(1, given["steps_per_epoch"] // state.size)
        with keras_iterates():
            return original(*bound.args, **bound.kwargs)

    owner.fit = fit


def _mean_logs(state: State, logs: dict[str, Any] | None) -> None:
    """Puts the means over all ranks into the logs of an epoch."""
    names = sorted(name for name, value in (logs or {}).items() if np.ndim(value) == 0)
    if names:
        values = np.array([float(logs[name]) for name in names])
        logs.update(zip(names, state.group.all_reduce(values, "mean").tolist()))


def _never_compile(owner: Any, state: State) -> None:
    """XLA has no operation that waits for other processes."""
    original = owner.compile

    @functools.wraps(original)
    def compile(model, *arguments, **named):
        if named.get("jit_compile") is True:
            state.say("jit_compile=True is left out: XLA cannot wait for other ranks")
        named["jit_compile"] = False
        return original(model, *arguments, **named)

    owner.compile = compile


def _iterates_whole(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(model, *arguments, **named):
        with keras_iterates():
            return original(model, *arguments, **named)

    setattr(owner, name, method)


class _Adapter:
    """What Keras gets its batches from, of which this rank takes its part."""

    def __init__(self, tf: Any, adapter: Any, pass_length: int | None, state: State):
        self._tf, self._adapter, self._pass_length, self._state = tf, adapter, pass_length, state
        self._dataset = None
        state.sharded += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    @property
    def num_batches(self) -> int | None:
        """As Keras 3 asks."""
        return None if self._pass_length is None else whole_steps(self._pass_length, self._state.size)

    def get_size(self) -> int | None:
        """As Keras 2 asks."""
        return self.num_batches

    def get_tf_dataset(self) -> Any:
        """As Keras 3 asks."""
        return divided(self._tf, self._adapter.get_tf_dataset(), self._state, self._pass_length)

    def get_dataset(self) -> Any:
        """As Keras 2 asks."""
        return divided(self._tf, self._adapter.get_dataset(), self._state, self._pass_length)


def _divide_keras3(tf: Any, epochs: Any, state: State) -> None:
    original = epochs.data_adapters.get_data_adapter

    @functools.wraps(original)
    def get_data_adapter(*arguments, **named):
        adapter = original(*arguments, **named)
        if not state.divide_next:
            return adapter
        state.divide_next = False
        return _Adapter(tf, adapter, adapter.num_batches, state)

    epochs.data_adapters.get_data_adapter = get_data_adapter


def _divide_keras2(tf: Any, adapters: Any, state: State) -> None:
    original = adapters.DataHandler._configure_dataset_and_inferred_steps

    @functools.wraps(original)
    def configure(handler, *arguments, **named):
        if state.divide_next:
            state.divide_next = False
            handler._adapter = _Adapter(tf, handler._adapter, handler._adapter.get_size(), state)
        return original(handler, *arguments, **named)

    adapters.DataHandler._configure_dataset_and_inferred_steps = configure


def _write_nothing(keras: Any) -> None:
    for owner, names in (
        (keras.Model, ("save", "save_weights", "export")),
        (keras.models, ("save_model",)),
        (getattr(keras, "saving", None), ("save_model", "save_weights")),
        (keras.callbacks.BackupAndRestore, ("_save_model", "on_train_end")),
    ):
        for name in names:
            leave_out(owner, name)

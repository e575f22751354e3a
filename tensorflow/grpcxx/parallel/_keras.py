"""Keras 2 and 3: `Model.fit` divides its data, means its logs and statistics, and begins as rank 0 does."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import numpy as np

from ._data import divided, is_whole, keras_iterates, whole_steps
from ._script import OWN_TAG, State
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
    for method in ("evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"):
        _iterates_whole(owner, method)
    for layer in _adapting(keras):
        _iterates_whole(layer, "adapt")
    if state.rank != 0:
        _write_nothing(keras)


def _fit(tf: Any, keras: Any, owner: Any, state: State) -> None:
    original = owner.fit
    signature = inspect.signature(original)

    class Together(keras.callbacks.Callback):
        """Comes before all other callbacks, which therefore see the same on all ranks."""

        has_trained = False

        def on_epoch_begin(self, epoch, logs=None):
            self.has_trained = True

        def on_test_begin(self, logs=None):
            # Validation comes before the end of an epoch.
            self.mean_statistics()

        def on_epoch_end(self, epoch, logs=None):
            self.mean_statistics()
            _mean_logs(state, logs)

        def mean_statistics(self):
            if self.has_trained:
                _mean_statistics(state, keras, self.model)
            self.has_trained = False

    class Restored(keras.callbacks.Callback):
        """Comes behind all other callbacks, of which some restore what rank 0 has written."""

        def on_train_begin(self, logs=None):
            _make_variables(self.model)
            state.variables.share_before()
            _begin_as_rank_0(state, self.model)

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
            callbacks.callbacks[:] = [Together(), *filter(chosen, callbacks.callbacks), Restored()]
            for added in (callbacks.callbacks[0], callbacks.callbacks[-1]):
                added.set_model(model)
        else:
            alone = [callbacks] if isinstance(callbacks, keras.callbacks.Callback) else callbacks
            given["callbacks"] = [Together(), *filter(chosen, alone or []), Restored()]
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
        try:
            with keras_iterates():
                return original(*bound.args, **bound.kwargs)
        finally:
            # It may have failed before it has asked for data.
            state.divide_next = False

    owner.fit = fit


def _make_variables(model: Any) -> None:
    """Makes the variables of an optimizer of Keras 2 that its first step would make, when it is too late to share them:
    a graph may read them before it has its gradients. What was restored for them is put into them."""
    make = getattr(model.optimizer, "build", getattr(model.optimizer, "_create_all_weights", None))
    if make is not None and model.built and not getattr(model.optimizer, "built", False):
        make(model.trainable_variables)


def _begin_as_rank_0(state: State, model: Any) -> None:
    """Begins with the epoch that rank 0 has restored. Keras 2 keeps it in a variable."""
    if hasattr(model, "_initial_epoch"):
        restored = np.array([model._initial_epoch or 0], np.int64)
        model._initial_epoch = int(state.group.broadcast(restored, tag=OWN_TAG)[0]) or None


def _mean_statistics(state: State, keras: Any, model: Any) -> None:
    """Gives layers of normalization the means over all ranks of what they keep, as each rank has seen other batches."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    kept = [variable for layer in layers if layer.trainable for variable in layer.non_trainable_variables]
    if kept:
        means = state.group.all_reduce_many([variable.numpy() for variable in kept], "mean", tag=OWN_TAG)
        for variable, mean in zip(kept, means):
            variable.assign(mean)


def _mean_logs(state: State, logs: dict[str, Any] | None) -> None:
    """Puts the means over all ranks into the logs of an epoch."""
    names = sorted(name for name, value in (logs or {}).items() if np.ndim(value) == 0)
    if names:
        values = np.array([float(logs[name]) for name in names])
        logs.update(zip(names, state.group.all_reduce(values, "mean", tag=OWN_TAG).tolist()))


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


def _adapting(keras: Any) -> list[Any]:
    """The classes that look at data before training: `Normalization`, `TextVectorization` and others."""
    layers = [one for one in vars(keras.layers).values() if inspect.isclass(one)]
    layers.append(getattr(keras.utils, "FeatureSpace", object))
    return list({base for layer in layers for base in layer.__mro__ if "adapt" in vars(base)})


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

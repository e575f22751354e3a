"""Datasets of `tf.data` give their elements in one order on all ranks, which take every `size`th each."""

from __future__ import annotations

import functools
from typing import Any


def install() -> None:
    """What the script makes with `deterministic=False` is made without: the argument counts more than options do."""
    from tensorflow.python.ops import gen_dataset_ops, gen_experimental_dataset_ops

    for owner, names in (
        (gen_dataset_ops, ("parallel_batch_dataset", "parallel_interleave_dataset_v4", "parallel_map_dataset_v2")),
        (gen_experimental_dataset_ops, ("legacy_parallel_interleave_dataset_v2", "parse_example_dataset_v2")),
    ):
        for name in names:
            _keeps_order(owner, name)


def _keeps_order(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def made(*arguments, **named):
        if named.get("deterministic") == "false":
            named["deterministic"] = "true"
        return original(*arguments, **named)

    setattr(owner, name, made)


def in_order(tf: Any, dataset: Any) -> Any:
    """The dataset without the option that lets elements overtake others."""
    if dataset.options().deterministic is not False:
        return dataset
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)

"""Operations on the tensors of all ranks of a group, as ops of TensorFlow; see docs/collectives.md.

They run in eager code, in `tf.function`, in sessions and in Keras, have gradients, and block no thread of TensorFlow
while they wait for other ranks. A gradient is an operation on all ranks too: all ranks use the result in their loss, or
none does.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import _pywrap_python_op_gen, func_graph, op_def_registry
from tensorflow.python.ops import cond_v2, gradients_util, while_v2

from . import _library, parallel
from ._status import Code, Error
from .group import Group

__all__ = ["all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "reduce", "reduce_scatter"]


def all_reduce(tensor: Any, op: str = "sum", *, group: Group | None = None, tag: int = 0, name: str | None = None):
    """Combines the tensors of all ranks by `sum`, `mean`, `min`, `max` or `prod`; each gets the result.

    The gradient, of `sum` and `mean`, is the same operation on the gradients of all ranks, all of which must use the
    result in their loss. In conditions and functions, take it in the `tf.function` that holds them.
    """
    return _run("GrpcxxAllReduce", tensor, group, tag, name, op=op)


def reduce_scatter(tensor: Any, op: str = "sum", *, group: Group | None = None, tag: int = 0, name: str | None = None):
    """Combines the tensors of all ranks; each gets its part, cut along the first dimension."""
    return _run("GrpcxxReduceScatter", tensor, group, tag, name, op=op, ranks=_size(group))


def reduce(
    tensor: Any,
    op: str = "sum",
    root: int = 0,
    *,
    group: Group | None = None,
    tag: int = 0,
    name: str | None = None,
):
    """Combines the tensors of all ranks; rank `root` gets the result, the others get zeros of its shape."""
    return _run("GrpcxxReduce", tensor, group, tag, name, op=op, root=root, ranks=_size(group))


def all_gather(tensor: Any, *, group: Group | None = None, tag: int = 0, name: str | None = None):
    """Each rank gets the tensors of all ranks, put together along the first dimension."""
    return _run("GrpcxxAllGather", tensor, group, tag, name, ranks=_size(group))


def broadcast(tensor: Any, root: int = 0, *, group: Group | None = None, tag: int = 0, name: str | None = None):
    """Each rank gets the tensor of rank `root`; the others give one of its type and shape."""
    return _run("GrpcxxBroadcast", tensor, group, tag, name, root=root, ranks=_size(group))


def all_to_all(tensor: Any, *, group: Group | None = None, tag: int = 0, name: str | None = None):
    """Each rank sends a part of its tensor to each rank, cut along the first dimension, and gets one of each."""
    return _run("GrpcxxAllToAll", tensor, group, tag, name)


def barrier(*, group: Group | None = None, tag: int = 0, name: str | None = None):
    """Ends when all ranks have come to it. Returns the op to run, in graphs of TensorFlow 1."""
    return _apply("GrpcxxBarrier", _key(group or parallel.group()), tag, name)


# ---- The group


def _size(group: Group | None) -> int:
    return (group or parallel.group()).size


def _key(group: Group) -> str:
    """The name under which the plugin has the group."""
    with _lock:
        key = _keys.get(group)
        if key is None:
            key = _keys[group] = _put(group)
        return key


def _handle(key: str, tag: int) -> tf.Tensor:
    """The group as a resource, one for each tag, by which TensorFlow knows in which order its ops run."""
    make = functools.partial(_generated()["GrpcxxGroup"], key=key)
    if not tf.executing_eagerly() and _is_for_session():
        return make()
    with _lock:
        handles = _handles.setdefault(key, {})
        if tag not in handles:
            # Functions take it from outside, so that it is the same in all of them.
            with tf.init_scope():
                handles[tag] = make()
        handle = handles[tag]
    return _captured(tf.compat.v1.get_default_graph(), handle)


def _put(group: Group) -> str:
    """Gives the group to the plugin, which then has it until it is collected."""
    global _count
    plugin = _library.plugin()
    if plugin is None:
        raise Error(
            Code.FAILED_PRECONDITION,
            "the plugin of grpcxx for this TensorFlow is not loaded: `python -m grpcxx doctor` says why",
        )
    _count += 1
    key = f"{group.name}/{_count}"
    plugin.GrpcxxTensorFlowPutGroup(key.encode(), group.c_handle())
    weakref.finalize(group, _remove, plugin, key)
    return key


def _remove(plugin: Any, key: str) -> None:
    _handles.pop(key, None)
    plugin.GrpcxxTensorFlowRemoveGroup(key.encode())


_keys: weakref.WeakKeyDictionary[Group, str] = weakref.WeakKeyDictionary()
_handles: dict[str, dict[int, tf.Tensor]] = {}
_count = 0
_lock = threading.Lock()


# ---- Ops


def _run(op_type: str, tensor: Any, group: Group | None, tag: int, name: str | None, **attributes: Any) -> Any:
    key = _key(group or parallel.group())
    return _apply(op_type, key, tag, name, tensor=tf.convert_to_tensor(tensor), **attributes)


def _apply(op_type: str, key: str, tag: int, name: str | None, **arguments: Any) -> Any:
    if not 0 <= tag <= _LAST_TAG:
        raise ValueError(f"the tag of {op_type} is {tag}; tags go from 0 to {_LAST_TAG}")
    make = functools.partial(_generated()[op_type], **arguments, tag=tag, key=key, name=name)
    if tf.executing_eagerly():
        return make(group=_handle(key, tag))
    graph = tf.compat.v1.get_default_graph()
    if graph._get_control_flow_context() is not None or (graph.building_function and _is_for_session()):
        raise ValueError(
            f"{op_type} lies in a condition, a loop or a function of a graph for a session, which has no order for it"
            " there: put it outside, or use tf.function without a session"
        )
    _check_order(op_type, graph, is_call=False)
    # By the resource tf.function finds the order of calls, loops and conditions; but there is nothing of that in graphs
    # for sessions, nor in functions that TensorFlow makes for gradients.
    last = _last_names.setdefault(graph, {})
    with tf.control_dependencies([graph.get_operation_by_name(last[tag])] if tag in last else []):
        made = make(group=_handle(key, tag))
    last[tag] = made.name if isinstance(made, tf.Operation) else made.op.name
    return made


_LAST_TAG = 65534
"""The ranks use the one behind it before the group begins."""

# The last op of each tag in a graph, by name: an op would keep its graph.
_last_names: weakref.WeakKeyDictionary[tf.Graph, dict[int, str]] = weakref.WeakKeyDictionary()


def _captured(graph: tf.Graph, handle: tf.Tensor) -> tf.Tensor:
    """The resource for a graph. Gradients of conditions take only what the function around them has."""
    if not isinstance(graph, cond_v2._CondGradFuncGraph):
        return handle
    outer = graph.outer_graph
    handle = _captured(outer, handle)
    return outer.capture(handle) if isinstance(outer, func_graph.FuncGraph) else handle


# ---- Graphs in which TensorFlow has no order for ops


def _check_order(what: str, graph: tf.Graph, *, is_call: bool) -> None:
    """Refuses what would run in another order on each rank, and so combine tensors that do not belong together."""
    for within in _functions(graph):
        _users.add(within)
        if isinstance(within, while_v2._WhileBodyGradFuncGraph):
            raise ValueError(
                f"{what} is needed for the gradient of a loop, in which TensorFlow has no order for it: take the"
                " gradient inside of the loop, write the loop in Python (`range`, not `tf.range`), or put the"
                " operation outside of the loop"
            )
        # One after the other in the innermost function; calls and conditions in it would not be.
        is_ordered = within._add_control_dependencies or (within is graph and not is_call)
        if not is_ordered and not within.name.endswith(_NEVER_RUN):
            raise ValueError(
                f"{what} lies in a condition or a function that is called, and {within.name}, which TensorFlow makes"
                " for a gradient, has no order for those: take the gradient inside of the tf.function that holds the"
                " condition or the call (`with tf.GradientTape()` and `tape.gradient` both there)"
            )


def _functions(graph: Any) -> Iterator[Any]:
    """The function that a graph is, and those around it."""
    while isinstance(graph, func_graph.FuncGraph):
        yield graph
        graph = graph.outer_graph


def _check_calls() -> None:
    """Lets calls of functions with ops be checked: TensorFlow keeps functions for gradients, and calls them again."""
    call = concrete_function.ConcreteFunction._call_flat

    @functools.wraps(call)
    def checked(function, tensor_inputs, captured_inputs):
        if tf.executing_eagerly() and function.graph in _users:
            inputs = [*tensor_inputs, *captured_inputs]
            if gradients_util.PossibleTapeGradientTypes(inputs) == gradients_util.POSSIBLE_GRADIENT_TYPES_HIGHER_ORDER:
                raise ValueError(
                    f"{function.graph.name} holds an operation on all ranks, and several tapes or a persistent one"
                    " record its call, for which TensorFlow has no order: take the gradients inside of the tf.function"
                )
        elif function.graph in _users:
            graph = tf.compat.v1.get_default_graph()
            _check_order(f"an operation on all ranks in {function.graph.name}", graph, is_call=True)
            if not function.graph._add_control_dependencies:
                # The order of calls is lost when they are replaced by what is in them.
                raise ValueError(
                    f"an operation on all ranks in {function.graph.name} is needed for a gradient that several tapes"
                    " record, for which TensorFlow has no order: call it outside of functions that a tf.function"
                    " calls, or take that gradient with one tape, which is not persistent"
                )
            captured_inputs = [_captured(graph, one) if _is_handle(one) else one for one in captured_inputs]
        return call(function, tensor_inputs, captured_inputs)

    concrete_function.ConcreteFunction._call_flat = checked


def _is_handle(tensor: Any) -> bool:
    with _lock:
        # Copied, for a group that is collected meanwhile takes its own away.
        return any(tensor is handle for handles in list(_handles.values()) for handle in handles.values())


_users: weakref.WeakSet[tf.Graph] = weakref.WeakSet()
"""Functions that hold ops, or call such functions."""
_NEVER_RUN = ("keras_graph", "scratch_graph")
"""Keras 2 makes these for the shapes alone."""

_check_calls()


# ---- What TensorFlow knows


def _is_for_session() -> bool:
    """Whether what is made is for a session of TensorFlow 1."""
    with tf.init_scope():
        return not tf.executing_eagerly()


@functools.cache
def _generated() -> dict[str, Any]:
    """The functions that TensorFlow generates for the ops of the plugin, by the types of the ops."""
    definitions = [op_def_registry.get(op_type) for op_type in _OP_TYPES]
    text = _pywrap_python_op_gen.GetPythonWrappers(op_def_pb2.OpList(op=definitions).SerializeToString())
    found: dict[str, Any] = {}
    exec(text, found)
    return {op_type: found[snake] for op_type, snake in _OP_TYPES.items()}


_OP_TYPES = {
    "GrpcxxGroup": "grpcxx_group",
    "GrpcxxAllReduce": "grpcxx_all_reduce",
    "GrpcxxReduceScatter": "grpcxx_reduce_scatter",
    "GrpcxxReduce": "grpcxx_reduce",
    "GrpcxxAllGather": "grpcxx_all_gather",
    "GrpcxxBroadcast": "grpcxx_broadcast",
    "GrpcxxAllToAll": "grpcxx_all_to_all",
    "GrpcxxBarrier": "grpcxx_barrier",
}


# ---- Gradients: what a rank brings has changed the results of all ranks, whose losses count as one sum.


def _text(op: tf.Operation, name: str) -> str:
    value = op.get_attr(name)
    return value.decode() if isinstance(value, bytes) else value


def _linear(op: tf.Operation) -> str:
    """The operator of a reduction that has a gradient."""
    operator = _text(op, "op")
    if operator not in ("sum", "mean"):
        raise ValueError(f"{op.type} by {operator} has no gradient; use sum or mean")
    return operator


def _gradient(op_type: str, of: tf.Operation, gradient: Any, **attributes: Any) -> list[Any]:
    # Not the resource of the op: behind a call of a function that is another tensor, and TensorFlow would see two.
    tensor = tf.convert_to_tensor(gradient)
    return [None, _apply(op_type, _text(of, "key"), of.get_attr("tag"), None, tensor=tensor, **attributes)]


@tf.RegisterGradient("GrpcxxAllReduce")
def _all_reduce_gradient(op, gradient):
    return _gradient("GrpcxxAllReduce", op, gradient, op=_linear(op))


@tf.RegisterGradient("GrpcxxReduceScatter")
def _reduce_scatter_gradient(op, gradient):
    ranks = op.get_attr("ranks")
    if _linear(op) == "mean":
        gradient = tf.convert_to_tensor(gradient) / ranks
    return _gradient("GrpcxxAllGather", op, gradient, ranks=ranks)


@tf.RegisterGradient("GrpcxxReduce")
def _reduce_gradient(op, gradient):
    ranks = op.get_attr("ranks")
    if _linear(op) == "mean":
        gradient = tf.convert_to_tensor(gradient) / ranks
    return _gradient("GrpcxxBroadcast", op, gradient, root=op.get_attr("root"), ranks=ranks)


@tf.RegisterGradient("GrpcxxAllGather")
def _all_gather_gradient(op, gradient):
    none, found = _gradient("GrpcxxReduceScatter", op, gradient, op="sum", ranks=op.get_attr("ranks"))
    return [none, tf.reshape(found, tf.shape(op.inputs[1]))]


@tf.RegisterGradient("GrpcxxBroadcast")
def _broadcast_gradient(op, gradient):
    return _gradient("GrpcxxReduce", op, gradient, op="sum", root=op.get_attr("root"), ranks=op.get_attr("ranks"))


@tf.RegisterGradient("GrpcxxAllToAll")
def _all_to_all_gradient(op, gradient):
    return _gradient("GrpcxxAllToAll", op, gradient)

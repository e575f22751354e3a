"""Data-parallel training with PyTorch: `model = grpcxx.torch.DataParallel(model)`; see docs/parallel.md."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import torch

from . import parallel
from ._arrays import as_array
from ._status import Code, Error
from .group import Group

__all__ = ["DataParallel"]


class DataParallel(torch.nn.Module):
    """A model whose gradients are the means over all ranks when `backward()` returns.

    All ranks begin with the parameters and buffers of rank 0, and each forward pass in training begins with its
    buffers. Gradients travel in buckets, the last layers first, beside the rest of the backward pass. A parameter that
    a rank has not used counts as zero there, and one that no rank has used keeps the gradient it has, or none.
    Parameters may be frozen and thawed, added and taken out, and get another type, on all ranks alike. Forward passes
    without gradients share nothing, so one rank may make some alone, and checkpoints may hold the whole model: what a
    reentrant one runs keeps the buffers of its rank. The model may lie on a GPU: its gradients go through pinned memory
    of the CPU. Move it there before, since its parameters stay where they are found here.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        group: Group | None = None,
        bucket_mib: int = 16,
        broadcast_buffers: bool = True,
    ):
        """Takes the ranks of `group`, by default those of `grpcxx.parallel.group()`."""
        super().__init__()
        _check_devices(module)
        self.module = module
        self._bucket_bytes = bucket_mib << 20
        self._broadcast_buffers = broadcast_buffers
        self._begin(group)
        self._follow()
        for buffer in module.buffers():
            _broadcast(self._group, buffer)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has: the model and the choices. It joins with its first pass, as one rank alone may make it."""
        return {name: value for name, value in self.__dict__.items() if name not in self._of_rank}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin(None)

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallel:
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        copied._group = self._group
        return copied

    def _begin(self, group: Group | None) -> None:
        before = set(self.__dict__)
        self._group = group
        self._tag: int | None = None
        self._is_synchronous = True
        self._is_backward = False
        self._next = 0
        self._shared: set[torch.nn.Parameter] = set()
        self._wanted: list[torch.nn.Parameter] = []
        self._arrangement: list[tuple[Any, ...]] = []
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[torch.nn.Parameter, _Bucket] = {}
        # What adds to a gradient lives only as long as somebody keeps it.
        self._accumulators: dict[torch.nn.Parameter, Any] = {}
        self._of_rank = {*self.__dict__, "_of_rank"} - before

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """The forward pass of the model."""
        # A checkpoint runs it once more in the midst of a backward pass, which goes on.
        is_again = _is_in_backward()
        if self._is_backward and not is_again:
            self._abandon()
        if torch.is_grad_enabled() and not self._is_backward:
            self._follow()
            if self.training and self._broadcast_buffers and self._is_synchronous and not is_again:
                for buffer in self.module.buffers():
                    _broadcast(self._group, buffer)
        return self.module(*arguments, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes in here stay with this rank, and are added up until the next one outside."""
        before, self._is_synchronous = self._is_synchronous, False
        try:
            yield
        finally:
            self._is_synchronous = before

    def _follow(self) -> None:
        """Comes up to the parameters of the model: the script adds some, takes some out, freezes and thaws others."""
        if self._tag is None:
            self._group = self._group or parallel.group()
            # A backward pass may end buckets of several models, on each rank in another order.
            self._tag = self._group._model_tag()
        present = set(self.module.parameters())
        self._shared &= present
        for parameter in self._accumulators.keys() - present:
            del self._accumulators[parameter]
        for parameter in self.module.parameters():
            if parameter not in self._shared:
                _broadcast(self._group, parameter)
                self._shared.add(parameter)
        for parameter in self._arrange():
            # A parameter that changes its type, as by `half()`, gets a new accumulator. Where gradients are off,
            # nothing leads to it.
            with torch.enable_grad():
                accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            if accumulator is not self._accumulators.get(parameter):
                accumulator.register_hook(self._hook(parameter))
                self._accumulators[parameter] = accumulator

    def _arrange(self) -> list[torch.nn.Parameter]:
        """Puts the parameters that require gradients now into buckets, and returns them."""
        wanted = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        arrangement = [(id(one), one.dtype, one.device, one.shape) for one in wanted]
        if arrangement != self._arrangement:
            # Parameters that are gone leave their numbers to others, unless they are kept.
            self._wanted, self._arrangement = wanted, arrangement
            self._buckets = _buckets(wanted, self._bucket_bytes)
            self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        return wanted

    def _hook(self, parameter: torch.nn.Parameter):
        def ready(*_):
            if not self._is_synchronous:
                return
            if not self._is_backward:
                # It may have been frozen or thawed since the forward pass.
                self._arrange()
                self._is_backward = True
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            bucket = self._bucket_of.get(parameter)
            if bucket is not None:
                if bucket.has_begun:
                    raise self._late(parameter)
                bucket.missing.discard(parameter)
                self._begin_whole()

        return ready

    def _late(self, late: torch.nn.Parameter) -> Error:
        """Some ranks might have more to send of a bucket that is under way, and others not."""
        name = next((name for name, parameter in self.module.named_parameters() if parameter is late), "a parameter")
        return Error(
            Code.FAILED_PRECONDITION,
            f"{name} gets another part of its gradient in one backward pass, and the first is on its way to the other"
            " ranks: it is used several times, under checkpoints that are reentrant. Make them with"
            " use_reentrant=False",
        )

    def _begin_whole(self) -> None:
        """Begins buckets that have all of their gradients, on all ranks in the same order."""
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._buckets[self._next].begin(self._group, self._tag)
            self._next += 1

    def _abandon(self) -> None:
        """Lets go of a backward pass that an exception has ended: nobody has called `_finish`."""
        for bucket in self._buckets[: self._next]:
            bucket.forget()
        # Other ranks may have begun those that are missing: what comes next here must not meet them.
        for _ in self._buckets[self._next :]:
            self._group._refuse(self._tag)
        self._reset()

    def _reset(self) -> None:
        self._is_backward, self._next = False, 0
        for bucket in self._buckets:
            bucket.missing, bucket.has_begun = set(bucket.parameters), False

    def _finish(self) -> None:
        """Ends a backward pass."""
        try:
            while self._next < len(self._buckets):
                self._buckets[self._next].begin(self._group, self._tag)
                self._next += 1
            for bucket in self._buckets:
                bucket.end()
        except BaseException:
            self._abandon()
            raise
        self._reset()


class _Bucket:
    """Parameters of one type whose gradients travel together."""

    def __init__(self, parameters: list[torch.nn.Parameter]):
        self.parameters = parameters
        self.missing = set(parameters)
        """Those whose gradients are not there yet, in this backward pass."""
        self.has_begun = False
        """Whether its gradients are on their way, in this backward pass."""
        self.forget()

    def forget(self) -> None:
        """Takes memory of its own, which what may still be under way does not use."""
        # Behind the gradients, two marks for each parameter say whether this rank has one, and whether it is dense.
        elements = sum(parameter.numel() + 2 for parameter in self.parameters)
        # A GPU copies to and from pinned memory at the speed of its bus.
        is_pinned = any(parameter.is_cuda for parameter in self.parameters)
        self._sent, self._received = (
            torch.empty(elements, dtype=self.parameters[0].dtype, pin_memory=is_pinned) for _ in range(2)
        )
        self._future: Future[Any] | None = None

    def begin(self, group: Group, tag: int) -> None:
        self.has_begun = True
        parts, marks = self._parts(self._sent)
        found = []
        for parameter, part in zip(self.parameters, parts):
            gradient = None if parameter.grad is None else parameter.grad.detach()
            found.append((gradient is not None, gradient is not None and not gradient.is_sparse))
            if gradient is None:
                part.zero_()
            else:
                part.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        marks.copy_(torch.tensor(found))
        sent, received = as_array(self._sent), as_array(self._received)
        self._future = group.all_reduce(sent, "mean", out=received, tag=tag, async_=True)

    def end(self) -> None:
        self._future.result()
        parts, marks = self._parts(self._received)
        for parameter, part, (is_there, is_dense) in zip(self.parameters, parts, marks.tolist()):
            # An optimizer would move a parameter that no rank has used by a gradient of zero: by decay and momentum.
            if not is_there:
                continue
            if not is_dense:
                # Rows of an embedding, which some optimizers want so: those that are not zero.
                parameter.grad = part.to_sparse(1).to(parameter.device)
            elif parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = part.to(parameter.device, copy=True)
            else:
                with torch.no_grad():
                    parameter.grad.copy_(part)

    def _parts(self, flat: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        *parts, marks = flat.split([*(parameter.numel() for parameter in self.parameters), 2 * len(self.parameters)])
        return [part.view(parameter.shape) for parameter, part in zip(self.parameters, parts)], marks.view(-1, 2)


def _is_in_backward() -> bool:
    """Whether this thread is in a backward pass."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: None)
    except RuntimeError:
        return False
    return True


def _buckets(parameters: list[torch.nn.Parameter], limit_bytes: int) -> list[_Bucket]:
    """Parameters in the order in which the backward pass comes to them, about."""
    found: list[list[torch.nn.Parameter]] = []
    open_lists: dict[torch.dtype, tuple[list[torch.nn.Parameter], int]] = {}
    for parameter in reversed(parameters):
        size = parameter.numel() * parameter.element_size()
        together, used = open_lists.get(parameter.dtype, ([], limit_bytes))
        if used + size > limit_bytes:
            together, used = [], 0
            found.append(together)
        together.append(parameter)
        open_lists[parameter.dtype] = together, used + size
    return [_Bucket(together) for together in found]


def _broadcast(group: Group, tensor: torch.Tensor) -> None:
    """Gives a tensor the values that it has at rank 0."""
    whole = tensor.detach().cpu().contiguous()
    group.broadcast(as_array(whole), out=as_array(whole))
    if whole.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(whole)


def _check_devices(module: torch.nn.Module) -> None:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device.type not in ("cpu", "cuda"):
            raise Error(
                Code.INVALID_ARGUMENT,
                f"{name} lies in memory of {tensor.device}, and grpcxx.torch combines tensors of the CPU and of CUDA:"
                " move the model there with .cpu() or .cuda()",
            )

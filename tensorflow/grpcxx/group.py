"""Groups of processes that combine arrays: all-reduce, broadcast, gather and the like."""

from __future__ import annotations

import ipaddress
import itertools
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from ._engine import Engine, checked

# Tags of models but the first: below those of `grpcxx.parallel`, far from those that programs count up from 0, and a
# part of the 1,024 that a group can have. Models that share one are no more used together by then.
_MODEL_TAGS = range(65533, 65533 - 256, -1)
_NOTHING = np.empty(0, np.uint8)


class Group:
    """One rank of a group of processes. Use it in a `with` block, or call `close`.

    All ranks call the same operations, with the same types and shapes, in the same order. Each method waits for its
    result with the GIL released; with `async_=True` it returns a `concurrent.futures.Future` at once. Operations of
    one `tag` go one after the other, those of different tags beside each other.

    Arrays that are given may be anything that NumPy can see without a copy (arrays, DLPack, the buffer protocol). They
    must stay as they are until the operation has ended. A result lies in `out`, if that is given, which must have its
    type and shape and may be the array that is given. What an operation still writes is refused where another one would read it too
    early: copied (less than 4 KiB, strides, in place), or under another tag.

    When a rank dies, hangs, leaves or calls something else than the others, the operations of all ranks raise
    `grpcxx.Error` with its name, and so do all later ones. Those that are left can make a new group with the next
    `generation`.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        rendezvous: str,
        *,
        listen: str | None = None,
        address: str | None = None,
        name: str = "default",
        generation: int = 0,
        timeout: float = 60.0,
        join_timeout: float = 60.0,
        settings: Mapping[str, Any] | None = None,
    ):
        """Meets the other ranks at `rendezvous`, `host:port`, where rank 0 listens.

        A rank listens at `listen`, `host:port`, and the others dial it at `address`; rank 0 they dial at `rendezvous`,
        whatever its `address` says. By default the other ranks listen
        at a free port of the address from which they reach rank 0, and say so. Behind NAT, or in a container whose
        ports are mapped, give both: `listen="0.0.0.0:7000", address="203.0.113.5:7000"`. Where only `address` is
        given, a rank listens there, or at its port of all addresses if this host does not have it. Each rank logs
        where it listens, what the others dial, and why.

        `timeout` is how many seconds an operation may go on without a message of a rank that it waits for,
        `join_timeout` how many the ranks may take to meet. `settings` gives variables of docs/configuration.md.
        """
        self.rank = rank
        self.size = size
        self.name = name
        self._model_tags = itertools.chain([0], itertools.cycle(_MODEL_TAGS))
        listen = listen or _listen(rank, rendezvous, address)
        # Threads wait for operations, and turn the shard meanwhile. What peers without extensions still send is taken
        # for some seconds; ranks have them, and one that hangs before it says so is not worth the time.
        own = {"GRPCXX_SHARDS": "1", "GRPCXX_DRAIN_MS": "0"}
        self._engine = Engine(("rank", rank), listen, {**own, **checked(settings)}, waits=True)
        try:
            self._native = self._engine.native.group(
                rank, size, rendezvous, name, address, generation, timeout, join_timeout
            )
        except BaseException:
            self._engine.close()
            raise

    def all_reduce(self, array: Any, op: str = "sum", *, out: np.ndarray | None = None, tag: int = 0, async_=False):
        """Combines the arrays of all ranks by `sum`, `mean`, `min`, `max` or `prod`; each gets the result."""
        return self._run("all_reduce", array, op, 0, tag, out, async_)

    def all_reduce_many(self, arrays: Iterable[Any], op: str = "sum", *, tag: int = 0) -> list[np.ndarray]:
        """Combines several arrays one by one. Small ones of the same type travel together."""
        _check_tag(tag)
        return self._native.all_reduce_many(arrays, op, tag)

    def reduce_scatter(
        self, array: Any, op: str = "sum", *, out: np.ndarray | None = None, tag: int = 0, async_=False
    ):
        """Combines the arrays of all ranks; each gets its part, cut along the first dimension."""
        return self._run("reduce_scatter", array, op, 0, tag, out, async_)

    def all_gather(self, array: Any, *, out: np.ndarray | None = None, tag: int = 0, async_=False):
        """Each rank gets the arrays of all ranks, put together along the first dimension."""
        return self._run("all_gather", array, "sum", 0, tag, out, async_)

    def broadcast(self, array: Any, root: int = 0, *, out: np.ndarray | None = None, tag: int = 0, async_=False):
        """Each rank gets the array of rank `root`; the others give one of its type and shape."""
        return self._run("broadcast", array, "sum", root, tag, out, async_)

    def reduce(
        self, array: Any, op: str = "sum", root: int = 0, *, out: np.ndarray | None = None, tag: int = 0, async_=False
    ):
        """Combines the arrays of all ranks; rank `root` gets the result, the others get `None`."""
        return self._run("reduce", array, op, root, tag, out, async_)

    def gather(self, array: Any, root: int = 0, *, out: np.ndarray | None = None, tag: int = 0, async_=False):
        """Rank `root` gets the arrays of all ranks, put together along the first dimension; the others get `None`."""
        return self._run("gather", array, "sum", root, tag, out, async_)

    def scatter(self, array: Any, root: int = 0, *, out: np.ndarray | None = None, tag: int = 0, async_=False):
        """Each rank gets its part of the array of rank `root`; the others give one of a part's type and shape."""
        return self._run("scatter", array, "sum", root, tag, out, async_)

    def all_to_all(self, array: Any, *, out: np.ndarray | None = None, tag: int = 0, async_=False):
        """Each rank sends a part of its array to each rank, and gets one of each."""
        return self._run("all_to_all", array, "sum", 0, tag, out, async_)

    def barrier(self, *, tag: int = 0, async_=False):
        """Ends when all ranks have called it."""
        return self._run("barrier", _NOTHING, "sum", 0, tag, None, async_)

    def _refuse(self, tag: int) -> None:
        """Takes the place of an operation that this rank cannot begin, though others may."""
        self._native.refuse(tag)

    def _model_tag(self) -> int:
        """The tag of the next model whose gradients the ranks combine: all of them make models in one order."""
        return next(self._model_tags)

    def check(self) -> None:
        """Raises `grpcxx.Error` if the group is over: what its next operation would raise."""
        self._native.check()

    def close(self) -> None:
        """Leaves the group, once the others have what this rank has sent, and stops its engine.

        If they do not take it within `timeout`, this raises `grpcxx.DeadlineExceeded`, and the rank has left. In a
        group that has failed it only waits until they have heard why, for 2 seconds at most.
        """
        if self._engine.closed.is_set():
            return
        try:
            self._native.leave()
        finally:
            self._engine.close()

    def c_handle(self) -> int:
        """A handle of the C interface for this group, `grpcxx_group*`, which the caller ends by `grpcxx_group_free`."""
        return self._native.c_handle()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _run(self, kind: str, array: Any, op: str, root: int, tag: int, out: Any, is_async: bool) -> Any:
        _check_tag(tag)
        if not is_async:
            return self._native.run(kind, array, op, root, tag, out, None)
        future: Future[Any] = self._engine.submit(
            lambda future: self._native.run(kind, array, op, root, tag, out, future)
        )
        return future


def _check_tag(tag: int) -> None:
    # The ranks use the last one before the group begins.
    if not 0 <= tag < 65535:
        raise ValueError(f"the tag is {tag}; tags go from 0 to 65534")


def _listen(rank: int, rendezvous: str, address: str | None) -> str:
    """Where a rank listens: where the others dial it if this host has that address, else on the way to rank 0."""
    is_told = address is not None and rank != 0
    host, family, kind, place = _look_up(address if is_told else rendezvous, "address" if is_told else "rendezvous")
    if is_told or rank == 0:
        ip = place[0] if _is_here(family, place[0]) and not _is_alias(host, place[0]) else _all(family)
        return _joined(ip, place[1])
    with socket.socket(family, kind) as way:
        # No packet goes out; the system only says by which address it would.
        way.connect(place)
        ip = way.getsockname()[0]
    # Rank 0 is on this host, and its name leads to a loopback address, which other hosts cannot dial.
    return _joined(_all(family) if _is_alias(host, ip) else ip, 0)


def _look_up(text: str, what: str):
    """The host of `host:port`, and what the system says of it."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{what} is {text!r}; give a host:port, with a port up to 65535")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)
    except OSError as error:
        raise ValueError(f"{what} is {text!r}, and nobody knows that host: {error}") from None
    # Tasks listen on IPv4 unless they can be reached by IPv6 alone.
    family, kind, _, _, place = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return host, family, kind, place


def _is_here(family: int, ip: str) -> bool:
    """Whether this host has the address, so that one can listen there."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def _is_alias(host: str, ip: str) -> bool:
    """Whether a name of this host leads to a loopback address, as 127.0.1.1 in Debian's /etc/hosts does."""
    if not ipaddress.ip_address(ip).is_loopback or host.lower() == "localhost":
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _all(family: int) -> str:
    return "0.0.0.0" if family == socket.AF_INET else "::"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

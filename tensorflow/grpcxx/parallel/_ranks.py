"""Which rank of how many a process is, and where the ranks meet: from variables that launchers set."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial


class RankError(Exception):
    """Variables that contradict each other or are not enough; the text says what to do."""


@dataclass(frozen=True)
class Place:
    """One process of a job."""

    rank: int
    size: int
    rendezvous: str
    """`host:port` at which rank 0 listens; empty where a launcher does not tell it."""
    local_rank: int | None = None
    """The number among the ranks of this host, if a launcher tells it."""
    timeout: float = 600.0
    """How many seconds a rank may keep the others waiting, such as by writing a checkpoint."""
    join_timeout: float = 300.0
    """How many seconds the ranks may take to meet."""
    launcher: str = ""
    """Who has set the variables."""
    is_inherited: bool = False
    """Whether another process is this rank, and has started this one."""


def from_environment(environment: Mapping[str, str] = os.environ, size: int | None = None) -> Place | None:
    """What the first launcher tells that has set its variables, in the order of docs/launch.md.

    `size` is the number of ranks that the user gives, for launchers that do not tell it.
    """
    # torchrun runs inside of a step of Slurm or MPI, and starts more processes than that knows of; others that set RANK
    # know less than those where both do, but more than PRRTE, which tells no size.
    is_whole = size is None and "PRTE_LAUNCHED" in environment and {"RANK", "WORLD_SIZE"} <= environment.keys()
    first = (_torch_run,) if "TORCHELASTIC_RUN_ID" in environment or is_whole else ()
    for read in (_tf_config, *first, partial(_prrte, size), _numbered, _torch_run):
        place = read(environment)
        if place is not None:
            if not 0 <= place.rank < place.size:
                raise RankError(f"{place.launcher} tells rank {place.rank} of {place.size}, which cannot be")
            return place if place.local_rank is not None else replace(place, local_rank=local_rank(environment))
    return None


def leave_to_descendants(place: Place) -> None:
    """Tells the processes that this rank starts its place: a worker that is spawned begins without its memory."""
    told = [place.rank, place.size, place.local_rank, place.launcher]
    os.environ[_INHERITED] = json.dumps({"place": told, "beside": _told()})


def inherited() -> Place | None:
    """The place of the rank that has started this process, unless a launcher between them has set others."""
    text = os.environ.get(_INHERITED)
    if text is None:
        return None
    left = json.loads(text)
    if left["beside"] != _told():
        return None
    rank, size, local, launcher = left["place"]
    return Place(rank, size, "", local, launcher=launcher, is_inherited=True)


def _told() -> str:
    """What the variables of launchers tell, or why they tell nothing."""
    try:
        return repr(from_environment())
    except RankError as error:
        return str(error)


def local_rank(environment: Mapping[str, str]) -> int | None:
    """What torchrun tells, and users where a launcher tells nothing."""
    return _number(environment, "LOCAL_RANK")


def of_indexed_job(
    size: int | None, rendezvous: str | None, environment: Mapping[str, str] = os.environ
) -> Place | None:
    """A pod of an indexed Job of Kubernetes, which knows its number alone."""
    rank = _number(environment, "JOB_COMPLETION_INDEX")
    if rank is None or size is None or rendezvous is None:
        return None
    if rank >= size:
        raise RankError(f"JOB_COMPLETION_INDEX is {rank}, and -n is {size}; give the completions of the Job")
    return Place(rank, size, rendezvous, 0, launcher="Kubernetes")


def _tf_config(environment: Mapping[str, str]) -> Place | None:
    text = environment.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        told = config.get("cluster") or config.get("sparseCluster") or {}
        cluster = {job: _addresses(job, tasks) for job, tasks in told.items()}
        if not any(cluster.values()):
            # A program that runs alone, or a rank of another launcher.
            return None
        task = config["task"]
        if set(cluster) - {"chief", "worker"}:
            raise RankError(f"TF_CONFIG has tasks {sorted(cluster)}; ranks are made of chief and worker alone")
        chiefs, workers = cluster.get("chief", []), cluster.get("worker", [])
        rank = int(task["index"]) + (len(chiefs) if task["type"] == "worker" else 0)
        if task["type"] not in cluster:
            raise RankError(f"TF_CONFIG says that this is a {task['type']}, of which the cluster has none")
        addresses = [*chiefs, *workers]
        hosts = [address.rpartition(":")[0] for address in addresses]
        own = hosts[rank : rank + 1]
        before_on_host = sum([host] == own for host in hosts[:rank])
        return Place(rank, len(addresses), addresses[0], before_on_host, launcher="TF_CONFIG")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise RankError(f"TF_CONFIG cannot be read ({type(error).__name__}: {error}): {text[:200]!r}") from error


def _addresses(job: str, tasks: list[str] | dict[str, str] | None) -> list[str]:
    """The addresses of a job, which may have them by index."""
    if not isinstance(tasks, dict):
        return list(tasks or [])
    by_index = {int(index): address for index, address in tasks.items()}
    if sorted(by_index) != list(range(len(by_index))):
        raise RankError(f"TF_CONFIG tells only the tasks {sorted(by_index)} of {job}; ranks have to know all others")
    return [by_index[index] for index in range(len(by_index))]


def _prrte(size: int | None, environment: Mapping[str, str]) -> Place | None:
    """A rank of `prterun`. Under `mpirun` of Open MPI, which is one too, more is told."""
    if "PRTE_LAUNCHED" not in environment or "OMPI_COMM_WORLD_RANK" in environment:
        return None
    rank = _number(environment, "PMIX_RANK")
    if rank is None:
        return None
    if size is None:
        raise RankError(f"PRRTE tells rank {rank}, and not how many there are: give their number with -n")
    return Place(rank, size, "", launcher="PRRTE")


def _torch_run(environment: Mapping[str, str]) -> Place | None:
    """`RANK` and its relatives, which torchrun, Ray and others set. The port beside theirs is ours."""
    if "MASTER_ADDR" not in environment:
        return None
    pair = _pair(environment, "RANK", "WORLD_SIZE")
    if pair is None:
        return None
    port = _number(environment, "MASTER_PORT")
    if port is None or not 0 < port < 65535:
        raise RankError(f"MASTER_PORT is {environment.get('MASTER_PORT')!r}; give a port from 1 to 65534")
    return Place(*pair, f"{environment['MASTER_ADDR']}:{port + 1}", launcher="RANK")


def _numbered(environment: Mapping[str, str]) -> Place | None:
    """Launchers that tell ranks; where rank 0 is, `grpcxx launch` finds out."""
    for launcher, rank, size, local in _NUMBERED:
        pair = _pair(environment, rank, size)
        if pair is not None:
            return Place(*pair, "", _number(environment, local), launcher=launcher)
    return None


def _pair(environment: Mapping[str, str], rank: str, size: str) -> tuple[int, int] | None:
    found = _number(environment, rank), _number(environment, size)
    if found == (None, None) or (rank == "SLURM_PROCID" and found[1] is None):
        # A batch script of Slurm has a number and no step: it is no rank.
        return None
    if None in found:
        missing, other = (rank, size) if found[0] is None else (size, rank)
        raise RankError(f"{other} is set, but {missing} is not")
    return found


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise RankError(f"{name} is {text!r}, which is no number")
    return int(text)


# Launchers do not read it: a job that a rank starts has ranks of its own.
_INHERITED = "_GRPCXX_PLACE"

_NUMBERED = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)

"""`python -m grpcxx.parallel -n 4 train.py`: starts the ranks, or is one."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import replace

from . import _launch, _ranks, _script


def main() -> int:
    options = _parsed(sys.argv[1:])
    if (options.rank is None) != (options.size is None):
        return _refuse("give --rank and --size together")
    try:
        place = _place(options)
    except _ranks.RankError as error:
        return _refuse(str(error))
    if place is None:
        if options.processes is None:
            return _refuse("no launcher has told a rank: say with -n how many processes to start here")
        return _launch.run(options)
    if options.restarts:
        return _refuse(
            f"--restarts is for ranks that -n starts here, and these were started by {place.launcher}: let that start"
            " them again, as grpcxx launch --restarts does"
        )
    if options.processes not in (None, place.size):
        return _refuse(f"-n is {options.processes}, but {place.launcher} tells {place.size} ranks")
    _hash_alike()
    if not place.rendezvous:
        return _found_by_launch(options, place)
    return _script.run(place, options)


def _parsed(words: list[str]) -> argparse.Namespace:
    options = _options().parse_args(words)
    # The parser may drop a `--` behind the script, which is the first argument of that.
    before = words[: len(words) - len(options.arguments)]
    if before[-2:] == [options.script, "--"]:
        options.arguments.insert(0, "--")
    return options


def _place(options: argparse.Namespace) -> _ranks.Place | None:
    if options.rank is not None:
        if not 0 <= options.rank < options.size:
            raise _ranks.RankError(f"--rank is {options.rank} of {options.size}; ranks begin with 0")
        # All that -n starts are here.
        local_rank = options.rank if options.child else _ranks.local_rank(os.environ)
        found = _ranks.Place(options.rank, options.size, "", local_rank, launcher="--rank")
    elif options.local:
        return None
    else:
        found = _ranks.from_environment(size=options.processes) or _ranks.of_indexed_job(
            options.processes, options.rendezvous
        )
    if found is None:
        return None
    rendezvous = options.rendezvous or found.rendezvous
    return replace(found, rendezvous=rendezvous, timeout=options.timeout, join_timeout=options.join_timeout)


def _hash_alike() -> None:
    """Sets of strings have the same order on all ranks, and so has what a script makes of them. Python must be told
    before it begins, so this process begins once more."""
    if not os.environ.get("PYTHONHASHSEED"):
        os.environ["PYTHONHASHSEED"] = "0"
        # Python 3.9 does not tell how it was started.
        arguments = getattr(sys, "orig_argv", ["", "-m", "grpcxx.parallel", *sys.argv[1:]])[1:]
        os.execv(sys.executable, [sys.executable, *arguments])


def _found_by_launch(options: argparse.Namespace, place: _ranks.Place) -> int:
    """Lets the program `grpcxx` find out where rank 0 is; it then runs this module again with `TF_CONFIG`."""
    program = shutil.which("grpcxx")
    if program is None or place.launcher == "--rank":
        return _refuse(
            f"{place.launcher} does not tell where rank 0 is: give --rendezvous HOST:PORT, the same on all ranks,"
            " or install the program grpcxx, which finds out"
        )
    launch = [program, "launch", "-n", str(place.size), "--"]
    os.execv(program, [*launch, *_launch.python(), "-m", "grpcxx.parallel", *sys.argv[1:]])
    raise AssertionError("execv does not return")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grpcxx.parallel",
        description="Runs a training script as several ranks, as docs/parallel.md says.",
    )
    parser.add_argument("-n", dest="processes", type=_positive, help="how many processes to start on this host")
    parser.add_argument("--local", action="store_true", help="start them here, whatever a launcher has set")
    parser.add_argument("--rank", type=int, help="be this rank")
    parser.add_argument("--size", type=_positive, help="of so many")
    parser.add_argument("--rendezvous", type=_address, metavar="HOST:PORT", help="where rank 0 listens")
    parser.add_argument(
        "--shard",
        choices=["auto", "all", "none"],
        default="auto",
        help="which datasets the ranks divide: those that training takes (auto), all that are iterated, none",
    )
    parser.add_argument(
        "--bucket-mib", type=_positive, default=16, help="gradients travel together up to this size (default: 16)"
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=600.0,
        help="seconds that a rank may keep the others waiting (default: 600)",
    )
    parser.add_argument(
        "--join-timeout",
        type=_seconds,
        default=300.0,
        help="seconds that the ranks may take to meet (default: 300)",
    )
    parser.add_argument(
        "--restarts",
        metavar="N",
        type=_count,
        default=0,
        help="when a rank has failed, start all of them again, so many times (default: 0)",
    )
    parser.add_argument(
        "--gpus",
        choices=["share", "all"],
        default="share",
        help="which GPUs of this host each rank of -n sees: an equal share of them (default), or all",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="write what rank N says to DIR/rank-N.log, but for the standard output of rank 0",
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("script", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 4096:
        raise argparse.ArgumentTypeError("give a number from 1 to 4096")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError("give more than 0 seconds")
    return number


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
        raise argparse.ArgumentTypeError("give HOST:PORT, such as 10.0.0.1:29500")
    return text


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 4096:
        raise argparse.ArgumentTypeError("give a number from 0 to 4096")
    return number


def _refuse(text: str) -> int:
    print(f"grpcxx.parallel: {text}", file=sys.stderr)
    return os.EX_CONFIG


if __name__ == "__main__":
    sys.exit(main())

"""Starting a script as several ranks, without TensorFlow."""

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import types
from pathlib import Path

import pytest
from ports import free_port

from grpcxx.parallel import _devices
from grpcxx.parallel._ranks import RankError, from_environment, of_indexed_job


def parallel(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "grpcxx.parallel", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def script(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--timeout", "nan"], "give more than 0 seconds"),
        (["--join-timeout", "0"], "give more than 0 seconds"),
        (["--rendezvous", "foo"], "give HOST:PORT"),
        (["--rendezvous", "foo:70000"], "give HOST:PORT"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_starts(arguments, text):
    finished = parallel("-n", 2, *arguments, "script.py")
    assert finished.returncode == 2 and text in finished.stderr, finished.stderr


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    "environment, place",
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7"}, (1, 2, "h:8")),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4, "")),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "RANK": "7"}, (0, 2, "")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
        # A batch script of Slurm that runs torchrun, and a step in which each node runs it.
        ({**TORCHRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (1, 2, "h:8")),
        ({**TORCHRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (1, 2, "h:8")),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7", "SLURM_PROCID": "0"}, (1, 2, "h:8")),
        (
            {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})},
            (1, 2, "a:1"),
        ),
        (
            {
                "TF_CONFIG": json.dumps(
                    {"cluster": {"chief": ["c:3"], "worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
                )
            },
            (1, 2, "c:3"),
        ),
        (
            {
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": {"1": "b:2", "0": "a:1"}}, "task": {"type": "worker", "index": 1}}
                )
            },
            (1, 2, "a:1"),
        ),
        ({"TF_CONFIG": '{"cluster": {}, "task": {"type": "worker", "index": 0}}'}, None),
        ({"TF_CONFIG": "{}", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2, "")),
    ],
)
def test_ranks_are_found_in_the_variables_of_launchers(environment, place):
    found = from_environment(environment)
    assert found == place if place is None else (found.rank, found.size, found.rendezvous) == place


@pytest.mark.parametrize(
    "environment, text",
    [
        ({"PMI_RANK": "1"}, "PMI_RANK is set, but PMI_SIZE is not"),
        ({"PMI_RANK": "2", "PMI_SIZE": "2"}, "rank 2 of 2"),
        ({"PMI_RANK": "two", "PMI_SIZE": "2"}, "'two', which is no number"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "MASTER_PORT is None"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG cannot be read"),
        (
            {"TF_CONFIG": '{"cluster": {"worker": {"1": "b:2"}}, "task": {"type": "worker", "index": 1}}'},
            "only the tasks",
        ),
        ({"PRTE_LAUNCHED": "1", "PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-a-1@1"}, "give their number with -n"),
        ({"TF_CONFIG": '{"cluster": {"ps": ["a:1"]}, "task": {}}'}, "of chief and worker alone"),
    ],
)
def test_variables_that_cannot_be_are_named(environment, text):
    with pytest.raises(RankError, match=text):
        from_environment(environment)


TASKS = {"cluster": {"worker": ["a:1", "b:2", "a:3", "a:4"]}, "task": {"type": "worker", "index": 3}}
GIVEN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7"}


@pytest.mark.parametrize(
    "environment, local_rank",
    [
        ({**TORCHRUN, "LOCAL_RANK": "1"}, 1),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 0),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "2", "LOCAL_RANK": "7"}, 2),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, 1),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "LOCAL_RANK": "2"}, 2),
        ({"TF_CONFIG": json.dumps(TASKS)}, 2),
        (GIVEN, None),
    ],
)
def test_launchers_tell_which_rank_of_its_host_one_is(environment, local_rank):
    assert from_environment(environment).local_rank == local_rank


def test_a_script_asks_which_rank_of_its_host_it_is(tmp_path):
    program = "from grpcxx import parallel\nprint(parallel.local_rank())\n"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "0\n"
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **GIVEN}, capture_output=True, text=True, check=False
    )
    assert "RANK does not tell which rank of its host this is: set LOCAL_RANK" in found.stderr
    parallel("-n", 2, "--output", tmp_path / "logs", script(tmp_path, program))
    assert (tmp_path / "logs/rank-1.log").read_text() == "1\n"


SEES = """
import os
import numpy as np
from grpcxx import parallel

names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
mine = " ".join(f"{name[0]}={os.environ[name]}" for name in names if name in os.environ)
print(*parallel.group().all_gather(np.frombuffer(f"{mine:20}".encode(), np.uint8)[None]).tobytes().decode().split())
"""


@pytest.mark.parametrize(
    "ranks, told, seen",
    [
        (2, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, "C=4,5 C=6,7"),
        (2, {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}, "C=GPU-a C=GPU-b"),
        (3, {"CUDA_VISIBLE_DEVICES": "1,0"}, "C=1 C=1 C=0"),
        (2, {"CUDA_VISIBLE_DEVICES": "3"}, "C=3 C=3"),
        (2, {"CUDA_VISIBLE_DEVICES": ""}, "C= C="),
        (2, {"CUDA_VISIBLE_DEVICES": "0,1,-1,2"}, "C=0 C=1"),
        (2, {"ROCR_VISIBLE_DEVICES": "2,3"}, "R=2 R=3"),
        # The first counts devices of the second.
        (2, {"HIP_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "2,3"}, "H=0 R=2,3 H=1 R=2,3"),
    ],
)
def test_ranks_divide_the_gpus_of_their_host(tmp_path, monkeypatch, ranks, told, seen):
    for name in _devices.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    finished = parallel("-n", ranks, script(tmp_path, SEES), **told)
    assert finished.stdout == f"{seen}\n", finished.stderr
    devices = len(_devices.visible(told)[1])
    assert (f"{ranks} ranks share {devices} GPU" in finished.stderr) == (0 < devices < ranks)


def test_gpus_may_stay_undivided(tmp_path):
    finished = parallel("-n", 2, "--gpus", "all", script(tmp_path, SEES), CUDA_VISIBLE_DEVICES="0,1")
    assert "C=0,1 C=0,1" in finished.stdout, finished.stderr


def test_without_a_variable_gpus_are_those_of_the_driver(monkeypatch):
    def count(pointer):
        pointer._obj.value = 3
        return 0

    driver = types.SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=count)
    monkeypatch.setattr(_devices.ctypes, "CDLL", {"libcuda.so.1": driver}.__getitem__)
    assert _devices.visible({}) == ("CUDA_VISIBLE_DEVICES", ["0", "1", "2"])
    driver.cuInit = lambda flags: 100
    assert _devices.visible({})[1] == [], "there is a driver, and no device"


def test_ranks_of_prrte_are_told_how_many_they_are():
    daemon = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    found = from_environment({**daemon, "PRTE_LAUNCHED": "1", "PMIX_RANK": "1"}, size=2)
    assert (found.rank, found.size, found.rendezvous, found.launcher) == (1, 2, "", "PRRTE")
    told = {"PRTE_LAUNCHED": "1", "PMIX_RANK": "1", "RANK": "3", "WORLD_SIZE": "4"}
    told |= {"MASTER_ADDR": "h", "MASTER_PORT": "7000"}
    assert from_environment({**daemon, **told}).rank == 3
    assert from_environment({**daemon, **told, "TORCHELASTIC_RUN_ID": "1"}, size=2).rank == 3


def test_pods_of_an_indexed_job_are_told_how_many_they_are():
    pod = {"JOB_COMPLETION_INDEX": "1"}
    found = of_indexed_job(2, "train-0.train:14999", pod)
    assert (found.rank, found.size, found.rendezvous) == (1, 2, "train-0.train:14999")
    assert of_indexed_job(2, None, pod) is None, "-n alone starts processes"
    with pytest.raises(RankError, match="JOB_COMPLETION_INDEX is 1, and -n is 1"):
        of_indexed_job(1, "train-0.train:14999", pod)


@pytest.mark.parametrize("end", ["", "sys.exit()", "sys.exit(0)"])
def test_a_script_without_gradients_says_so_and_rank_0_alone_prints(tmp_path, end):
    program = f"import sys; print('args', sys.argv[1:]); {end}"
    finished = parallel("-n", 2, script(tmp_path, program), "--flag", "x")
    assert finished.returncode == 65
    assert finished.stdout == "args ['--flag', 'x']\n"
    assert "took no gradients" in finished.stderr


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_a_script_that_tells_its_usage_has_nothing_to_combine(tmp_path, flag):
    program = """
import argparse

parser = argparse.ArgumentParser(prog="train")
parser.add_argument("--version", action="version", version="train 7")
parser.parse_args()
"""
    finished = parallel("-n", 2, script(tmp_path, program), flag)
    assert finished.returncode == 0 and finished.stderr == "", finished.stderr
    assert "train" in finished.stdout


def test_a_rank_that_ends_with_65_itself_is_named(tmp_path):
    program = """
import os, sys, time
from grpcxx import parallel

if parallel.rank() == 1:
    sys.exit(os.EX_DATAERR)
time.sleep(60)
"""
    finished = parallel("-n", 2, script(tmp_path, program))
    assert finished.returncode == 65
    assert "rank 1 ended with exit code 65, so the others are stopped" in finished.stderr


@pytest.mark.parametrize("last", [0, 1])
def test_each_rank_ends_its_work_where_nothing_was_combined(tmp_path, monkeypatch, last):
    program = """
import os, sys
from grpcxx import parallel

if parallel.rank() == LAST:
    with open(sys.argv[1]) as pipe:
        # The end of the pipe is that of the other process.
        text = pipe.read()
    with open("kept", "a") as kept:
        kept.write(text)
else:
    os.write(os.open(sys.argv[1], os.O_WRONLY), b"saved")
"""
    os.mkfifo(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path, program.replace("LAST", str(last)))
    for runs in (1, 2):
        finished = parallel("-n", 2, path, "other")
        assert finished.returncode == 65 and Path("kept").read_text() == runs * "saved", finished.stderr
        assert "took no gradients" in finished.stderr and "stopped" not in finished.stderr


@pytest.mark.parametrize(
    "end, how, code",
    [
        ("import os; os.kill(os.getpid(), 9)", "signal SIGKILL", 137),
        ("import os; os.kill(os.getpid(), 35)", "signal 35", 163),
        ("import sys; sys.exit(3)", "exit code 3", 3),
        ("raise OSError('no such disk')", "exit code 1", 1),
    ],
)
def test_a_rank_that_fails_ends_all_with_its_name(tmp_path, end, how, code):
    program = f"from grpcxx import parallel\nif parallel.rank() == 1:\n    {end}\nparallel.group().barrier()\n"
    finished = parallel("-n", 3, script(tmp_path, program))
    assert finished.returncode == code, finished.stderr
    assert f"rank 1 ended with {how}, so the others are stopped" in finished.stderr
    if "disk" in end:
        assert "  OSError: no such disk" in finished.stderr


# Sums what the ranks draw, and keeps the step and the sum in a file after each step.
RESUMES = """
import os, sys
import numpy as np
from grpcxx import parallel

rank, group = parallel.rank(), parallel.group()
kept = "kept.npy"
state = np.load(kept) if rank == 0 and os.path.exists(kept) else np.zeros(2)
state = group.broadcast(state)
print("from step", int(state[0]), flush=True)
print("rank", rank, "begins", file=sys.stderr)
while state[0] < 6:
    if rank == 1 and state[0] == 3 and DIES:
        open("deaths", "a").write("x")
        os.kill(os.getpid(), 9)
    state += [1, group.all_reduce(np.array([state[0] + rank]))[0]]
    if rank == 0:
        np.save("next.npy", state)
        os.replace("next.npy", kept)
print("sum", state[1])
"""


def test_a_job_goes_on_from_its_last_checkpoint_when_a_rank_has_died(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path, RESUMES.replace("DIES", "not os.path.exists('deaths')"))
    finished = parallel("-n", 2, "--restarts", 3, "--output", "logs", path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "from step 0\nfrom step 3\nsum 36.0\n"
    assert "rank 1 ended with signal SIGKILL, so the others are stopped" in finished.stderr
    assert "all ranks begin again (restart 1 of 3)" in finished.stderr
    assert "restart 2" not in finished.stderr
    assert (tmp_path / "logs/rank-1.log").read_text().count("rank 1 begins") == 2


def test_a_job_ends_when_its_restarts_are_used_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished = parallel("-n", 2, "--restarts", 2, script(tmp_path, RESUMES.replace("DIES", "True")))
    assert finished.returncode == 137, finished.stderr
    assert (tmp_path / "deaths").read_text() == "xxx"
    assert finished.stderr.count("rank 1 ended with signal SIGKILL") == 3
    assert "(restart 2 of 2)" in finished.stderr
    assert finished.stdout == "from step 0\n" + 2 * "from step 3\n"


TARGET = Path(__file__).resolve().parents[2] / "target"


@pytest.mark.parametrize("dies", [False, True])
def test_ranks_of_grpcxx_launch_train_and_begin_again(tmp_path, monkeypatch, dies):
    built = [path for path in TARGET.glob("*/grpcxx") if path.is_file() and os.access(path, os.X_OK)]
    program = max(built, key=lambda path: path.stat().st_mtime, default=None) or shutil.which("grpcxx")
    if program is None:
        pytest.skip("the program grpcxx is neither built nor installed")
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path, RESUMES.replace("DIES", f"{dies} and not os.path.exists('deaths')"))
    command = [program, "launch", "-n", "2", "--restarts", "3", "--", sys.executable, "-m", "grpcxx.parallel", path]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    steps = ["from step 0", "from step 3", "sum 36.0"] if dies else ["from step 0", "sum 36.0"]
    assert finished.stdout.splitlines() == [f"worker:0 | {step}" for step in steps]
    assert ("rank 1 (worker:1) ended (signal: 9 (SIGKILL))" in finished.stderr) == dies
    assert finished.stderr.count("rank 1 begins") >= 1 + dies


def test_what_would_end_the_same_again_is_not_started_again(tmp_path):
    finished = parallel("-n", 2, "--restarts", 2, script(tmp_path, "print('alone')"))
    assert finished.returncode == 65
    assert finished.stdout == "alone\n" and "begin again" not in finished.stderr


def test_each_rank_has_its_log(tmp_path):
    program = "from grpcxx import parallel\nprint('I am', parallel.rank(), 'of', parallel.size())\n"
    parallel("-n", 2, "--output", tmp_path / "logs", script(tmp_path, program))
    assert (tmp_path / "logs/rank-1.log").read_text() == "I am 1 of 2\n"


def test_a_progress_bar_stays_on_its_line(tmp_path):
    program = """
import sys
from grpcxx import parallel

parallel.group()
for step in range(3):
    sys.stderr.write(f"\\r{step}/2")
    sys.stderr.flush()
print("\\r\\nlast words", file=sys.stderr)
sys.exit(3 * parallel.rank())
"""
    command = [sys.executable, "-m", "grpcxx.parallel", "-n", "2", "--output", str(tmp_path)]
    finished = subprocess.run([*command, str(script(tmp_path, program))], capture_output=True, timeout=120, check=False)
    assert b"\r0/2\r1/2\r2/2\r\nlast words\n" in finished.stderr
    assert (tmp_path / "rank-0.log").read_bytes().endswith(b"\r0/2\r1/2\r2/2\r\nlast words\n")
    assert b"of rank 1:\n  2/2\n  last words\n" in finished.stderr, "what the bar has overwritten is not said again"


def test_what_has_no_end_of_line_is_shown_as_it_comes(tmp_path):
    program = "import sys\nprint('go on? ', end='', file=sys.stderr, flush=True)\nsys.stdin.readline()\nsys.exit(3)\n"
    command = [sys.executable, "-m", "grpcxx.parallel", "-n", "1", str(script(tmp_path, program))]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(command, **pipes) as launcher:
        assert select.select([launcher.stderr], [], [], 60)[0]
        assert launcher.stderr.read1(7) == b"go on? "
        launcher.communicate(b"yes\n", timeout=60)
    assert launcher.returncode == 3


def test_training_goes_on_when_nobody_reads_what_it_says(tmp_path):
    program = "import sys, grpcxx.parallel as p\np.group()\nsys.stderr.write(10**6 * 'x')\nprint('done')\n"
    command = [sys.executable, "-m", "grpcxx.parallel", "-n", "1", str(script(tmp_path, program))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        launcher.stderr.close()
        try:
            assert launcher.communicate(timeout=60)[0] == "done\n"
        finally:
            launcher.terminate()
    assert launcher.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_job_that_is_stopped_ends_as_a_shell_says(tmp_path, number):
    path = script(tmp_path, "import time\nprint('here', flush=True)\ntime.sleep(100)\n")
    # Who starts tests in the background may have had SIGINT ignored, which programs inherit.
    command = ["env", "--default-signal=INT,HUP", sys.executable, "-m", "grpcxx.parallel", "-n", "1", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout.readline() == "here\n"
        launcher.send_signal(number)
        assert launcher.wait(60) == 128 + number


# Ranks that ignore SIGTERM. What rank 0 has started holds standard output open.
STAYS = """
import signal, subprocess
from grpcxx import parallel

signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"])
parallel.group().barrier()
if parallel.rank() == 0:
    print("here", flush=True)
child.wait()
"""


def test_nothing_stays_of_a_job_whose_terminal_is_closed(tmp_path):
    command = ["env", "--default-signal=HUP", sys.executable, "-m", "grpcxx.parallel", "-n", "2"]
    with subprocess.Popen([*command, script(tmp_path, STAYS)], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout.readline() == "here\n"
        launcher.send_signal(signal.SIGHUP)
        assert launcher.wait(60) == 128 + signal.SIGHUP
        assert select.select([launcher.stdout], [], [], 60)[0] and launcher.stdout.read() == ""


def test_a_job_under_nohup_goes_on_when_its_terminal_is_closed(tmp_path):
    path = script(tmp_path, "from grpcxx import parallel\nparallel.group()\nprint('here', flush=True)\nprint(input())")
    command = ["env", "--ignore-signal=HUP", sys.executable, "-m", "grpcxx.parallel", "-n", "1", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout.readline() == "here\n"
        launcher.send_signal(signal.SIGHUP)
        assert launcher.communicate("on\n", timeout=60)[0] == "on\n"
    assert launcher.returncode == 0


def test_a_job_that_is_stopped_while_it_ends_does_not_begin_again(tmp_path, monkeypatch):
    program = """
import os, signal
from grpcxx import parallel

def stop(*_):
    os.kill(os.getppid(), signal.SIGTERM)
    os._exit(0)

signal.signal(signal.SIGTERM, stop)
print("waits", flush=True)
# Either waits here for the other.
open("begun", "r" if parallel.rank() == 0 else "w").close()
if parallel.rank() == 1:
    os._exit(3)
signal.pause()
"""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("begun")
    finished = parallel("-n", 2, "--restarts", 1, script(tmp_path, program))
    assert finished.returncode == 128 + signal.SIGTERM, finished.stderr
    assert finished.stdout == "waits\n"


def test_rank_0_is_asked_at_the_terminal(tmp_path):
    program = "from grpcxx import parallel\nparallel.group()\nprint(parallel.rank() or f'hello {input()}')\n"
    path = script(tmp_path, program)
    command = [sys.executable, "-m", "grpcxx.parallel", "-n", "2", str(path)]
    ours, theirs = pty.openpty()
    # The terminal is that of the launcher, as under a shell.
    own = {"start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)}
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True, **own) as launcher:
        os.write(ours, b"Ann\n")
        assert launcher.communicate(timeout=60)[0] == "hello Ann\n"
    assert launcher.returncode == 0
    os.close(ours)
    os.close(theirs)


def ranks_of_a_launcher(path, environment):
    """What two ranks print that find each other by what a launcher has set."""
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port() - 1)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-O", "-m", "grpcxx.parallel", str(path), "an argument"],
            env={**environment, **told, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [rank.communicate(timeout=60)[0] for rank in ranks]


def test_processes_of_a_launcher_meet_by_its_variables(tmp_path):
    path = script(tmp_path, "from grpcxx import parallel\nprint(parallel.group().all_reduce([1.0])[0])\n")
    assert ranks_of_a_launcher(path, os.environ) == ["2.0\n", ""]


@pytest.mark.parametrize("told", [None, "", "7"])
def test_sets_of_strings_have_one_order_on_all_ranks_of_a_launcher(tmp_path, told):
    path = script(
        tmp_path,
        """
import os, sys
import numpy as np
from grpcxx import parallel

found = parallel.group().all_gather(np.array([hash("a word")]))
print(found[0] == found[1], sys.argv[1:], sys.flags.optimize, os.environ.get("PYTHONHASHSEED"))
""",
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if told is not None:
        environment["PYTHONHASHSEED"] = told
    # What Python 3.9 was started with is not known where it has to start again.
    optimizes = int(bool(told) or sys.version_info >= (3, 10))
    assert ranks_of_a_launcher(path, environment) == [f"True ['an argument'] {optimizes} {told or 0}\n", ""]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["train.py"], "say with -n how many processes"),
        (["-n", 2, "--rank", 0, "train.py"], "--rank and --size together"),
        (["--rank", 2, "--size", 2, "train.py"], "ranks begin with 0"),
        (["--rank", 0, "--size", 2, "train.py"], "give --rendezvous HOST:PORT"),
        (["-n", 1, "/nowhere/train.py"], "there is no script /nowhere/train.py"),
        (["--rank", 0, "--size", 2, "--restarts", 1, "train.py"], "--restarts is for ranks that -n starts here"),
    ],
)
def test_commands_that_cannot_be_are_refused(arguments, text):
    finished = parallel(*arguments)
    assert finished.returncode in (66, 78)
    assert text in finished.stderr


def test_generators_without_a_seed_are_the_same_on_all_ranks(tmp_path):
    program = script(
        tmp_path,
        """
import numpy as np
from grpcxx import parallel

drawn = np.array([np.random.default_rng().integers(1 << 40), np.random.default_rng().integers(1 << 40)])
own = np.random.default_rng(parallel.rank()).integers(1 << 40)
found = parallel.group().all_gather(np.array([[*drawn, own]]))
assert (found[:, :2] == found[0, :2]).all() and found[0, 0] != found[0, 1]
assert found[0, 2] != found[1, 2]
""",
    )
    finished = parallel("-n", 2, program)
    assert finished.returncode == 0, finished.stderr

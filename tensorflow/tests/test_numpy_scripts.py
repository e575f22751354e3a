"""A script runs under `grpcxx.parallel` as Python itself runs it."""

import json
import os
import subprocess
import sys

import pytest


def ran(*command, **environment):
    """What a Python prints with these arguments."""
    finished = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def script(folder, text):
    path = folder / "script.py"
    path.write_text(f"import grpcxx.parallel\ngroup = grpcxx.parallel.group()\n{text}")
    return path


def test_a_script_that_changes_its_folder_finds_itself(tmp_path, monkeypatch):
    program = "import inspect, os\ndef code(): pass\nos.chdir('/')\n"
    script(tmp_path, program + "print(__file__, inspect.getsource(code))\n")
    monkeypatch.chdir(tmp_path)
    assert ran("-m", "grpcxx.parallel", "-n", 1, "script.py") == f"{tmp_path}/script.py def code(): pass\n\n"


@pytest.mark.parametrize("arguments", [[], ["--"], ["--", "--x"], ["a", "--", "--", "-n", "7"], ["-n", "--", "b"]])
@pytest.mark.parametrize("before", [[], ["--"]])
def test_a_script_has_the_arguments_that_python_gives_it(tmp_path, before, arguments):
    path = script(tmp_path, "import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    assert json.loads(ran("-m", "grpcxx.parallel", "-n", 1, *before, path, *arguments)) == arguments


@pytest.mark.parametrize("seed, told", [("", "0"), ("7", "7")])
def test_an_empty_seed_of_hashes_is_none(tmp_path, seed, told):
    path = script(tmp_path, "import os\nprint(os.environ['PYTHONHASHSEED'])\n")
    assert ran("-m", "grpcxx.parallel", "-n", 1, path, PYTHONHASHSEED=seed) == f"{told}\n"


FLAGS = """import json, sys
own = {name: getattr(sys.flags, name) for name in ("optimize", "utf8_mode", "dev_mode", "dont_write_bytecode")}
print(json.dumps([own, sys.warnoptions, sys._xoptions, sys.stdout.write_through]))
"""


@pytest.mark.parametrize("flags", [[], ["-OO", "-X", "utf8", "-W", "error::UserWarning", "-B", "-u"], ["-X", "dev"]])
def test_a_script_has_the_flags_of_the_interpreter(tmp_path, flags):
    path = script(tmp_path, FLAGS)
    assert json.loads(ran(*flags, "-m", "grpcxx.parallel", "-n", 1, path)) == json.loads(ran(*flags, path))


@pytest.mark.parametrize("flag", ["-E", "-I"])
def test_flags_that_hide_variables_leave_the_seed_of_hashes(tmp_path, flag):
    path = script(tmp_path, "import sys\nprint(sys.flags.hash_randomization)\n")
    assert ran(flag, "-m", "grpcxx.parallel", "-n", 1, path) == "0\n"

"""The programs in docs/python.md and docs/collectives.md do what the pages say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port

PAGE = Path(__file__).resolve().parents[2] / "docs/python.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason=f"{PAGE} is not here: not a checkout")


def blocks(language, page=PAGE):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [text for kind, text in found if kind == language]


def test_two_ranks_meet_by_the_variables_of_a_launcher(tmp_path):
    page = (PAGE.parent / "coming-from.md").read_text()
    (block,) = re.findall(r"^```sh\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    # Two processes share the output, and each writes its line at once.
    environment["PYTHONUNBUFFERED"] = ""
    finished = subprocess.run(
        ["bash", "-ec", block], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.stdout == "[2. 1.] [1.]\n" * 2, finished.stderr


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_the_first_program_prints_what_the_page_says():
    (program,) = re.findall(r"<<'END'\n(.*?)^END", blocks("sh")[0], flags=re.DOTALL | re.MULTILINE)
    finished = run(program)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == blocks("")[0]


def test_server_and_client_work_together():
    server, client = blocks("python")[:2]
    serving = subprocess.Popen(
        [sys.executable, "-u", "-c", server.replace("0.0.0.0:7777", "127.0.0.1:0")], stdout=subprocess.PIPE, text=True
    )
    try:
        address = serving.stdout.readline().rpartition(" ")[2].strip()
        finished = run(client.replace("127.0.0.1:7777", address))
        assert finished.returncode == 0, finished.stderr
        assert "'largest': array(2.)" in finished.stdout
        assert "StoredTensor(dtype='float32', shape=(1000, 1000), size_bytes=4000000)" in finished.stdout
    finally:
        serving.kill()
        serving.wait()


# ---- Groups


@pytest.fixture
def ranks():
    """Starts a program as so many ranks, which meet at a port that is free, and ends those that are left."""
    started = []

    def start(program, size):
        program = program.replace("127.0.0.1:7777", f"127.0.0.1:{free_port()}")
        for rank in range(size):
            command = [sys.executable, "-c", program, str(rank)]
            started.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=0)
            )
        return started

    yield start
    for rank in started:
        rank.kill()
        rank.communicate()


def test_two_ranks_sum_their_arrays(ranks):
    program = blocks("python", PAGE.parent / "collectives.md")[0]
    for rank in ranks(program, 2):
        assert rank.communicate(timeout=120) == ("[1. 2.]\n", "")


def test_ranks_that_are_left_meet_again(ranks):
    (program,) = blocks("python", PAGE.parent / "collectives.md")[2:]
    # So that the test knows when all have met, and pipes do not get full.
    call = "        group.all_reduce(np.ones(4))\n"
    assert program.count(call) == 1
    program = program.replace(call, f"{call}        sys.stderr.write('.')\n        __import__('time').sleep(0.01)\n")
    first, lost, last = ranks(program, 3)
    for rank in (first, lost, last):
        assert rank.stderr.read(1) == "."
    lost.kill()
    ends = [rank.communicate(timeout=120) for rank in (first, last)]
    assert [out for out, _ in ends] == ["[2. 2. 2. 2.]\n"] * 2, ends

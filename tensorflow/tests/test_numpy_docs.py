"""The programs in docs/python.md do what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/python.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason=f"{PAGE} is not here: not a checkout")


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
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

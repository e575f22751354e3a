"""Scripts run alone and as several ranks of `grpcxx.parallel`."""

import json
import os
import subprocess
import sys


def run(arguments, **environment):
    """What a command says, and its exit code."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
    )


def parallel(ranks, script, *arguments, **environment):
    return run(["-m", "grpcxx.parallel", "-n", ranks, script, *arguments], **environment)


def trained(finished):
    """What the training script has found, and the lines before it."""
    assert finished.returncode == 0, finished.stderr
    *lines, last = finished.stdout.splitlines()
    return json.loads(last), lines

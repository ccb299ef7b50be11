"""Jax and Orbax, in processes of their own.

Jax in a process warns of every fork and counts as a framework in use, which other tests would
notice; and the number of its devices is settled before it is imported.
"""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import standfast
from tests import ROOT

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("jax", "optax")), reason="jax is missing"
)


def _start(*command: str, devices: int = 8) -> subprocess.Popen[str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _end(process: subprocess.Popen[str], expected: int = 0) -> str:
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == expected, output
    return output


def test_arrays_pytrees_and_the_checkpoints_of_orbax(tmp_path):
    files = ["tests/jax/checks.py"]
    if importlib.util.find_spec("orbax"):
        files.append("tests/orbax/checks.py")
    options = ["-pno:cacheprovider", "-pno:xdist", f"--basetemp={tmp_path / 'checks'}"]
    output = _end(_start("-m", "pytest", *options, *files))
    assert re.search("[1-9][0-9] passed", output), output
    assert "skipped" not in output


@pytest.mark.long
def test_a_training_with_optax_that_was_killed_ends_as_if_it_had_not_been(tmp_path):
    program = ["-W", "error", "-m", "tests.jax.training", str(tmp_path)]
    _end(_start(*program, "kill", devices=1), -signal.SIGKILL)
    assert "the same 3660 bytes" in _end(_start(*program, "continue", devices=1))


def test_of_an_array_in_two_processes_each_gives_and_reads_its_boxes(tmp_path):
    whole = np.arange(32, dtype=np.float32).reshape(4, 8)
    standfast.Store(tmp_path).run("whole").save(1, {"x": whole})
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    program = ["-W", "error", "-m", "tests.jax.processes", port]
    processes = [_start(*program, str(number), str(tmp_path), devices=2) for number in (0, 1)]
    for process in processes:
        assert "all is well" in _end(process)

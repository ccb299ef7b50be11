"""Programs started on several ranks, which end in time or are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

MPIEXEC = Path(sys.executable).with_name("mpiexec")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Finished:
    """How a program on several ranks ended, and what they printed, one after the other."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def run_ranks(
    count: int,
    program: Path,
    *args: str,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    options: Sequence[str] = (),
) -> Finished:
    """Run a program on `count` ranks; the test fails if it hangs, or, with `check`, if it fails.

    `env` is added to the environment, and `options` are mpiexec's own. A program may import
    `tests`. What the ranks print comes one rank after the other.
    """
    with tempfile.TemporaryDirectory() as printed:
        return _run_ranks(count, program, args, timeout, env, check, options, Path(printed))


def _run_ranks(
    count: int,
    program: Path,
    args: Sequence[str],
    timeout: float,
    env: Mapping[str, str] | None,
    check: bool,
    options: Sequence[str],
    printed: Path,
) -> Finished:
    # Through one pipe, mpiexec would mix the ranks even inside of lines.
    command = [str(MPIEXEC), "-n", str(count), "-outfile-pattern", f"{printed}/%r", *options]
    command += [sys.executable, "-m", "mpi4py", str(program), *args]
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": _python_path(), **(env or {})},
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        stdout, stderr = _end(process)
        stdout += _printed(printed)
        pytest.fail(f"{program.name} on {count} ranks hung for {timeout} s\n{stdout}\n{stderr}")
    except BaseException:
        _end(process)
        raise
    stdout += _printed(printed)
    if check and process.returncode != 0:
        pytest.fail(
            f"{program.name} on {count} ranks ended with {process.returncode}\n{stdout}\n{stderr}"
        )
    return Finished(process.returncode, stdout, stderr, time.monotonic() - start)


def _printed(folder: Path) -> str:
    files = sorted(folder.iterdir(), key=lambda file: int(file.name))
    return "".join(file.read_text(errors="replace") for file in files)


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Kill mpiexec; its proxy, in a session of its own, then kills the ranks."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate(timeout=10)

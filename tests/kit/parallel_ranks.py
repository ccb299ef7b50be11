"""Programs started on several ranks, which end in time or are ended."""

import json
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

from tests import ROOT, python_path

MPIEXEC = Path(sys.executable).with_name("mpiexec")


@dataclass(frozen=True)
class Finished:
    """How a program on several ranks ended, and what they printed, one after the other."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def exit_codes(self) -> list[list[int]]:
        """How each rank of each job ended, of those that `run_torch_ranks` ran."""
        codes: list[list[int]] = json.loads(self.stdout.splitlines()[-1])
        return codes


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
        # Through one pipe, mpiexec would mix the ranks even inside of lines.
        command = [str(MPIEXEC), "-n", str(count), "-outfile-pattern", f"{printed}/%r", *options]
        command += [sys.executable, "-m", "mpi4py", str(program), *args]
        what = f"{program.name} on {count} ranks"
        return _run(what, command, timeout, env, check, Path(printed))


def run_torch_ranks(
    count: int, program: Path, folder: Path, *jobs: Sequence[str], timeout: float
) -> Finished:
    """Run a program on `count` ranks of torch, once for each of the jobs, which are arguments.

    Each has a folder, called by its number, in the one given; its name is the last argument.
    """
    start = ROOT / "tests" / "parallel" / "programs" / "torch_start.py"
    text = json.dumps([list(job) for job in jobs])
    command = [sys.executable, str(start), str(count), str(program), str(folder), text]
    return _run(f"{program.name} on {count} ranks", command, timeout, None, check=True)


def run_torchrun(
    count: int, program: Path, *args: str, timeout: float, check: bool = True
) -> Finished:
    """Run a program on `count` ranks by torchrun, as users do."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(count), str(program), *args]
    return _run(f"{program.name} on {count} ranks", command, timeout, None, check)


def _run(
    what: str,
    command: Sequence[str],
    timeout: float,
    env: Mapping[str, str] | None,
    check: bool,
    printed: Path | None = None,
) -> Finished:
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path(), **(env or {})},
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        stdout, stderr = _end(process)
        stdout += _printed(printed)
        pytest.fail(f"{what} hung for {timeout} s\n{stdout}\n{stderr}")
    except BaseException:
        _end(process)
        raise
    stdout += _printed(printed)
    if check and process.returncode != 0:
        pytest.fail(f"{what} ended with {process.returncode}\n{stdout}\n{stderr}")
    return Finished(process.returncode, stdout, stderr, time.monotonic() - start)


def _printed(folder: Path | None) -> str:
    if folder is None:
        return ""
    files = sorted(folder.iterdir(), key=lambda file: int(file.name))
    return "".join(file.read_text(errors="replace") for file in files)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Kill what started the ranks, and those in its session; those of MPI and torchrun follow."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate(timeout=10)

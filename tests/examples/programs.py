"""The programs in `examples/`, started as a user starts them."""

import io
import runpy
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import standfast
from standfast.amr import Snapshot
from tests.examples import EXAMPLES
from tests.kit.seams import Seams


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]


def run_here(name: str, *arguments: object) -> str:
    """What a program prints that runs in this process, which has imported what it needs."""
    printed = io.StringIO()
    with Seams.until_end() as seams, redirect_stdout(printed):
        seams.system(sys, argv=[name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return printed.getvalue()


def run(name: str, *arguments: object) -> str:
    """What a program printed, which ended well."""
    done = subprocess.run(
        command(name, *arguments), check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kill_after(words: list[str], store: Path, checkpoints: int) -> None:
    """Kill a program once it has saved so many checkpoints."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        while len(list(store.rglob("*_step_??????.json"))) < checkpoints:
            assert time.monotonic() < deadline
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def digest(printed: str) -> str:
    """The last line, which tells what was computed."""
    word, _, value = printed.splitlines()[-1].partition(" ")
    assert word == "digest"
    assert len(value) == 64
    return value


def checkpoints(store: Path) -> dict[int, standfast.Checkpoint]:
    """All checkpoints of the one run in a store, by their steps."""
    (found,) = standfast.Store(store).runs()
    return {checkpoint.step: checkpoint for checkpoint in found.checkpoints()}


def exported(checkpoint: standfast.Checkpoint, folder: Path) -> list[bytes]:
    """The bytes of its `.sunc` files."""
    folder.mkdir()
    return [Path(path).read_bytes() for path in Snapshot(checkpoint).export(folder)]

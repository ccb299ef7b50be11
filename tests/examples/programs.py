"""The programs in `examples/`, started as a user starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import standfast
from standfast.amr import Snapshot
from tests.examples import EXAMPLES


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]


def run(name: str, *arguments: object) -> str:
    """What a program printed, which ended well."""
    done = subprocess.run(
        command(name, *arguments), check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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

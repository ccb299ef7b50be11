"""Journals: what a process is about to do, and what came of it, one line of JSON each."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def now() -> float:
    """A clock that all processes of this machine share, and nobody sets."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Journal:
    """Appends entries, each durable before the call returns."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, **entry: Any) -> None:
        os.write(self._fd, json.dumps({"t": now(), **entry}).encode() + b"\n")
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path) -> Iterator[Entry]:
    """The entries of a journal; one that a kill has cut is none."""
    if not path.exists():  # its process was killed before it began
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)

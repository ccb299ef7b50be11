"""Other processes, for tests: see `worker.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

_TOLD = ("AWS_", "XDG_", "STANDFAST_")
"""What a child is told of the environment of the moment."""


class Worker:
    """Another process, of which children do the work, one after the other."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.remote.faults.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, what: str, url: str, number: int) -> int:
        """Let a child do its work; returns its pid."""
        assert self.process.stdin is not None
        environment = {name: os.environ[name] for name in os.environ if name.startswith(_TOLD)}
        self.process.stdin.write(json.dumps([what, url, number, environment]) + "\n")
        self.process.stdin.flush()
        return self._read()

    def ended(self) -> int:
        """How the child ended."""
        return self._read()

    def _read(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)

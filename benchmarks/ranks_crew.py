"""Starts ranks once, and has them do one thing after the other, all at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.rounds import Rounds, run_rounds

Call = Sequence[Any]
"""The name of a method of the ranks, and its arguments."""

Contender = tuple[Callable[[], object], Call]
"""What to do before, off the clock, and what of the ranks is measured."""


class Crew:
    """The ranks of one program; a `with` ends them."""

    def __init__(self, kind: str, size: int, folder: Path, width: int) -> None:
        meeting = folder / f"meeting-{kind}"
        meeting.unlink(missing_ok=True)
        self._log = (folder / f"log-{kind}").open("w+b")
        program = [sys.executable, "-m", "benchmarks.ranks_program", kind]
        self._ranks = [
            subprocess.Popen(
                [*program, *map(str, (rank, size, meeting.resolve(), folder, width))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(size)
        ]

    def do(self, name: str, *arguments: Any) -> tuple[float, list[Any]]:
        """Have all of them do it; the seconds of the slowest, and what each returned."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps([name, arguments]) + "\n")
            rank.stdin.flush()
        replies = [self._reply(rank, name) for rank in self._ranks]
        for _, _, error in replies:
            if error is not None:
                raise RanksFailed(f"{name}: {error}")
        return max(each[0] for each in replies), [each[1] for each in replies]

    def _reply(self, rank: subprocess.Popen[str], name: str) -> tuple[float, Any, Any]:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            raise RanksFailed(f"{name}: a rank ended\n{self._said()}")
        seconds, result, error = json.loads(line)
        return seconds, result, error

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:].decode(errors="replace")

    def rounds(self, contenders: Mapping[str, Contender], rounds: int) -> Rounds:
        """As `run_rounds`, but the slowest rank's clock counts, from when all were ready."""
        seconds: dict[str, list[float]] = {name: [] for name in contenders}

        def measured(name: str, call: Call) -> None:
            seconds[name].append(self.do(*call)[0])

        run_rounds(
            {
                name: (before, partial(measured, name, call))
                for name, (before, call) in contenders.items()
            },
            rounds,
        )
        return Rounds(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for rank in self._ranks:
            if error is not None:
                rank.kill()
            rank.communicate()
        self._log.close()


class RanksFailed(RuntimeError):
    """A rank could not do what it was told, or is gone."""

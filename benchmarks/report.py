"""Figures as a table for people and as JSON for scripts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rounds import Rounds


@dataclass(frozen=True)
class Figure:
    """A number and what it should be at least, or at most."""

    label: str
    value: float
    target: float | None = None
    required: bool = True
    """Whether the target is a promise, or what was expected of the other side."""
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(frozen=True)
class Section:
    """One comparison: who took how long for how many bytes, and the figures out of it."""

    title: str
    rounds: Rounds | None
    nbytes: int | None
    figures: list[Figure]

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "bytes": self.nbytes,
            "seconds": dict(self.rounds.seconds) if self.rounds else {},
            "figures": [{**vars(figure), "met": figure.met} for figure in self.figures],
        }

    def print(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left", title_style="bold", box=None)
        table.add_column("", min_width=44)
        table.add_column("median", justify="right", min_width=10)
        table.add_column("rounds", justify="right", min_width=16, style="dim")
        for name, seconds in (self.rounds.seconds if self.rounds else {}).items():
            middle = statistics.median(seconds)
            spread = f"{self._shown(max(seconds))} … {self._shown(min(seconds))}"
            table.add_row(name, self._shown(middle), spread)
        for figure in self.figures:
            target = ""
            if figure.target is not None:
                word = "at most" if figure.at_most else "at least"
                target = f"{word if figure.required else 'expected'} {figure.target:g}"
            style = "" if figure.met is None else "green" if figure.met else "red"
            table.add_row(f"  → {figure.label}", f"{figure.value:.2f}", target, style=style)
        console.print(table)
        console.print()

    def _shown(self, seconds: float) -> str:
        if self.nbytes is None:
            return f"{seconds * 1e3:.0f} ms"
        return f"{self.nbytes / 1e9 / seconds:.2f} GB/s"

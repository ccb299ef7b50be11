"""What the names of checkpoint files say, and which of several files of one step is meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from standfast.errors import UnsupportedFile
from standfast.tensorfile.diff import diff
from standfast.tensorfile.importers.contents import Ignored, as_count, shown

_POINTERS: Final = {"best", "last", "latest", "final", "current", "newest"}
"""A file of such a name is another one's copy, if one of the same step is there."""
_WHEN: Final = {"step", "steps", "epoch", "iter", "iteration", "iterations", "global"}
_WHAT: Final = {"checkpoint", "ckpt", "state", "dict"}
_STEP: Final = re.compile(r"(?:step|iter|iteration)s?[=_-]?(\d+)", re.IGNORECASE)
_DECIMAL: Final = re.compile(r"\d+\.\d+")
"""A loss in the name, no step."""


def number_in(stem: str) -> int | None:
    """The step that a name gives: the number after such a word, else the last one."""
    stem = _DECIMAL.sub(" ", stem)
    numbers = _STEP.findall(stem) or re.findall(r"\d+", stem)
    return as_count(numbers[-1]) if numbers else None


def part_in(stem: str) -> str:
    """The part of a state that a name stands for: `model_step_100` is `model`."""
    words = _words(stem)
    telling = [word for word in words if word.lower() not in _WHEN | _WHAT]
    return "_".join(telling or words) or "state"


def is_pointer(stem: str) -> bool:
    """Whether the name says which checkpoint a file is, not of which step."""
    return not _POINTERS.isdisjoint(word.lower() for word in _words(stem))


def is_best(stem: str) -> bool:
    """Whether the name says that the checkpoint is the best."""
    return "best" in {word.lower() for word in _words(stem)}


def one_of(step: int, paths: Sequence[Path], tensors_only: bool) -> tuple[Path, list[Ignored]]:
    """The file to take of several of one step, and the others with why they are not needed.

    Raises UnsupportedFile if they differ.
    """
    first, *others = sorted(paths, key=lambda path: is_pointer(path.stem))
    ignored = []
    for other in others:
        same = f"it is of step {step}, as {shown(first.name)} is"
        if is_pointer(other.stem):
            ignored.append((other, f"{same}, which was taken"))
        elif _same_tensors(first, other, tensors_only):
            ignored.append((other, f"{same}, and holds the same tensors"))
        else:
            raise ambiguous(step, first, other)
    return first, ignored


def ambiguous(step: int, first: Path, second: Path) -> UnsupportedFile:
    """The error for two files that cannot be one checkpoint."""
    return UnsupportedFile(
        f"{shown(first)} and {shown(second)} are both of step {step} and differ, and a run has "
        "one checkpoint of a step: read their folders one by one, or move one of them away"
    )


def _same_tensors(first: Path, second: Path, tensors_only: bool) -> bool:
    """Whether two files hold the same, apart from what callbacks remember of themselves."""
    found = diff(first, second, tensors_only=tensors_only)
    names = [*found.added, *found.removed, *(change.name for change in found.changed)]
    return all(name.startswith("callbacks.") for name in names)


def _words(stem: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", stem)

"""The metrics log of a run: one line of JSON for each step that has metrics.

The loop adds values and waits for nothing; a save settles them and appends their lines, before its
checkpoint is committed; a resume cuts the log back to the step that it goes on from. The line and
its numbers: docs/metrics.md.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from standfast.errors import BadField, RefusedState, UnsupportedTensor, printable, shortened
from standfast.files import disk
from standfast.files.atomic import as_write_failed
from standfast.files.lines import LONGEST, append_lines, read_lines, replace_lines
from standfast.tensors.frameworks import held

_LONGEST_NAME: Final = 200
_FEW: Final = 500
"""So many metrics fit a line, however long their names are."""
_NUMBERS: Final = frozenset({float, int, bool})


class Line(NamedTuple):
    """The metrics of a step."""

    step: int
    epoch: int | None
    time: str
    """When they were added, in UTC, as ISO 8601 has it."""
    metrics: dict[str, float | int | bool]


class MetricsLog:
    """The metrics of a run on their way into its log; without a path they are not written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._added: deque[tuple[int, int | None, float, dict[str, Any]]] = deque()
        self._writing = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many steps' metrics wait to be settled."""
        return len(self._added)

    def add(self, step: int, epoch: int | None, metrics: Mapping[str, Any]) -> None:
        """Note metrics: numbers, or tensors of one, which are copied and read later.

        Raises RefusedState, with the name, for all else. Without metrics there is no line.
        """
        values = {
            name: value if type(value) is float and _is_name(name) else _held(name, value)
            for name, value in metrics.items()
        }
        if len(values) > _FEW:
            _refuse_too_long(values)
        if values:
            self._added.append((step, epoch, time.time(), values))

    def settle(self, up_to: int | None = None) -> list[Line]:
        """The lines of what was added since the last call; this may wait for the device.

        With `up_to`, of all before the first that is of a later step.
        """
        lines = []
        for _ in range(len(self._added)):
            if up_to is not None and self._added[0][0] > up_to:
                break
            step, epoch, seconds, values = self._added.popleft()
            numbers = {
                name: value if type(value) in _NUMBERS else value.item()
                for name, value in values.items()
            }
            lines.append(Line(step, epoch, _timestamp(seconds), numbers))
        return lines

    def append(self, lines: Iterable[Line]) -> None:
        """Write lines into the log, durably; from any thread. Raises WriteFailed."""
        encoded = [_encoded(line) for line in lines]
        if self._path is not None and encoded:
            with self._writing:
                append_lines(self._path, encoded, disk.LOCAL)

    def prepare(self) -> None:
        """Make the log, if there is none; raises WriteFailed now rather than hours later."""
        if self._path is not None:
            append_lines(self._path, [], disk.LOCAL)

    def cut(self, step: int) -> None:
        """Drop the lines of all later steps from the log, and what a kill left at its end.

        Raises BadField, and leaves the log as it is, for a damaged line before one that stays, and
        WriteFailed.
        """
        if self._path is None or not self._path.exists():
            return
        with self._writing, as_write_failed(self._path):
            disk.refuse_links(self._path.parent, self._path)
            kept = sum(len(line) + 1 for line in _lines_up_to(step, self._path))
            if kept != self._path.stat().st_size:
                replace_lines(self._path, _lines_up_to(step, self._path), disk.LOCAL)


def read_metrics(path: Path) -> Iterator[Line]:
    """The lines of a log, one by one; a last one that was left unfinished is not among them.

    Raises BadField, with its number, for a line that is none of a metrics log.
    """
    for number, line in enumerate(read_lines(path), 1):
        yield _decoded(line, f"{path}: line {number}")


def _lines_up_to(step: int, path: Path) -> Iterator[bytes]:
    """The lines that a cut leaves, as they are."""
    damage = None
    for number, line in enumerate(read_lines(path), 1):
        try:
            stays = _decoded(line, f"{path}: line {number}").step <= step
        except BadField as error:
            # At the end of the log it is what a power cut left of the lines of the last append.
            damage = damage or error
            continue
        if stays and damage:
            raise damage
        if stays:
            yield line


def _held(name: Any, value: Any) -> Any:
    """A number that is plain, or has an `item()` and changes no more."""
    if not _is_name(name):
        raise RefusedState(
            f"a metric's name is text of 1 to {_LONGEST_NAME} characters, not the "
            f"{type(name).__name__} {printable(shortened(repr(name)))}"
        )
    if isinstance(value, int | float):
        number = value if type(value) in _NUMBERS else _plain(value)
    elif isinstance(value, np.generic | np.ndarray):
        number = _from_numpy(name, value)
    else:
        try:
            return held(value)
        except UnsupportedTensor as error:
            if isinstance(value, str | bytes | list | tuple | dict | set):
                kind = type(value).__name__
                raise _refused(name, f"a {kind} is not a number, nor a tensor of one") from error
            raise _refused(name, str(error)) from error
    if type(number) is int and not -(1 << 63) <= number < 1 << 64:
        raise _refused(name, "it is an integer of more than 64 bits: make it a float")
    return number


def _plain(value: int | float) -> int | float:
    """A number of a class of its own as Python's."""
    return int(value) if isinstance(value, int) else float(value)


def _from_numpy(name: str, value: Any) -> int | float | bool:
    if value.size == 1 and value.dtype.kind in "biufV" and not isinstance(value, np.ma.MaskedArray):
        number = value.item()
        if isinstance(number, np.floating):  # a long double, which Python has not
            number = float(number)
        if type(number) in _NUMBERS:
            plain: int | float | bool = number
            return plain
    raise _refused(
        name, f"it is an array of {value.dtype} and shape {list(value.shape)}, not one real number"
    )


def _is_name(name: Any) -> bool:
    if type(name) is not str or not 0 < len(name) <= _LONGEST_NAME:
        return False
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _refuse_too_long(values: Mapping[str, Any]) -> None:
    # A letter takes up to 6 bytes, a number up to 24.
    if sum(6 * len(name) + 30 for name in values) > LONGEST - 200:
        raise RefusedState(
            f"the {len(values):,} metrics of a step would make a line of more than "
            f"{LONGEST:,} bytes: log fewer, or under shorter names"
        )


def _refused(name: str, reason: str) -> RefusedState:
    return RefusedState(f"metric {printable(shortened(name))!r}: {reason}")


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class _Stored(msgspec.Struct):
    """A line as it stands in the file; what a later version adds to it is ignored."""

    step: _Count
    epoch: _Count | None
    time: str
    metrics: dict[_Name, bool | int | float | Literal["NaN", "Infinity", "-Infinity"]]


_decoder: Final = msgspec.json.Decoder(_Stored)


def _encoded(line: Line) -> bytes:
    metrics: dict[str, Any] = line.metrics
    if not all(map(math.isfinite, metrics.values())):
        metrics = {name: _spelled(value) for name, value in metrics.items()}
    return msgspec.json.encode(_Stored(line.step, line.epoch, line.time, metrics))


def _spelled(value: Any) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decoded(line: bytes, place: str) -> Line:
    if len(line) > LONGEST:
        raise BadField(f"{place}: it is longer than the {LONGEST:,} bytes that a line may have")
    try:
        stored = _decoder.decode(line)
        datetime.fromisoformat(stored.time)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise BadField(f"{place}: {printable(shortened(str(error)))}") from error
    metrics = {
        name: _SPECIAL[value] if isinstance(value, str) else value
        for name, value in stored.metrics.items()
    }
    return Line(stored.step, stored.epoch, stored.time, metrics)

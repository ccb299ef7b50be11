"""Which runs are meant: by name or hash, by hyperparameters, by model and by data."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from standfast.errors import BadOption, RefNotFound, shortened
from standfast.store.index.index import Index
from standfast.store.schema.names import SHORTEST
from standfast.store.schema.run_file import RunFile

_MISSING: Final = object()
_COMPARES: Final = re.compile(r"[<>!~]")
_COMPARED: Final = 1000
_LONGEST: Final = 100
"""So many names of so many characters are looked at for the one that may be meant."""
_MOST: Final = 10
"""Of the names that there are, so many are listed."""


@dataclass(frozen=True)
class Hyperparameter:
    """A hyperparameter that runs must have, or have with this value."""

    key: str
    value: Any = _MISSING
    """As it was read from the text: a number, true, null, a list, or the text itself."""
    text: str = ""

    @classmethod
    def parse(cls, given: str) -> Hyperparameter:
        """`lr=0.1`, `optimizer.name=adam`, or `lr` for any value; raises BadOption."""
        key, equals, text = given.partition("=")
        if not key:
            raise BadOption(f"a hyperparameter is given as KEY=VALUE or KEY, not {given!r}")
        if text.startswith("="):
            raise _only_equality(given)
        return cls(key, _value(text), text) if equals else cls(key)

    def fits(self, hyperparameters: Any) -> bool:
        """Whether hyperparameters have it."""
        found = _find(hyperparameters, self.key.split("."))
        if self.value is _MISSING or found is _MISSING:
            return found is not _MISSING
        return found == self.text if isinstance(found, str) else _equal(found, self.value)

    def check_known(self, files: Iterable[RunFile]) -> None:
        """Raise BadOption if none of the runs has such a hyperparameter, whatever its value."""
        files = list(files)
        anything = Hyperparameter(self.key)
        if not files or any(anything.fits(file.hyperparameters) for file in files):
            return
        if _COMPARES.search(self.key):
            raise _only_equality(f"{self.key}={self.text}" if self.text else self.key)
        from standfast.store.query.changes import (
            named_hyperparameters,  # which a list need not wait for
        )

        names = (name for file in files for name in named_hyperparameters(file.hyperparameters))
        raise BadOption(f"no run has the hyperparameter {among(self.key, names)}")


def _only_equality(given: str) -> BadOption:
    return BadOption(
        f"{given!r}: hyperparameters are compared by = alone: give KEY=VALUE, or KEY for any value"
    )


def among(wanted: str, names: Iterable[str]) -> str:
    """A name that there is not, those that may be meant, and those that there are."""
    known = list(dict.fromkeys(names))
    short = [name for name in known[:_COMPARED] if len(name) <= _LONGEST]
    near = difflib.get_close_matches(wanted[:_LONGEST], short)
    meant = f"; did you mean {' or '.join(map(shortened, near))}?" if near else ""
    listed = ", ".join(
        map(shortened, [*near, *(name for name in known if name not in near)][:_MOST])
    )
    more = f", and {len(known) - _MOST:,} more" if len(known) > _MOST else ""
    there = f"{' There' if near else '; there'} are {listed}{more}" if known else ": there are none"
    return f"{shortened(wanted)!r}{meant}{there}"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return float(text)  # `.1`, which JSON does not have
    except ValueError:
        return text


def _find(node: Any, steps: Sequence[str]) -> Any:
    """What lies at a path; keys may have dots themselves."""
    if not steps:
        return node
    if isinstance(node, list):
        number = int(steps[0]) if steps[0].isdecimal() and len(steps[0]) < 10 else len(node)
        return _find(node[number], steps[1:]) if number < len(node) else _MISSING
    if isinstance(node, dict):
        for length in range(len(steps), 0, -1):
            key = ".".join(steps[:length])
            if key in node:
                found = _find(node[key], steps[length:])
                if found is not _MISSING:
                    return found
    return _MISSING


def _equal(a: Any, b: Any) -> bool:
    """Numbers by value, 1 is 1.0 and not true; lists and dicts member by member."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)


@dataclass(frozen=True)
class Filter:
    """What runs must be like."""

    run: str | None = None
    """A name, which several runs may have, or the beginning of a hash."""
    hyperparameters: tuple[Hyperparameter, ...] = ()
    model: str | None = None
    data: str | None = None
    """The beginning of the model's part of the hash, and of that of the data."""

    def __bool__(self) -> bool:
        return bool(self.run is not None or self.hyperparameters or self.model or self.data)


def chosen_runs(index: Index, chosen: Filter) -> list[str] | None:
    """The runs that fit, the latest first; None if all do. Raises RefNotFound, BadOption."""
    for part, digest in (("model", chosen.model), ("data", chosen.data)):
        if digest is not None and len(digest) < SHORTEST:
            raise BadOption(
                f"{digest!r} is too short for the hash of a {part}: give at least {SHORTEST} "
                "characters of it"
            )
    if not chosen:
        return None
    runs = [run.run for run in index.runs()] if chosen.run is None else _named(index, chosen.run)
    files = index.run_files() if chosen.hyperparameters else {}
    for each in chosen.hyperparameters:
        each.check_known(files.values())
    return [run for run in runs if _fits(chosen, run, files.get(run))]


def _named(index: Index, ref: str) -> list[str]:
    found = index.runs(name=ref)
    prefix = ref.replace("_", "")
    if not found and len(prefix) >= SHORTEST:
        found = index.runs(prefix=prefix)
    if not found:
        raise RefNotFound(f"no run goes by {ref!r}")
    return [run.run for run in found]


def _fits(chosen: Filter, run: str, file: RunFile | None) -> bool:
    hyperparameters = file.hyperparameters if file else None
    return (
        all(each.fits(hyperparameters) for each in chosen.hyperparameters)
        and _begins(run[8:16], chosen.model)
        and _begins(run[16:24], chosen.data)
    )


def _begins(group: str, digest: str | None) -> bool:
    """Whether eight characters of a hash are those of a digest, or begin with it."""
    return digest is None or group.startswith(digest[: len(group)].lower())

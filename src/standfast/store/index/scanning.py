"""What is in the folders of a store, taken into the index: the heads of records, marks, runs."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from standfast.errors import FileError, MissingFile, StandfastError, TooNew
from standfast.store.backends.backend import NO_ANSWER, UNTRUSTED, Backend, Reads, Version
from standfast.store.backends.read_ahead import ReadingAhead
from standfast.store.index.forks import outside_sqlite
from standfast.store.schema import names
from standfast.store.schema.decoder import FIRST, decode_head, read_head_line
from standfast.store.schema.marks import marks_at
from standfast.store.schema.run_file import read_run
from standfast.store.schema.seal import check_needs
from standfast.store.v3.companions import recover_run

_SETTLED: Final = 2_000_000_000
"""A folder that changed less than this many nanoseconds ago may change again in the same tick."""
_FIRST_TIME: Final = 1 << 50
"""Versions from this on are times, in nanoseconds; those below change with every change."""
_TABLES: Final = ("folders", "runs", "records", "files", "marks", "tags")
_AT_ONCE: Final = 100
"""How many folders are taken in between two commits."""
_Stamps = dict[str, dict[int, int]]
"""By table and step."""


class DiskClock:
    """A lower bound of the time by the clock of a disk, which may be that of another machine."""

    def __init__(self) -> None:
        self._newest = 0
        self._seen = 0.0

    def now(self, versions: Iterable[Version]) -> int:
        """The time of the last change, or what has passed since one that was seen before."""
        newest = max((v[0] for v in versions if v[0] < UNTRUSTED), default=0)
        passed = self._newest + int((time.monotonic() - self._seen) * 1e9)
        if newest > passed or not self._newest:
            self._newest, self._seen = newest, time.monotonic()
            return newest
        return passed


def take_in(backend: Backend, connection: sqlite3.Connection, clock: DiskClock) -> None:
    """Take in all folders that have changed since the last time."""
    with outside_sqlite():
        folders = backend.folders(names.MODELS)
    found = {run: version for run, version in folders.items() if names.is_run(run)}
    now = clock.now(found.values())
    known = {
        run: (version, settled)
        for run, version, settled in connection.execute("SELECT * FROM folders")
    }
    for run in known.keys() - found.keys():
        _drop(connection, run)
    changed = [run for run, version in found.items() if known.get(run) != (repr(version), 1)]
    for first in range(0, len(changed), _AT_ONCE):
        some = changed[first : first + _AT_ONCE]
        ahead = ReadingAhead(backend)
        with outside_sqlite():
            ahead.list_all(map(names.run_folder, some), ".json")
        scans = [scan for run in some if (scan := _look(ahead, connection, run))]
        with outside_sqlite():
            ahead.read_all((name for scan in scans for name in scan.unread()), FIRST)
        whole = {scan.run: scan.take_in(ahead, connection) for scan in scans}
        for run in some:  # of a folder that cannot be read now, what is known stays
            settled = whole.get(run, False) and _is_settled(found[run], now)
            row = (run, repr(found[run]), settled)
            connection.execute("INSERT OR REPLACE INTO folders VALUES (?, ?, ?)", row)
        if first + _AT_ONCE < len(changed):
            connection.commit()  # others may want to write as well


class _Scan:
    """What is in one folder, beside what is known of it."""

    def __init__(self, run: str, found: _Stamps, known: _Stamps) -> None:
        self.run = run
        self._found = found
        self._known = known

    def unread(self) -> Iterator[str]:
        """The files that are new or were replaced."""
        for table, (name, _) in _KINDS.items():
            for step in self._new(table):
                yield name(self.run, step)

    def _new(self, table: str) -> list[int]:
        known = self._known[table]
        return [step for step, stamp in self._found[table].items() if known.get(step) != stamp]

    def take_in(self, backend: Reads, connection: sqlite3.Connection) -> bool:
        """Take in what is new, what was replaced, what is gone.

        False if something could not be read, which is no damage yet: the next one tries again.
        """
        whole = True
        for table, (_, take) in _KINDS.items():
            found, known = self._found[table], self._known[table]
            for gone in known.keys() - found.keys():
                _forget_row(connection, table, self.run, gone)
            for new in self._new(table):
                if new in known:
                    _forget_row(connection, table, self.run, new)
                whole &= take(backend, connection, self.run, new, found[new])
        return whole


def _look(backend: Reads, connection: sqlite3.Connection, run: str) -> _Scan | None:
    """What is in the folder of a run; None if it cannot be read now."""
    found: _Stamps = {"records": {}, "marks": {}, "runs": {}}
    tables = {"record": "records", "marks": "marks", "run": "runs"}
    try:
        listed = backend.list(names.run_folder(run), ".json")
    except FileError as error:
        _check_answered(error)
        return None
    for name, stamp in listed:
        named = names.parse(name, run)
        if named is not None and named.kind in tables:
            found[tables[named.kind]][named.step] = stamp
    known: _Stamps = {}
    for table in found:
        step = "0" if table == "runs" else "step"
        query = f"SELECT {step}, stamp FROM {table} WHERE run = ?"
        known[table] = dict(connection.execute(query, (run,)).fetchall())
    return _Scan(run, found, known)


def _take_record(backend: Reads, db: sqlite3.Connection, run: str, step: int, stamp: int) -> bool:
    try:
        line = read_head_line(backend, run, step)
        head = decode_head(line, run, step)
    except StandfastError as error:
        _check_answered(error)
        name = names.record_file(run, step).rpartition("/")[2]
        if isinstance(error, MissingFile) and not _is_listed(backend, run, name):
            return True  # deleted meanwhile
        problem = str(error)
        newer = problem if isinstance(error, TooNew) else None
        row: tuple[Any, ...]
        row = (run, step, _stamp(stamp, error), 0, "", "", 0, None, problem, newer)
        db.execute(f"INSERT INTO records VALUES ({_places(10)})", row)
        return not isinstance(error, FileError)
    newer = None
    try:
        check_needs(head.needs)
    except TooNew as error:
        newer = str(error)
    row = (
        *(run, step, stamp, head.sequence, head.token, head.time, int(head.best), line, None),
        newer,
    )
    db.execute(f"INSERT INTO records VALUES ({_places(10)})", row)
    rows = [(run, step, f.name, f.size, f.digest, f.held, f.used) for f in head.files]
    db.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    return True


_json = msgspec.json.encode


def _places(count: int) -> str:
    return ", ".join("?" * count)


def _stamp(stamp: int, error: StandfastError) -> int | None:
    """The stamp of a file that is damaged for good; of one that cannot be read now, none."""
    return None if isinstance(error, FileError) else stamp


def _check_answered(error: StandfastError) -> None:
    """Raise if a server did not answer: what it has must be taken neither for damaged nor gone."""
    if isinstance(error, FileError) and error.errno in NO_ANSWER:
        raise error


def _is_listed(backend: Reads, run: str, name: str) -> bool:
    """Whether what cannot be found has a name all the same: a link that leads nowhere."""
    return bool(backend.list(names.run_folder(run), name))


def _take_marks(backend: Reads, db: sqlite3.Connection, run: str, step: int, stamp: int) -> bool:
    tags: list[str] = []
    row: tuple[Any, ...]
    whole = True
    try:
        marks = marks_at(backend, run, step)
        tags = marks.tags
        row = (
            *(run, step, stamp, marks.sequence, marks.token, json.dumps(tags), marks.best),
            *(_json(marks.metrics), marks.verified, None, None),
        )
    except StandfastError as error:
        _check_answered(error)
        if isinstance(error, MissingFile):
            return True  # deleted since the folder was listed
        newer = str(error) if isinstance(error, TooNew) else None
        row = (run, step, _stamp(stamp, error), 0, "", "[]", None, b"{}", None, str(error), newer)
        whole = not isinstance(error, FileError)
    db.execute(f"INSERT INTO marks VALUES ({_places(11)})", row)
    db.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(tag, run, step) for tag in tags])
    return whole


def _take_run(backend: Reads, db: sqlite3.Connection, run: str, _: int, stamp: int) -> bool:
    whole = True
    row: tuple[Any, ...]
    try:
        file = read_run(backend, run)
        row = (run, stamp, file.name, file.created, _json(file), None, None)
    except StandfastError as error:
        _check_answered(error)
        known = recover_run(backend, run)  # it is found by its name all the same
        name, created = (known.name, known.created) if known else (None, None)
        newer = str(error) if isinstance(error, TooNew) else None
        row = (run, _stamp(stamp, error), name, created, None, str(error), newer)
        whole = not isinstance(error, FileError)
    db.execute(f"INSERT INTO runs VALUES ({_places(7)})", row)
    return whole


_KINDS: Final[
    dict[
        str,
        tuple[
            Callable[[str, int], str],
            Callable[[Reads, sqlite3.Connection, str, int, int], bool],
        ],
    ]
] = {
    "records": (names.record_file, _take_record),
    "marks": (names.marks_file, _take_marks),
    "runs": (lambda run, _: names.run_file(run), _take_run),
}
"""How the files of each table are called, and how they are taken in."""


def _forget_row(connection: sqlite3.Connection, table: str, run: str, step: int) -> None:
    if table == "runs":
        connection.execute("DELETE FROM runs WHERE run = ?", (run,))
        return
    beside = {"records": "files", "marks": "tags"}[table]
    for each in (table, beside):
        connection.execute(f"DELETE FROM {each} WHERE run = ? AND step = ?", (run, step))


def forget_all(connection: sqlite3.Connection) -> None:
    """Forget everything but where chunks may be."""
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table}")


def _drop(connection: sqlite3.Connection, run: str) -> None:
    for table in (*_TABLES, "learned"):
        connection.execute(f"DELETE FROM {table} WHERE run = ?", (run,))


def _is_settled(version: Version, now: int) -> bool:
    """Whether a change of the folder from now on gives it another version.

    The clock of this machine says nothing about that of the disk.
    """
    return version[0] < _FIRST_TIME or version[0] < now - _SETTLED

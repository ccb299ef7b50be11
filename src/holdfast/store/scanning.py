"""What is in the folders of a store, taken into the index: the heads of records, marks, runs."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from typing import Any, Final

import msgspec

from holdfast.errors import FileError, HoldfastError, MissingFile
from holdfast.store import names
from holdfast.store.backend import Backend, Version
from holdfast.store.decoding import decode_head
from holdfast.store.marks import read_marks
from holdfast.store.record import FORMAT, MAX_HEAD, Head
from holdfast.store.runfile import read_run
from holdfast.store.sealed import check_sealed

_SETTLED: Final = 2_000_000_000
"""A folder that changed less than this many nanoseconds ago may change again in the same tick."""
_TABLES: Final = ("folders", "runs", "records", "files", "marks", "tags")
_NAME: Final = re.compile(rb'"name":"([^"]*)"')
_HEAD: Final = 8192
"""Most heads are shorter; a longer one is read again."""


def take_in(backend: Backend, connection: sqlite3.Connection) -> None:
    """Take in all folders that have changed since the last time."""
    now = time.time_ns()
    found = {
        run: version for run, version in backend.folders(names.MODELS).items() if names.is_run(run)
    }
    known = {
        run: (version, settled)
        for run, version, settled in connection.execute("SELECT * FROM folders")
    }
    for run in known.keys() - found.keys():
        _drop(connection, run)
    for count, (run, version) in enumerate(found.items()):
        text = repr(version)
        if known.get(run) != (text, 1):
            try:
                whole = _scan(backend, connection, run)
            except FileError:  # the folder cannot be read now: what is known of it stays
                whole = False
            row = (run, text, whole and _is_settled(version, now))
            connection.execute("INSERT OR REPLACE INTO folders VALUES (?, ?, ?)", row)
        if count % 100 == 99:
            connection.commit()  # others may want to write as well


def _scan(backend: Backend, connection: sqlite3.Connection, run: str) -> bool:
    """Take in one folder: what is new, what was replaced, what is gone.

    False if something could not be read, which is no damage yet: the next one tries again.
    """
    whole = True
    found: dict[str, dict[int, int]] = {"run": {}, "record": {}, "marks": {}}
    folder = names.run_folder(run)
    for name, stamp in backend.list(folder, ".json"):
        named = names.parse(name, run)
        if named is not None and named.kind in found:
            found[named.kind][named.step] = stamp
    for table, kind, take in (
        ("records", "record", _take_record),
        ("marks", "marks", _take_marks),
        ("runs", "run", _take_run),
    ):
        step = "0" if table == "runs" else "step"
        query = f"SELECT {step}, stamp FROM {table} WHERE run = ?"
        known = dict(connection.execute(query, (run,)).fetchall())
        for gone in known.keys() - found[kind].keys():
            _forget_row(connection, table, run, gone)
        for new, stamp in found[kind].items():
            if known.get(new) != stamp:
                if new in known:
                    _forget_row(connection, table, run, new)
                whole &= take(backend, connection, run, new, stamp)
    return whole


def _take_record(backend: Backend, db: sqlite3.Connection, run: str, step: int, stamp: int) -> bool:
    try:
        line = _read_head_line(backend, run, step)
        head = decode_head(line, run, step)
    except HoldfastError as error:
        name = names.record_file(run, step).rpartition("/")[2]
        if isinstance(error, MissingFile) and not _is_listed(backend, run, name):
            return True  # deleted meanwhile
        problem = (run, step, _stamp(stamp, error), 0, "", 0, None, str(error))
        db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", problem)
        return not isinstance(error, FileError)
    row = (run, step, stamp, head.sequence, head.time, int(head.best), line, None)
    db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    rows = [(run, step, f.name, f.size, f.digest, f.held, f.used) for f in head.files]
    db.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    return True


_json = msgspec.json.encode


def _stamp(stamp: int, error: HoldfastError) -> int | None:
    """The stamp of a file that is damaged for good; of one that cannot be read now, none."""
    return None if isinstance(error, FileError) else stamp


def _is_listed(backend: Backend, run: str, name: str) -> bool:
    """Whether what cannot be found has a name all the same: a link that leads nowhere."""
    return bool(backend.list(names.run_folder(run), name))


def _take_marks(backend: Backend, db: sqlite3.Connection, run: str, step: int, stamp: int) -> bool:
    tags: list[str] = []
    row: tuple[Any, ...]
    whole = True
    try:
        marks = read_marks(backend, run, step)
        tags = marks.tags
        row = (run, step, stamp, json.dumps(tags), marks.best, _json(marks.metrics), None)
    except HoldfastError as error:
        row = (run, step, _stamp(stamp, error), "[]", None, b"{}", str(error))
        whole = not isinstance(error, FileError)
    db.execute("INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    db.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(tag, run, step) for tag in tags])
    return whole


def _take_run(backend: Backend, db: sqlite3.Connection, run: str, _: int, stamp: int) -> bool:
    whole = True
    row: tuple[Any, ...]
    try:
        file = read_run(backend, run)
        row = (run, stamp, file.name, file.created, _json(file), None)
    except HoldfastError as error:
        row = (run, _stamp(stamp, error), None, None, None, str(error))
        whole = not isinstance(error, FileError)
    db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)
    return whole


def _forget_row(connection: sqlite3.Connection, table: str, run: str, step: int) -> None:
    if table == "runs":
        connection.execute("DELETE FROM runs WHERE run = ?", (run,))
        return
    beside = {"records": "files", "marks": "tags"}[table]
    for each in (table, beside):
        connection.execute(f"DELETE FROM {each} WHERE run = ? AND step = ?", (run, step))


def forget_all(connection: sqlite3.Connection) -> None:
    """Forget everything but what was found out about files."""
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table}")


def _drop(connection: sqlite3.Connection, run: str) -> None:
    for table in (
        "folders",
        "runs",
        "records",
        "files",
        "marks",
        "tags",
        "learned",
        "distrusted",
        "verified",
    ):
        connection.execute(f"DELETE FROM {table} WHERE run = ?", (run,))


def read_head(backend: Backend, run: str, step: int) -> Head:
    """The head of a record, as it is on the disk."""
    return decode_head(_read_head_line(backend, run, step), run, step)


def names_in_head(backend: Backend, run: str, step: int) -> set[str]:
    """The data files that a record refers to, and maybe more; raises what `read_head` does.

    It takes a fraction of the time, for those who ask all records of a run.
    """
    line = _read_head_line(backend, run, step)
    check_sealed(line, FORMAT)
    return {name.decode("ascii", "replace") for name in _NAME.findall(line)}


def _read_head_line(backend: Backend, run: str, step: int) -> bytes:
    """The first line of a record."""
    name = names.record_file(run, step)
    for limit in (_HEAD, MAX_HEAD):
        line, end, _ = backend.read(name, limit).partition(b"\n")
        if end:
            break
    return line


def _is_settled(version: Version, now: int) -> bool:
    """Whether a change of the folder from now on gives it another version."""
    return version[0] < now - _SETTLED

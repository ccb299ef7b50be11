"""What lists, references and dedup need to know of all records, in SQLite: a view.

It is filled from the heads of records, folder by folder, when a folder has changed. Deleted,
garbled or out of date, it is made again; where it cannot be written, it lives in memory.
"""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.errors import DamagedFile, HoldfastError, MissingFile
from holdfast.files import disk
from holdfast.store import names
from holdfast.store.backend import Backend, Version
from holdfast.store.marks import read_marks
from holdfast.store.record import MAX_HEAD, DataFile, Head, decode_head
from holdfast.store.runfile import read_run

NAME: Final = "index.sqlite"
_SETTLED: Final = 2_000_000_000
"""A folder that changed less than this many nanoseconds ago may change again in the same tick."""
_HEAD: Final = 8192
"""Most heads are shorter; a longer one is read again."""
_SCHEMA: Final = """
CREATE TABLE folders (run TEXT PRIMARY KEY, version TEXT, settled INTEGER) WITHOUT ROWID;
CREATE TABLE runs (run TEXT PRIMARY KEY, stamp INTEGER, name TEXT, created TEXT, problem TEXT)
    WITHOUT ROWID;
CREATE TABLE records (run TEXT, step INTEGER, stamp INTEGER, sequence INTEGER, time TEXT,
    best INTEGER, head BLOB, problem TEXT, PRIMARY KEY (run, step)) WITHOUT ROWID;
CREATE INDEX by_sequence ON records (sequence, run) WHERE problem IS NULL;
CREATE INDEX damaged ON records (run) WHERE problem IS NOT NULL;
CREATE TABLE files (run TEXT, step INTEGER, name TEXT, size INTEGER, digest TEXT, held INTEGER,
    used INTEGER);
CREATE INDEX by_file ON files (run, name);
CREATE INDEX by_step ON files (run, step);
CREATE TABLE marks (run TEXT, step INTEGER, stamp INTEGER, tags TEXT, problem TEXT,
    PRIMARY KEY (run, step)) WITHOUT ROWID;
CREATE TABLE tags (tag TEXT, run TEXT, step INTEGER);
CREATE INDEX by_tag ON tags (tag);
CREATE TABLE chunks (digest BLOB PRIMARY KEY, size INTEGER, run TEXT, name TEXT, start INTEGER)
    WITHOUT ROWID;
CREATE TABLE learned (run TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE distrusted (run TEXT, name TEXT, PRIMARY KEY (run, name)) WITHOUT ROWID;
PRAGMA user_version = 1;
"""

# To delete a file that others have open would pull its memory from under them: only what is
# damaged is deleted, not what is locked, full or not ours to write.
_NO_DAMAGE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
    }
)

Result = TypeVar("Result")


class Listed(NamedTuple):
    """A record in the index."""

    run: str
    step: int
    head: Head


class ListedRun(NamedTuple):
    """A run in the index."""

    run: str
    name: str | None
    created: str | None
    used: str | None
    """When the latest of its checkpoints was committed."""
    problem: str | None


class KnownChunk(NamedTuple):
    """Where a chunk lay when it was last heard of."""

    run: str
    name: str
    start: int


class Index:
    """The records of a store, as they were at the last `refresh`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._guard = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()

    def close(self) -> None:
        """Let go of the file; the next call opens it again."""
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # Keeping up with the store

    def refresh(self) -> None:
        """Take in what has changed since the last time."""
        self._do(self._refresh)

    def rebuild(self) -> None:
        """Forget everything and read all records again."""
        with self._guard:
            self._forget()
            self.refresh()

    def _refresh(self, connection: sqlite3.Connection) -> None:
        now = time.time_ns()
        found = {
            run: version
            for run, version in self._backend.folders(names.MODELS).items()
            if names.is_run(run)
        }
        known = {
            run: (version, settled)
            for run, version, settled in connection.execute("SELECT * FROM folders")
        }
        for run in known.keys() - found.keys():
            self._drop(connection, run)
        for count, (run, version) in enumerate(found.items()):
            text = repr(version)
            if known.get(run) != (text, 1):
                self._scan(connection, run)
                row = (run, text, _is_settled(version, now))
                connection.execute("INSERT OR REPLACE INTO folders VALUES (?, ?, ?)", row)
            if count % 100 == 99:
                connection.commit()  # others may want to write as well

    def _scan(self, connection: sqlite3.Connection, run: str) -> None:
        """Take in one folder: what is new, what was replaced, what is gone."""
        found: dict[str, dict[int, int]] = {"run": {}, "record": {}, "marks": {}}
        folder = names.run_folder(run)
        for name, stamp in self._backend.list(folder, ".json"):
            named = names.parse(name, run)
            if named is not None:
                found[named.kind][named.step] = stamp
        for table, kind, take in (
            ("records", "record", self._take_record),
            ("marks", "marks", self._take_marks),
            ("runs", "run", self._take_run),
        ):
            step = "0" if table == "runs" else "step"
            query = f"SELECT {step}, stamp FROM {table} WHERE run = ?"
            known = dict(connection.execute(query, (run,)).fetchall())
            for gone in known.keys() - found[kind].keys():
                self._forget_row(connection, table, run, gone)
            for new, stamp in found[kind].items():
                if known.get(new) != stamp:
                    if new in known:
                        self._forget_row(connection, table, run, new)
                    take(connection, run, new, stamp)

    def _take_record(self, db: sqlite3.Connection, run: str, step: int, stamp: int) -> None:
        try:
            line = read_head_line(self._backend, run, step)
            head = decode_head(line, run, step)
        except HoldfastError as error:
            name = names.record_file(run, step).rpartition("/")[2]
            if isinstance(error, MissingFile) and not self._is_listed(run, name):
                return  # deleted meanwhile
            row: Sequence[Any] = (run, step, stamp, 0, "", 0, None, str(error))
            db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            return
        row = (run, step, stamp, head.sequence, head.time, int(head.best), line, None)
        db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        rows = [(run, step, f.name, f.size, f.digest, f.held, f.used) for f in head.files]
        db.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def _is_listed(self, run: str, name: str) -> bool:
        """Whether what cannot be found has a name all the same: a link that leads nowhere."""
        return bool(self._backend.list(names.run_folder(run), name))

    def _take_marks(self, db: sqlite3.Connection, run: str, step: int, stamp: int) -> None:
        tags, problem = [], None
        try:
            tags = list(read_marks(self._backend, run, step).tags)
        except HoldfastError as error:
            problem = str(error)
        row = (run, step, stamp, json.dumps(tags), problem)
        db.execute("INSERT INTO marks VALUES (?, ?, ?, ?, ?)", row)
        db.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(tag, run, step) for tag in tags])

    def _take_run(self, db: sqlite3.Connection, run: str, _: int, stamp: int) -> None:
        name, created, problem = None, None, None
        try:
            file = read_run(self._backend, run)
            name, created = file.name, file.created
        except HoldfastError as error:
            problem = str(error)
        row = (run, stamp, name, created, problem)
        db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", row)

    @staticmethod
    def _forget_row(connection: sqlite3.Connection, table: str, run: str, step: int) -> None:
        if table == "runs":
            connection.execute("DELETE FROM runs WHERE run = ?", (run,))
            return
        beside = {"records": "files", "marks": "tags"}[table]
        for each in (table, beside):
            connection.execute(f"DELETE FROM {each} WHERE run = ? AND step = ?", (run, step))

    @staticmethod
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
        ):
            connection.execute(f"DELETE FROM {table} WHERE run = ?", (run,))

    # Asking

    def highest(self) -> int:
        """The highest sequence number in the store; 0 if there is none."""
        return int(self._one("SELECT coalesce(max(sequence), 0) FROM records"))

    def newest(self, run: str | None = None, *, best: bool = False) -> Iterator[Listed]:
        """The records that can be read, of a run or of the store, the latest first."""
        where = "problem IS NULL" + (" AND best" if best else "")
        chosen = [] if run is None else [run]
        where += " AND run = ?" if chosen else ""
        page = 32
        for offset in itertools.count(0, page):
            listed = self._listed(
                f"SELECT run, step, head FROM records WHERE {where} "
                f"ORDER BY sequence DESC, run DESC, step DESC LIMIT {page} OFFSET {offset}",
                *chosen,
            )
            yield from listed
            if len(listed) < page:
                return

    def record(self, run: str, step: int) -> Listed | None:
        """One record, if it can be read."""
        listed = self._listed(
            "SELECT run, step, head FROM records WHERE run = ? AND step = ? AND problem IS NULL",
            run,
            step,
        )
        return listed[0] if listed else None

    def unreadable(self, run: str | None = None) -> list[tuple[str, int, str]]:
        """The records, of a run or of the store, whose heads are damaged, and how."""
        chosen = [] if run is None else [run]
        where = "problem IS NOT NULL" + (" AND run = ?" if chosen else "")
        query = f"SELECT run, step, problem FROM records WHERE {where} ORDER BY run, step"
        return self._all(query, *chosen)

    def steps(self, run: str) -> list[int]:
        """The steps of a run, in order, whether they can be read or not."""
        return [
            step
            for (step,) in self._all("SELECT step FROM records WHERE run = ? ORDER BY step", run)
        ]

    def count(self, run: str | None = None) -> int:
        """How many records there are."""
        if run is None:
            return int(self._one("SELECT count(*) FROM records"))
        return int(self._one("SELECT count(*) FROM records WHERE run = ?", run))

    def runs(
        self, *, name: str | None = None, prefix: str = "", empty: bool = False
    ) -> list[ListedRun]:
        """The runs whose hash begins so, of this name if one is given, the latest first.

        One that has no checkpoint yet comes before all others. A folder with neither a run file
        nor a record is what a crash left, and no run; with `empty` it is listed too.
        """
        return [
            ListedRun(*row)
            for row in self._all(
                "SELECT folders.run, name, created, used, runs.problem FROM folders "
                "LEFT JOIN runs ON runs.run = folders.run "
                "LEFT JOIN (SELECT run, max(sequence) AS sequence, time AS used FROM records "
                "GROUP BY run) AS last ON last.run = folders.run "
                "WHERE substr(folders.run, 1, ?) = ? AND (? IS NULL OR name = ?) "
                "AND (? OR runs.run IS NOT NULL OR last.run IS NOT NULL) "
                "ORDER BY coalesce(sequence, 1 << 60) DESC, folders.run",
                len(prefix),
                prefix,
                name,
                name,
                empty,
            )
        ]

    def tagged(self, tag: str) -> list[tuple[str, int]]:
        """The checkpoints that bear a tag: one, unless two writers gave it at the same moment."""
        return self._all("SELECT run, step FROM tags WHERE tag = ?", tag)

    def tags(self, run: str) -> dict[int, list[str]]:
        """The tags of a run's checkpoints, by step."""
        rows = self._all("SELECT step, tags FROM marks WHERE run = ?", run)
        return {step: json.loads(tags) for step, tags in rows}

    def protected(self, run: str) -> dict[int, str]:
        """The steps that must be kept, and why: for a tag, or for marks that nobody can read."""
        query = "SELECT step, tags, problem FROM marks WHERE run = ?"
        found = {}
        for step, tags, problem in self._all(query, run):
            if problem is not None:
                found[step] = f"may be tagged: its marks cannot be read ({problem})"
            elif tags != "[]":
                found[step] = f"is tagged {json.loads(tags)[0]!r}: remove the tag first"
        return found

    def problems(self) -> list[tuple[str, str]]:
        """What could not be read when the folders were last looked at, and why."""
        found = [
            (name(*row[:-1]), row[-1])
            for query, name in (
                ("SELECT run, problem FROM runs", names.run_file),
                ("SELECT run, step, problem FROM records", names.record_file),
                ("SELECT run, step, problem FROM marks", names.marks_file),
            )
            for row in self._all(f"{query} WHERE problem IS NOT NULL")
        ]
        return sorted(found)

    def files(self, run: str) -> dict[str, DataFile]:
        """The data files that a run's records refer to, each as the one that uses most of it."""
        rows = self._all(
            "SELECT name, size, digest, held, max(used) FROM files WHERE run = ? GROUP BY name", run
        )
        return {row[0]: DataFile(*row) for row in rows}

    # Chunks

    def find_chunk(self, digest: bytes, size: int) -> KnownChunk | None:
        """Where such a chunk may be."""
        rows = self._all(
            "SELECT run, name, start FROM chunks WHERE digest = ? AND size = ?", digest, size
        )
        return KnownChunk(*rows[0]) if rows else None

    def add_chunks(self, run: str, rows: Iterable[tuple[bytes, int, str, str, int]]) -> None:
        """Remember chunks of a run: digest, size, run, file and where they start in it."""

        def add(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO learned VALUES (?)", (run,))
            connection.executemany("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)", rows)

        self._do(add)

    def learned(self) -> set[str]:
        """The runs of which some chunks are remembered."""
        return {run for (run,) in self._all("SELECT run FROM learned")}

    def distrust(self, run: str, name: str) -> None:
        """A data file was found to be damaged: no checkpoint shall refer to it any more."""

        def add(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO distrusted VALUES (?, ?)", (run, name))

        self._do(add)

    def trust(self, run: str, name: str) -> None:
        """A data file is intact again."""

        def remove(connection: sqlite3.Connection) -> None:
            query = "DELETE FROM distrusted WHERE run = ? AND name = ?"
            connection.execute(query, (run, name))

        self._do(remove)

    def distrusted(self, run: str) -> set[str]:
        """The data files of a run that were found to be damaged."""
        return {name for (name,) in self._all("SELECT name FROM distrusted WHERE run = ?", run)}

    # SQLite

    def _one(self, query: str, *arguments: Any) -> Any:
        return self._all(query, *arguments)[0][0]

    def _all(self, query: str, *arguments: Any) -> list[Any]:
        return self._do(lambda connection: connection.execute(query, arguments).fetchall())

    def _listed(self, query: str, *arguments: Any) -> list[Listed]:
        return self._do(
            lambda connection: [
                Listed(run, step, decode_head(line, run, step))
                for run, step, line in connection.execute(query, arguments)
            ]
        )

    def _do(self, action: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run it; if the index turns out to be broken, make it again and run it once more."""
        with self._guard:
            try:
                with self._opened() as connection:
                    return action(connection)
            except (sqlite3.Error, DamagedFile) as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NO_DAMAGE:
                    self.close()
                else:
                    self._forget()
            try:
                with self._opened() as connection:
                    self._refresh(connection)
                    return action(connection)
            except sqlite3.Error:
                self.close()
            self._connection = _prepared(":memory:")
            with self._opened() as connection:
                self._refresh(connection)
                return action(connection)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        if self._process != os.getpid():  # a connection does not outlive a fork
            self._connection, self._process = None, os.getpid()
        if self._connection is None:
            cache = self._backend.cache
            self._connection = _prepared(cache / NAME if cache else ":memory:")
        with self._connection:
            yield self._connection

    def _forget(self) -> None:
        self.close()
        cache = self._backend.cache
        if cache is not None:
            for suffix in ("", "-wal", "-shm"):
                try:
                    disk.LOCAL.remove(cache / f"{NAME}{suffix}")
                except OSError:  # then it lives in memory
                    return


def read_head_line(backend: Backend, run: str, step: int) -> bytes:
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


def _prepared(path: Path | str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=5.0, check_same_thread=False)
    try:
        with suppress(sqlite3.OperationalError):  # somebody else is doing so this moment
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA user_version").fetchone() != (1,):
            connection.execute("BEGIN IMMEDIATE")
            _make_tables(connection)
            connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: sqlite3.Connection) -> None:
    """Make all tables, unless another process did so meanwhile."""
    if connection.execute("PRAGMA user_version").fetchone() == (1,):
        return
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise sqlite3.DatabaseError("another version")
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)

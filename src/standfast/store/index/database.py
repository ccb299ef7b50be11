"""The file of the index: a SQLite database that is made again whenever it is found broken."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from standfast.errors import DamagedFile, StandfastError
from standfast.files import disk
from standfast.store.backends import locks
from standfast.store.backends.backend import Backend
from standfast.store.index.forks import connected, inside_sqlite, keep_open
from standfast.store.index.scanning import forget_all

NAME: Final = "index-6.sqlite"
"""With the number of the tables below: a version that has others makes a file of its own."""
_SCHEMA: Final = """
CREATE TABLE folders (run TEXT PRIMARY KEY, version TEXT, settled INTEGER) WITHOUT ROWID;
CREATE TABLE runs (run TEXT PRIMARY KEY, stamp INTEGER, name TEXT, created TEXT, file BLOB,
    problem TEXT, newer TEXT) WITHOUT ROWID;
CREATE TABLE records (run TEXT, step INTEGER, stamp INTEGER, sequence INTEGER, token TEXT,
    time TEXT, best INTEGER, head BLOB, problem TEXT, newer TEXT, PRIMARY KEY (run, step))
    WITHOUT ROWID;
CREATE INDEX by_sequence ON records (sequence, run) WHERE problem IS NULL;
CREATE INDEX of_run ON records (run, sequence) WHERE problem IS NULL;
CREATE INDEX damaged ON records (run) WHERE problem IS NOT NULL;
CREATE TABLE files (run TEXT, step INTEGER, name TEXT, size INTEGER, digest TEXT, held INTEGER,
    used INTEGER);
CREATE INDEX by_file ON files (run, name);
CREATE INDEX by_step ON files (run, step);
CREATE TABLE marks (run TEXT, step INTEGER, stamp INTEGER, sequence INTEGER, token TEXT,
    tags TEXT, best INTEGER, metrics BLOB, verified TEXT, problem TEXT, newer TEXT,
    PRIMARY KEY (run, step)) WITHOUT ROWID;
CREATE VIEW current AS SELECT marks.* FROM marks JOIN records USING (run, step)
    WHERE marks.problem IS NOT NULL OR records.problem IS NOT NULL
    OR (marks.sequence = records.sequence AND marks.token = records.token);
CREATE TABLE tags (tag TEXT, run TEXT, step INTEGER);
CREATE INDEX by_tag ON tags (tag);
CREATE TABLE chunks (digest BLOB PRIMARY KEY, size INTEGER, run TEXT, name TEXT, start INTEGER)
    WITHOUT ROWID;
CREATE TABLE learned (run TEXT PRIMARY KEY) WITHOUT ROWID;
PRAGMA user_version = 1;
"""
_MADE: Final = (1,)
"""The `user_version` of a database that has all its tables."""

_NO_DATABASE: Final = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
)
"""What SQLite says of a file whose structure is broken. To delete a file that others have open
pulls its memory from under them, so nothing else is a reason to."""

_GARBLED: Final = (DamagedFile, ValueError, TypeError, AttributeError)
"""How a row shows that holds something else than was put there."""

_PATIENCE: Final = 5.0
"""The seconds for which a process that makes the database, or changes it, is waited for."""

Result = TypeVar("Result")
Action = Callable[[sqlite3.Connection], Result]


class Database:
    """A database in the cache of a backend, or in memory where it cannot be written.

    `fill` brings a new one up to date.
    """

    def __init__(self, backend: Backend, fill: Action[None]) -> None:
        self._backend = backend
        self._fill = fill
        self._guard = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._is_file = False
        self._is_homeless = False
        """Whether it is in memory because there was no folder for it yet."""
        self._process = os.getpid()
        connected.add(self)

    def all(self, query: str, *arguments: Any) -> list[Any]:
        """All rows that a query gives."""
        self._forget_parent()
        with inside_sqlite(), self._guard:
            if self._connection is not None:
                with suppress(sqlite3.Error):  # what is wrong is found out below
                    return self._connection.execute(query, arguments).fetchall()
        return self.do(lambda connection: connection.execute(query, arguments).fetchall())

    def do(self, action: Action[Result]) -> Result:
        """Run it; if the database turns out to be broken, fill it again and run it once more.

        An error that the action raises again is raised: it has another reason.
        """
        self._forget_parent()
        with inside_sqlite(), self._guard:
            garbled = False
            try:
                with self._opened() as connection:
                    return action(connection)
            except sqlite3.Error as error:
                is_broken = _is_broken(error, self._connection)
                self.close()
                if is_broken:
                    self._delete()
            except _GARBLED:
                garbled = True
            try:
                with self._opened() as connection:
                    connection.execute("BEGIN IMMEDIATE")  # no other process fills it too
                    if garbled:
                        forget_all(connection)
                    self._fill(connection)
                    return action(connection)
            except sqlite3.Error:
                self.close()
            self._connection, self._is_file = _prepared(":memory:"), False
            with self._opened() as connection:
                self._fill(connection)
                return action(connection)

    def _forget_parent(self) -> None:
        """A connection does not outlive a fork, and another thread may have held the guard then."""
        if self._process != os.getpid():
            if self._connection is not None and self._is_file:
                _inherited.add(self._backend.cache)
            keep_open(self._connection)
            self._guard = threading.RLock()
            self._connection, self._process = None, os.getpid()

    def close(self) -> None:
        """Let go of the file; the next call opens it again."""
        self._forget_parent()
        with inside_sqlite(), self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def close_file(self) -> None:
        """Let go of the file, unless somebody uses it; what is in memory alone would be lost."""
        if self._is_file and self._guard.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._guard.release()

    def settle(self) -> None:
        """Move to the folder of the store, if that was made since; what is known is found again.

        Others share what is there: chunks to refer to, files not to be trusted.
        """
        self._forget_parent()
        if self._is_homeless and self._backend.cache is not None:
            self.close()

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        if self._connection is None:
            self._connection = self._open()
        with self._connection:
            yield self._connection

    def _open(self) -> sqlite3.Connection:
        cache = self._backend.cache
        self._is_homeless = cache is None
        self._is_file = cache is not None and cache not in _inherited
        if cache is not None and self._is_file:
            return _prepared_in(cache)
        connection = _prepared(":memory:")
        if cache is not None:
            self._fill(connection)
        return connection

    def _delete(self) -> None:
        cache = self._backend.cache
        if cache is not None:
            # The shared memory first: found beside a new database, SQLite would cut it under those
            # who still have it for the old one.
            for suffix in ("-shm", "-wal", ""):
                try:
                    disk.LOCAL.remove(cache / f"{NAME}{suffix}")
                except OSError:  # then it lives in memory
                    return

    def forget_parent(self) -> None:
        """In a forked process: another thread may have held the guard, and to close is not ours."""
        self._forget_parent()

    def __del__(self) -> None:
        # Here rather than by the connection's own end, which nothing keeps out of a fork's way.
        if sqlite3 is not None and self._connection is not None and not sys.is_finalizing():
            self.close()


def _is_broken(error: sqlite3.Error, connection: sqlite3.Connection | None) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_ERROR and connection is not None:  # or is the query wrong?
        with suppress(sqlite3.Error):
            found = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master")}
            return any("CREATE" in sql and sql.strip() not in found for sql in _SCHEMA.split(";"))
    return code in _NO_DATABASE


_inherited: set[Path | None] = set()
"""Where the process that this one was forked from was using a database: SQLite takes its locks for
ours."""


def _prepared_in(cache: Path) -> sqlite3.Connection:
    """The one in a folder. One process at a time makes it: SQLite gives up where two begin."""
    path = cache / NAME
    if path.is_symlink():  # which SQLite would follow; it gives way to a new one
        raise sqlite3.DatabaseError(f"{path} is a link")
    found = _made(path)
    if found is not None:
        return found
    with ExitStack() as stack:
        with suppress(StandfastError):  # then it shows below what cannot be
            lock = locks.take(cache / f"{NAME}.lock", _PATIENCE, passing=True)
            if lock is not None:
                stack.enter_context(lock)
        return _prepared(path)


def _made(path: Path) -> sqlite3.Connection | None:
    """A database that has all its tables; None if there is none.

    SQLite looks: if the file were opened and closed here, all locks would be gone that other
    connections of this process have on it, and other processes would take it for nobody's.
    """
    try:
        if not path.stat().st_size:
            return None
        connection = _connect(path)
    except (OSError, sqlite3.Error):
        return None
    with suppress(sqlite3.Error):
        mode = connection.execute("PRAGMA journal_mode").fetchone()
        version = connection.execute("PRAGMA user_version").fetchone()
        if (mode, version) == (("wal",), _MADE):
            connection.execute("PRAGMA synchronous = NORMAL")
            return connection
    connection.close()
    return None


def _connect(path: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_PATIENCE, check_same_thread=False)


def _prepared(path: Path | str) -> sqlite3.Connection:
    connection = _connect(path)
    try:
        with suppress(sqlite3.OperationalError):  # somebody else is doing so this moment
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA user_version").fetchone() != _MADE:
            connection.execute("BEGIN IMMEDIATE")
            _make_tables(connection)
            connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: sqlite3.Connection) -> None:
    """Make all tables, unless another process did so meanwhile."""
    if connection.execute("PRAGMA user_version").fetchone() == _MADE:
        return
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)

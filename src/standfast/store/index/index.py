"""What lists, references and dedup need to know of all records: a view.

It is filled from the heads of records, folder by folder, when a folder has changed. Deleted,
garbled or out of date, it is made again; where it cannot be written, it lives in memory.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from standfast.errors import TooNew
from standfast.store.backends.backend import Backend
from standfast.store.index.database import Database
from standfast.store.index.scanning import DiskClock, forget_all, take_in
from standfast.store.schema import names
from standfast.store.schema.damage import damaged_files
from standfast.store.schema.decoder import decode_head
from standfast.store.schema.record import DataFile, Head
from standfast.store.schema.run_file import RunFile
from standfast.store.v3.companions import recover_run

_MOST: Final = 4096
"""How many records are held in memory to be listed."""


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
    last_used: str | None
    """When it was last made, loaded or saved into."""


class Span(NamedTuple):
    """How many records a run has, and from which step to which."""

    records: int
    damaged: int
    """How many of them cannot be read, other than those that are too new."""
    first: int
    last: int


class KnownChunk(NamedTuple):
    """Where a chunk lay when it was last heard of."""

    run: str
    name: str
    start: int


class Index:
    """The records of a store, as they were at the last `refresh`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._clock = DiskClock()
        self._database = Database(backend, self._take_in)

    def close(self) -> None:
        """Let go of the file; the next call opens it again."""
        self._database.close()

    def refresh(self) -> None:
        """Take in what has changed since the last time."""
        self._database.settle()
        self._database.do(self._take_in)

    def rebuild(self) -> None:
        """Forget everything and read all records again."""

        def again(connection: sqlite3.Connection) -> None:
            forget_all(connection)
            self._take_in(connection)

        self._database.do(again)

    def _take_in(self, connection: sqlite3.Connection) -> None:
        take_in(self._backend, connection, self._clock)

    # Asking

    def highest(self) -> int:
        """The highest sequence number in the store; 0 if there is none."""
        return int(
            self._one("SELECT coalesce(max(sequence), 0) FROM records WHERE problem IS NULL")
        )

    def newest(self, run: str | None = None) -> Iterator[Listed]:
        """The records that can be read, of a run or of the store, the latest first."""
        where = "problem IS NULL"
        chosen = [] if run is None else [run]
        where += " AND run = ?" if chosen else ""
        offset, page = 0, 32
        while True:
            listed = self._listed(
                f"SELECT run, step, head FROM records WHERE {where} "
                f"ORDER BY sequence DESC, run DESC, step DESC LIMIT {page} OFFSET {offset}",
                *chosen,
            )
            yield from listed
            if len(listed) < page:
                return
            offset += page
            page = min(2 * page, _MOST)  # each page goes past all those before it

    def best(self, run: str) -> Listed | None:
        """The record that was made the best of a run last, by its save or by a metric after it."""
        listed = self._listed(
            "SELECT records.run, records.step, head FROM records "
            "LEFT JOIN current AS marks ON marks.run = records.run AND marks.step = records.step "
            "WHERE records.run = ? AND records.problem IS NULL "
            "AND (records.best OR marks.best IS NOT NULL) "
            "ORDER BY max(coalesce(marks.best, 0), records.best * records.sequence) DESC, "
            "marks.best IS NULL, records.step DESC LIMIT 1",
            run,
        )
        return listed[0] if listed else None

    def made_best(self, run: str) -> list[int]:
        """The steps of a run that were made its best after their commit."""
        query = "SELECT step FROM current WHERE run = ? AND best IS NOT NULL"
        return [step for (step,) in self._database.all(query, run)]

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
        return self._database.all(query, *chosen)

    def too_new(self, run: str | None = None) -> list[tuple[str, int, str]]:
        """The records, of a run or of the store, that a newer version wrote, and what they need.

        Where the head cannot be read either, they are `unreadable` too.
        """
        chosen = [] if run is None else [run]
        where = "newer IS NOT NULL" + (" AND run = ?" if chosen else "")
        query = f"SELECT run, step, newer FROM records WHERE {where} ORDER BY run, step"
        return self._database.all(query, *chosen)

    def newer(self, run: str) -> str | None:
        """Which record of a run, or else its run file, is too new, and why; None if none is."""
        for _, step, problem in self.too_new(run):
            return f"{names.record_file(run, step)}: {problem}"
        query = "SELECT newer FROM runs WHERE run = ? AND newer IS NOT NULL"
        return next((newer for (newer,) in self._database.all(query, run)), None)

    def steps(self, run: str) -> list[int]:
        """The steps of a run, in order, whether they can be read or not."""
        return [
            step
            for (step,) in self._database.all(
                "SELECT step FROM records WHERE run = ? ORDER BY step", run
            )
        ]

    def sequences(self, run: str) -> dict[int, int]:
        """The sequence numbers of a run's records that can be read, by step."""
        query = "SELECT step, sequence FROM records WHERE run = ? AND problem IS NULL"
        return dict(self._database.all(query, run))

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
            for row in self._database.all(
                "SELECT DISTINCT folders.run, name, created, used, runs.problem, "
                "max(coalesce(used, ''), coalesce(created, ''), "
                "coalesce(json_extract(CAST(file AS TEXT), '$.last_used'), '')) FROM folders "
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

    def spans(self) -> dict[str, Span]:
        """How many records each run has that has any, by its hash."""
        rows = self._database.all(
            "SELECT run, count(*), sum(problem IS NOT NULL AND newer IS NULL), min(step), "
            "max(step) FROM records GROUP BY run"
        )
        return {run: Span(*row) for run, *row in rows}

    def tops(self) -> dict[str, Listed]:
        """The best record of each run, or where none was made the best its latest, by its hash."""
        rows = self._listed(
            "SELECT run, step, head FROM (SELECT records.run, records.step, head, row_number() "
            "OVER (PARTITION BY records.run ORDER BY "
            "max(coalesce(marks.best, 0), records.best * records.sequence) DESC, "
            "marks.best IS NULL, "
            "records.sequence * (NOT records.best AND marks.best IS NULL) DESC, records.step DESC) "
            "AS place FROM records LEFT JOIN current AS marks ON marks.run = records.run "
            "AND marks.step = records.step WHERE records.problem IS NULL) WHERE place = 1"
        )
        return {each.run: each for each in rows}

    def run_files(self) -> dict[str, RunFile]:
        """All runs by hash; a run whose run file cannot be read comes from its config."""
        rows = self._database.all(
            "SELECT run, file FROM runs UNION ALL SELECT DISTINCT run, NULL FROM records "
            "WHERE run NOT IN (SELECT run FROM runs)"
        )
        files = {run: self._run_file(run, file) for run, file in rows}
        return {run: file for run, file in files.items() if file is not None}

    def run_file(self, run: str) -> RunFile | None:
        """One run; from its config if its run file cannot be read, None if neither can."""
        rows = self._database.all("SELECT file FROM runs WHERE run = ?", run)
        if not rows and not self.steps(run):
            return None  # nothing is known of it, and its store may be out of reach
        return self._run_file(run, rows[0][0] if rows else None)

    def _run_file(self, run: str, file: bytes | None) -> RunFile | None:
        if file is None:
            return recover_run(self._backend, run)
        return msgspec.json.decode(file, type=RunFile)

    def has_run_file(self, run: str) -> bool:
        """Whether the file of a run can be read. If not, nothing of the run may be deleted."""
        rows = "SELECT count(*) FROM runs WHERE run = ? AND file IS NOT NULL"
        return bool(self._one(rows, run))

    def tagged(self, tag: str, surely: bool = False) -> list[tuple[str, int]]:
        """The checkpoints that bear a tag: one, unless two writers gave it at the same moment.

        Marks that are too new may have it; `surely` raises TooNew then.
        """
        if surely and (newer := self.newer_marks()):
            raise TooNew(newer)
        return self._database.all(
            "SELECT run, step FROM tags JOIN current USING (run, step) WHERE tag = ?", tag
        )

    def tags(self, run: str) -> dict[int, list[str]]:
        """The tags of a run's checkpoints, by step."""
        rows = self._database.all("SELECT step, tags FROM current WHERE run = ?", run)
        return {step: json.loads(tags) for step, tags in rows}

    def marked(self, run: str) -> set[int]:
        """The steps of a run that have marks."""
        return {step for (step,) in self._database.all("SELECT step FROM marks WHERE run = ?", run)}

    def stale_marks(self, run: str) -> list[int]:
        """The steps of a run whose marks belong to no record that is there."""
        query = "SELECT step FROM marks WHERE run = ? EXCEPT SELECT step FROM current WHERE run = ?"
        return [step for (step,) in self._database.all(query, run, run)]

    def late_metrics(self, run: str) -> dict[int, dict[str, Any]]:
        """The metrics that came after the commits of a run's checkpoints, by step."""
        rows = self._database.all("SELECT step, metrics FROM current WHERE run = ?", run)
        return {step: msgspec.json.decode(metrics) for step, metrics in rows}

    def protected(self, run: str) -> dict[int, str]:
        """The steps that must be kept, and why.

        They have a tag, or marks that cannot be read, or their record is too new.
        """
        query = "SELECT step, tags, problem FROM current WHERE run = ?"
        found = {step: f"must be kept: {problem}" for _, step, problem in self.too_new(run)}
        for step, tags, problem in self._database.all(query, run):
            if problem is not None:
                found[step] = f"may be tagged: its marks cannot be read ({problem})"
            elif tags != "[]":
                found[step] = f"is tagged {json.loads(tags)[0]!r}: remove the tag first"
        return found

    def references(self, run: str | None = None) -> list[tuple[str, int, str]]:
        """Run, step and the name of each data file that records refer to, of a run or of all."""
        chosen = [] if run is None else [run]
        where = " WHERE run = ?" if chosen else ""
        return self._database.all(f"SELECT run, step, name FROM files{where}", *chosen)

    def files(self, run: str) -> dict[str, DataFile]:
        """The data files that a run's records refer to, each as the one that uses most of it."""
        rows = self._database.all(
            "SELECT name, size, digest, held, max(used) FROM files WHERE run = ? GROUP BY name", run
        )
        return {row[0]: DataFile(*row) for row in rows}

    # Chunks

    def find_chunk(self, digest: bytes, size: int) -> KnownChunk | None:
        """Where such a chunk may be."""
        rows = self._database.all(
            "SELECT run, name, start FROM chunks WHERE digest = ? AND size = ?", digest, size
        )
        return KnownChunk(*rows[0]) if rows else None

    def add_chunks(self, run: str, rows: Iterable[tuple[bytes, int, str, str, int]]) -> None:
        """Remember chunks of a run: digest, size, run, file and where they start in it."""

        def add(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO learned VALUES (?)", (run,))
            connection.executemany("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)", rows)

        self._database.do(add)

    def learned(self) -> set[str]:
        """The runs of which some chunks are remembered."""
        return {run for (run,) in self._database.all("SELECT run FROM learned")}

    def damaged_files(self, ask: bool = True) -> set[str]:
        """The data files that were found damaged; this is read from the store each time.

        Unless `ask`, no server is asked, which may not answer: then none is known.
        """
        is_local = self._backend.path(names.DAMAGED) is not None
        return damaged_files(self._backend) if ask or is_local else set()

    def verified(self, run: str) -> dict[int, str]:
        """When each checkpoint of a run was last verified, by step, if it ever was."""
        query = "SELECT step, verified FROM current WHERE run = ? AND verified IS NOT NULL"
        return dict(self._database.all(query, run))

    def unreadable_marks(self, run: str | None = None) -> dict[tuple[str, int], str]:
        """What is wrong with marks, of a run or of the store, that are damaged or too new."""
        query = "SELECT run, step, problem FROM current WHERE problem IS NOT NULL"
        rows = self._database.all(f"{query} AND (? IS NULL OR run = ?)", run, run)
        return {(run, step): problem for run, step, problem in rows}

    def newer_marks(self, run: str | None = None) -> str | None:
        """Which marks, of a run or of the store, are too new, and why; None if none are."""
        query = "SELECT newer FROM current WHERE newer IS NOT NULL AND (? IS NULL OR run = ?)"
        return next((newer for (newer,) in self._database.all(query, run, run)), None)

    def _one(self, query: str, *arguments: Any) -> Any:
        return self._database.all(query, *arguments)[0][0]

    def _listed(self, query: str, *arguments: Any) -> list[Listed]:
        return self._database.do(
            lambda connection: [
                Listed(run, step, decode_head(line, run, step))
                for run, step, line in connection.execute(query, arguments)
            ]
        )

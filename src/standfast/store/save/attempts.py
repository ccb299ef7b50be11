"""One attempt of many ranks to commit one checkpoint: all of it is there, or nothing.

| | rank 0 | the others |
|---|---|---|
| 1 | takes the run and its changes, sees that the step is free, gives out a token | wait for it |
| 2 | writes its data files, names and syncs them | write, name and sync theirs |
| 3 | gathers a record of each share | hand theirs over, and their files with it |
| 4 | joins the records, and commits the one | wait for the outcome |

Until 3 each rank deletes what it has placed if any of them fails; from then on rank 0 does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, NoReturn

import msgspec

from standfast.errors import RankError, RankLost, RanksDisagree, StandfastError
from standfast.parallel.agreement import on_root, together
from standfast.parallel.communicator import Communicator
from standfast.store.load.reading import read_record
from standfast.store.run import Run
from standfast.store.save.changing import PATIENCE, change_of
from standfast.store.save.planning import Plan
from standfast.store.save.saving import Assembler, Commit, Task, Wanted
from standfast.store.save.shares import Share, write_share
from standfast.store.schema.decoder import decode, decode_head
from standfast.store.schema.record import Head, Record, encode_head
from standfast.store.schema.run_file import software

Write = Callable[[Task], Share]
"""Writes a rank's share."""

Join = Callable[[Sequence[Record], Sequence[Share]], Record]
"""On rank 0: the one record of what all ranks have handed over."""


class Attempt:
    """One rank's side of one save."""

    def __init__(
        self,
        run: Run,
        comm: Communicator,
        most: int,
        join: Join,
        write: Write | None = None,
    ) -> None:
        """`most` is what all ranks write at most; without `write` this process does it."""
        self._run = run
        self._comm = comm
        self._most = most
        self._join = join
        self._backend = run.store.backend
        self._assembler = Assembler(run.store.backend, run.store.index, run.hash)
        self._write = write or self._write_here
        self._is_open = False
        # The others should hear that the run is busy before they give rank 0 up.
        self._patience: Final = min(PATIENCE, comm.timeout / 4)

    def make(
        self, plan: Plan, wanted: Wanted, before_commit: Callable[[], None] | None = None
    ) -> Head:
        """Collective: commit what all ranks have planned; when this returns, it is durable.

        `before_commit` is called on rank 0 when all is on the disk but the record.
        """
        if self._comm.rank != 0:
            return self._follow(plan, wanted)
        try:
            self._run.take(self._patience)
            return self._run.commit(plan, wanted, self._lead, before_commit)
        except BaseException as error:
            self._tell(error)
            raise

    def _tell(self, error: BaseException) -> None:
        """Raise on the other ranks, too, why rank 0 did not even begin, unless they know."""
        if not self._is_open:
            with suppress(RankLost):  # then the error itself is what there is to say
                on_root(self._comm, lambda: _raise(error))

    def _lead(self, task: Task, commit: Commit) -> Head:
        """Rank 0's side, once it has claimed the run."""
        replaces = False

        def open() -> dict[str, Any]:
            nonlocal replaces
            replaces = self._assembler.begin(task.wanted)
            sequence = self._assembler.next_sequence(task.after)
            roomy = self._assembler.has_room(self._most)
            return msgspec.structs.asdict(_Opening(task.token, sequence, roomy))

        with change_of(self._backend, self._run.hash, self._patience):
            self._is_open = True
            opening = _Opening(**on_root(self._comm, open))
            share = self._written(task, opening)
            try:
                shares = self._comm.gather(msgspec.msgpack.encode(share))
            except BaseException:
                self._assembler.take_back(share.placed)
                raise
            return self._commit(task, shares, commit, replaces)

    def _commit(self, task: Task, shares: list[bytes], commit: Commit, replaces: bool) -> Head:
        """Commit what all ranks have handed over, and let them know."""
        committed: Record | None = None
        new: set[str] = set()

        def confirm() -> bytes:
            nonlocal committed
            given = [msgspec.msgpack.decode(share, type=Share) for share in shares]
            new.update(name for each in given for name in each.new)
            step = task.wanted.step
            placed = [name for each in given for name in each.placed]
            records = [decode(each.record, self._run.hash, step) for each in given]
            with self._assembler.taking_back(records[0].head, placed):
                record = self._join(records, given)
                self._assembler.confirm(record, commit, replaces)
            committed = record
            return encode_head(record.head)

        try:
            on_root(self._comm, confirm)
        except (RankLost, RanksDisagree):  # nobody hears of it, and yet it is done
            if committed is None:
                raise
        assert committed is not None
        self._assembler.tidy(committed, new, replaces)
        return committed.head

    def _follow(self, plan: Plan, wanted: Wanted) -> Head:
        """The side of every other rank."""
        opening = _Opening(**on_root(self._comm, nothing))
        file = self._run.file
        task = Task(
            plan,
            wanted,
            file.identity,
            file.parent,
            software(),
            opening.token,
            after=opening.sequence - 1,
            claim=0,
        )
        share = self._written(task, opening)
        try:
            self._comm.gather(msgspec.msgpack.encode(share))
            line = on_root(self._comm, nothing)
        except (RankLost, RanksDisagree):
            # The record may be there, or still come: what it refers to must stay.
            found = self._found(wanted.step, opening.token)
            if found is None:
                raise
            return found
        return decode_head(line, self._run.hash, wanted.step)

    def _found(self, step: int, token: str) -> Head | None:
        """The head of the record that this attempt committed, if it did."""
        try:
            found = read_record(self._backend, self._run.hash, step).head
        except StandfastError:
            return None
        return found if found.token == token else None

    def _written(self, task: Task, opening: _Opening) -> Share:
        """This rank's share, on the disk; when this returns, the shares of all ranks are."""
        shares: list[Share] = []

        def write() -> None:
            shares.append(self._write(task))

        try:
            if not opening.roomy:
                self._check_space(task)
            together(self._comm, write)
        except BaseException:
            for share in shares:
                self._assembler.take_back(share.placed)
            # Rank 0 keeps the run until the last one has cleaned up, and so nobody is in its way.
            with suppress(RankError):
                self._comm.exchange([b""] * self._comm.size)
            raise
        return shares[0]

    def _write_here(self, task: Task) -> Share:
        if self._comm.rank != 0:
            self._run.store.index.refresh()
        return write_share(self._assembler, task)

    def _check_space(self, task: Task) -> None:
        """Raise NotEnoughSpace on all ranks if there is none for all of them."""
        with ExitStack() as stack:  # a link that one rank made may be what another one found
            mine = together(
                self._comm, lambda: self._assembler.needed(self._assembler.draft(task, stack))
            )
        in_all = sum(map(int, self._comm.all_gather(str(mine).encode())))
        on_root(self._comm, lambda: self._assembler.check_space(in_all))


class _Opening(msgspec.Struct, frozen=True):
    """What rank 0 says once the run is its own."""

    token: str
    sequence: int
    """One that nobody has used."""
    roomy: bool
    """Whether there is space for all that may be written."""


def tidy_together(comm: Communicator, action: Callable[[], None]) -> None:
    """Return when rank 0 has deleted what the run does not keep; raise if a warning does."""
    with suppress(RankLost, RanksDisagree):  # it is saved: the next call says who is lost
        on_root(comm, action)


def nothing() -> None:
    """What the others do while rank 0 does something."""


def _raise(error: BaseException) -> NoReturn:
    raise error

"""A checkpoint that many ranks write, and one record commits: all of it is there, or nothing.

| | rank 0 | the others |
|---|---|---|
| 1 | plans its part | plan theirs; all agree on what is saved |
| 2 | takes the run and its changes, sees that the step is free, gives out a token | wait for it |
| 3 | writes its data files, names and syncs them | write, name and sync theirs |
| 4 | gathers a record of each part | hand theirs over, and their files with it |
| 5 | merges the records, and commits the one | wait for the outcome |

Until 4 each rank deletes what it has placed if any of them fails; from then on rank 0 does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace as changed
from typing import Any, Final, NoReturn

import msgspec

from holdfast.errors import HoldfastError, RankError, RankLost, RanksDisagree, RefusedState
from holdfast.parallel.agreement import agree, on_root, together
from holdfast.parallel.communicator import Communicator
from holdfast.store import tree
from holdfast.store.changing import PATIENCE, change_of
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.decoding import decode, decode_head
from holdfast.store.merging import distinct_labels, merged
from holdfast.store.planning import Plan, plan_state
from holdfast.store.reading import read_record
from holdfast.store.record import Head, Record, encode, encode_head
from holdfast.store.run import Run
from holdfast.store.runfile import software
from holdfast.store.saving import Assembler, Commit, Draft, Task, Wanted
from holdfast.store.writing import new_token


def save_together(
    run: Run,
    comm: Communicator,
    step: int,
    state: dict[Any, Any],
    *,
    metrics: Mapping[str, Any] | None = None,
    epoch: int | None = None,
    best: bool = False,
    replace: bool = False,
) -> Checkpoint:
    """Collective: commit what all ranks have as the one checkpoint of a step.

    Each rank gives a dict with keys of its own; what is saved is their union, in the order of the
    ranks. All other arguments are the same on all. It is saved, durably, when this returns. If it
    raises, all ranks raise, with the reason of each that has one, and the store is as it was: but
    for NotDeleted, where warnings are errors, which comes after the commit. A rank that loses the
    others raises RankLost, unless it finds that the record was committed.
    """
    if comm.size == 1:
        return run.save(step, state, metrics, epoch, best, replace)

    def prepare() -> tuple[Plan, Wanted]:
        if type(state) is not dict:
            raise RefusedState(
                f"the state of a rank is a dict with keys of its own, not a {type(state).__name__}"
            )
        return plan_state(state), run.wanted(step, metrics, epoch, best, replace)

    plan, wanted = together(comm, prepare)
    agree(
        comm,
        "the step, the epoch, `best`, `replace` and the run",
        [wanted.step, wanted.epoch, wanted.best, wanted.replace, run.hash, run.file.identity],
    )
    agree(comm, "the metrics", wanted.metrics)
    plan, most = _fitted(comm, state, plan)
    attempt = _Attempt(run, comm, most)
    if comm.rank != 0:
        head = attempt.follow(plan, wanted)
        _tidied(comm, _nothing)
        return Checkpoint(run.store, head)
    try:
        run.take(attempt.patience)
        head = run.commit(plan, wanted, attempt.lead)
    except BaseException as error:
        attempt.tell(error)
        raise
    _tidied(comm, run.tidy)
    return Checkpoint(run.store, head)


class _Offer(msgspec.Struct, frozen=True, array_like=True):
    """What a rank tells all others of its part."""

    keys: bytes
    """The top-level keys, in the form of the tree."""
    labels: list[str]
    most: int


def _fitted(comm: Communicator, state: dict[Any, Any], plan: Plan) -> tuple[Plan, int]:
    """The plan, with labels that no other rank has; and how much all of them write at most."""
    keys = tree.encode(tree.flatten(list(state))[0], ())
    offer = _Offer(keys, [file.label for file in plan.files], plan.most)
    offers = [
        msgspec.msgpack.decode(each, type=_Offer)
        for each in comm.all_gather(msgspec.msgpack.encode(offer))
    ]
    owners: dict[Any, int] = {}
    for rank, each in enumerate(offers):
        for key in tree.decode(each.keys, 0):
            if owners.setdefault(key, rank) != rank:
                raise RanksDisagree(
                    f"ranks {owners[key]} and {rank} both have {tree.path_text((key,))!r} in "
                    "their states: each key must be given by one rank, such as f'rank{comm.rank}'"
                )
    labels = distinct_labels([each.labels for each in offers])[comm.rank]
    files = [f._replace(label=label) for f, label in zip(plan.files, labels, strict=True)]
    return changed(plan, files=files), sum(each.most for each in offers)


class _Opening(msgspec.Struct, frozen=True):
    """What rank 0 says once the run is its own."""

    token: str
    sequence: int
    """One that nobody has used."""
    roomy: bool
    """Whether there is space for all that may be written."""


class _Share(msgspec.Struct, frozen=True):
    """What a rank hands over: a record of its part, and the files that it has placed for it."""

    record: bytes
    new: list[str]
    placed: list[str]


class _Attempt:
    """One rank's side of one save."""

    def __init__(self, run: Run, comm: Communicator, most: int) -> None:
        self._run = run
        self._comm = comm
        self._most = most
        self._backend = run.store.backend
        self._assembler = Assembler(run.store.backend, run.store.index, run.hash)
        self._is_open = False
        self._placed: list[str] = []
        # The others should hear that the run is busy before they give rank 0 up.
        self.patience: Final = min(PATIENCE, comm.timeout / 4)

    def tell(self, error: BaseException) -> None:
        """Raise on the other ranks, too, why rank 0 did not even begin, unless they know."""
        if not self._is_open:
            with suppress(RankLost):  # then the error itself is what there is to say
                on_root(self._comm, lambda: _raise(error))

    def lead(self, task: Task, commit: Commit) -> Head:
        """Rank 0's side, once it has claimed the run."""
        replaces = False

        def open() -> dict[str, Any]:
            nonlocal replaces
            replaces = self._assembler.begin(task.wanted)
            sequence = self._assembler.next_sequence(task.after)
            roomy = self._assembler.has_room(self._most)
            return msgspec.structs.asdict(_Opening(new_token(), sequence, roomy))

        with change_of(self._backend, self._run.hash, self.patience), ExitStack() as stack:
            self._is_open = True
            opening = _Opening(**on_root(self._comm, open))
            head, share = self._written(task, opening, stack)
            try:
                shares = self._comm.gather(msgspec.msgpack.encode(share))
            except BaseException:
                self._assembler.take_back(self._placed)
                raise
            return self._commit(head, shares, commit, replaces)

    def _commit(self, head: Head, shares: list[bytes], commit: Commit, replaces: bool) -> Head:
        """Commit what all ranks have handed over, and let them know."""
        committed: Record | None = None
        new: set[str] = set()

        def confirm() -> bytes:
            nonlocal committed
            given = [msgspec.msgpack.decode(share, type=_Share) for share in shares]
            new.update(name for each in given for name in each.new)
            with self._assembler.taking_back(
                head, [name for each in given for name in each.placed]
            ):
                record = merged([decode(each.record, head.run, head.step) for each in given])
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

    def follow(self, plan: Plan, wanted: Wanted) -> Head:
        """The side of every other rank."""
        opening = _Opening(**on_root(self._comm, _nothing))
        file = self._run.file
        task = Task(
            plan,
            wanted,
            file.identity,
            file.parent,
            software(),
            after=opening.sequence - 1,
            claim=0,
        )
        with ExitStack() as stack:
            head, share = self._written(task, opening, stack)
        try:
            self._comm.gather(msgspec.msgpack.encode(share))
            line = on_root(self._comm, _nothing)
        except (RankLost, RanksDisagree):
            # The record may be there, or still come: what it refers to must stay.
            found = self._found(head, opening.sequence, share.new)
            if found is None:
                raise
            return found
        return decode_head(line, head.run, head.step)

    def _found(self, head: Head, least: int, new: list[str]) -> Head | None:
        """The head of the record that this attempt committed, if it did.

        It has a number that was not used before, and all files that this rank has placed.
        """
        try:
            found = read_record(self._backend, head.run, head.step).head
        except HoldfastError:
            return None
        has_ours = {*new} <= {file.name for file in found.files}
        return found if found.sequence >= least and has_ours else None

    def _written(self, task: Task, opening: _Opening, stack: ExitStack) -> tuple[Head, _Share]:
        """This rank's part, on the disk; when this returns, the parts of all ranks are."""

        def begin() -> Draft:
            if self._comm.rank != 0:
                self._run.store.index.refresh()
            return self._assembler.draft(task, stack)

        def write() -> tuple[Head, _Share]:
            written = self._assembler.write(draft, stack, opening.token)
            record = self._assembler.record(draft, written)
            self._assembler.place(draft, written, self._placed)
            new = [file.name for file, _ in written.new]
            return record.head, _Share(encode(record), new, self._placed)

        try:
            draft = together(self._comm, begin)
            if not opening.roomy:
                self._check_space(draft)
            return together(self._comm, write)
        except BaseException:
            stack.close()
            self._assembler.take_back(self._placed)
            # Rank 0 keeps the run until the last one has cleaned up, and so nobody is in its way.
            with suppress(RankError):
                self._comm.exchange([b""] * self._comm.size)
            raise

    def _check_space(self, draft: Draft) -> None:
        """Raise NotEnoughSpace on all ranks if there is none for all of them."""
        needed = together(self._comm, lambda: self._assembler.needed(draft))
        in_all = sum(map(int, self._comm.all_gather(str(needed).encode())))
        on_root(self._comm, lambda: self._assembler.check_space(in_all))


def _tidied(comm: Communicator, action: Callable[[], None]) -> None:
    """Return when rank 0 has deleted what the run does not keep; raise if a warning does."""
    with suppress(RankLost, RanksDisagree):  # it is saved: the next call says who is lost
        on_root(comm, action)


def _nothing() -> None:
    """What the others do while rank 0 does something."""


def _raise(error: BaseException) -> NoReturn:
    raise error

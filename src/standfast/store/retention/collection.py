"""What `gc` deletes, worked out before anything is: and then done, run by run.

Checkpoints that go are put into the trash first, which is part of what a store takes. To get a
store down to a number of bytes, the trash is emptied as far as that needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from standfast.errors import StandfastError, WriteFailed
from standfast.policies import Retention
from standfast.store.backends.backend import Backend
from standfast.store.retention.deleting import collect
from standfast.store.retention.removal import sweep
from standfast.store.retention.retaining import intact_before
from standfast.store.retention.space import Space
from standfast.store.retention.trash import KEPT, Trash
from standfast.store.retention.verdicts import (
    NOBODY_KNOWS,
    UNKNOWN,
    Verdict,
    stored,
    unknown,
    verdicts,
)
from standfast.store.retention.verdicts import judged as verdicts_of
from standfast.store.save.changing import PATIENCE, change_of
from standfast.store.save.taken import changing, check_writable

if TYPE_CHECKING:
    from standfast.store.store import Store

_OF_RUNS: Final = ("checkpoint", "leftovers")
EXPIRED = "it has been in the trash for its time"
NEEDED = "the space is needed"
LEFT = "data files that no record refers to: what a crash left"


@dataclass(frozen=True)
class Line:
    """One thing that goes."""

    kind: Literal["checkpoint", "leftovers", "trash"]
    run: str
    why: str
    nbytes: int
    """What is free once it is gone, and what was put into the trash too."""
    step: int = 0
    sequence: int = 0
    entry: str = ""
    """The folder of what is in the trash."""


@dataclass
class Plan:
    """What would go, and what the store takes then."""

    total: int
    """The bytes that the store takes now, those in the trash included."""
    retention: Retention | None = None
    to: int | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    lines: list[Line] = field(default_factory=list)
    trashed: int = 0
    """The bytes that stay in the trash for some days."""
    after: int = 0
    """The bytes that the store takes then."""
    protecting: dict[str, int] = field(default_factory=dict)
    """What protects the checkpoints that must stay, and how many it protects."""
    problems: dict[str, str] = field(default_factory=dict)
    """The runs of which nothing is deleted, or nobody knows what should be, and why."""

    @property
    def short(self) -> int:
        """By how many bytes the store takes more than it should, then too."""
        return 0 if self.to is None else max(0, self.after - self.to)


@dataclass
class Done:
    """What went, and what did not."""

    lines: list[Line] = field(default_factory=list)
    stayed: dict[Line, str] = field(default_factory=dict)
    """What is protected by now, or was changed, and how."""
    problems: dict[str, str] = field(default_factory=dict)
    """The runs in which something failed, and what."""
    freed: int = 0
    """The bytes that are free now."""
    trashed: int = 0
    """The bytes that only the trash holds now."""
    total: int = 0
    """The bytes that the store takes now."""


def plan(
    store: Store,
    runs: Collection[str] | None = None,
    retention: Retention | None = None,
    to: int | None = None,
    now: datetime | None = None,
) -> Plan:
    """What goes of the runs of these hashes, or of all, and of the trash.

    Checkpoints that the retention does not keep, or without one that of each run; files that
    crashes left; entries of the trash whose time is over. With `to`, more of the trash and then
    the oldest unprotected checkpoints, until the store takes no more than so many bytes.
    """
    store.index.refresh()
    space = Space(store.backend, store.index)
    made = Plan(space.total, retention, to, now or datetime.now(UTC))
    for entry in Trash(store.backend).entries():
        if entry.age(made.now) >= KEPT and entry.problem is None:
            made.lines.append(_trash_line(space, entry.run, entry.folder, EXPIRED))
    judged: dict[str, list[Verdict]] = {}
    for listed in store.index.runs(empty=True):
        if runs is None or listed.run in runs:
            _plan_run(store, listed.run, space, made, judged)
    if to is not None:
        _reach(store, space, made, judged)
    made.trashed, made.after = space.put, space.total
    return made


def _plan_run(
    store: Store, run: str, space: Space, made: Plan, judged: dict[str, list[Verdict]]
) -> None:
    if store.index.newer(run):
        made.problems[run] = unknown(store.index, run)
        return
    unreadable = store.index.unreadable(run)
    if unreadable:
        _, step, problem = unreadable[0]
        made.problems[run] = f"its record of step {step} cannot be read ({problem})"
        return
    if space.orphans(run) and is_idle(store.backend, run):
        made.lines.append(Line("leftovers", run, LEFT, space.sweep(run)))
    if not store.index.count(run):
        return  # what a crash has left, and no run
    if not store.index.has_run_file(run):
        made.problems[run] = UNKNOWN
        return
    # With the index as `plan` has found it: a look at all folders for each run takes its time.
    found = verdicts_of(store, run, made.retention or stored(store, run))
    doubts = (why for each in found for why in each.why if why.startswith(NOBODY_KNOWS))
    if doubt := next(doubts, None):
        made.problems[run] = doubt
        if made.retention is not None:  # somebody mistyped a metric: the space is no excuse
            return
    judged[run] = found
    for each in reversed(found):
        if not each.keep:
            made.lines.append(_line(run, each, each.why, space.put_in_trash(run, each.step)))


def _reach(store: Store, space: Space, made: Plan, judged: Mapping[str, list[Verdict]]) -> None:
    """Add what must go besides for the store to take no more than it should."""
    to = made.to or 0
    gone = {line.entry for line in made.lines}
    for entry in Trash(store.backend).entries():
        if space.total > to and entry.folder not in gone and entry.problem is None:
            made.lines.append(_trash_line(space, entry.run, entry.folder, NEEDED))
    if space.total > to:
        space.empty_put()
    left = [(each, run) for run, found in judged.items() for each in found if each.keep]
    for each, run in sorted(left, key=lambda pair: (pair[0].sequence, pair[1])):
        if space.total > to and not each.protected:
            why = f"{NEEDED}, and the oldest go first"
            made.lines.append(_line(run, each, (why,), space.delete(run, each.step)))
    if space.total > to:
        made.protecting = dict(Counter(each.why[0] for each, _ in left if each.protected))


def _line(run: str, verdict: Verdict, why: Iterable[str], nbytes: int) -> Line:
    return Line("checkpoint", run, "; ".join(why), nbytes, verdict.step, verdict.sequence)


def _trash_line(space: Space, run: str, folder: str, why: str) -> Line:
    return Line("trash", run, why, space.empty(folder), entry=folder)


def is_idle(backend: Backend, run: str) -> bool:
    """Whether nobody writes into a run."""
    with suppress(WriteFailed):  # in a store that can only be read
        lock = backend.lock(run)
        if lock is None:
            return False
        lock.release()
    return True


def carry_out(store: Store, plan: Plan, wait: float = PATIENCE) -> Done:
    """Delete what a plan says, as far as it still may be; what fails does not keep the rest.

    A run that somebody changes is waited for so many seconds, and then let be.
    """
    done = Done()
    store.backend.tidy()
    for run in dict.fromkeys(line.run for line in plan.lines if line.kind in _OF_RUNS):
        try:
            _carry_out_run(store, run, plan, done, wait)
        except StandfastError as error:
            done.problems[run] = str(error)
    try:
        _empty(store, plan, done)
    except StandfastError as error:
        done.problems["the trash"] = str(error)
    store.index.refresh()
    done.total = Space(store.backend, store.index).total
    done.freed = max(0, plan.total - done.total)
    return done


def _carry_out_run(store: Store, run: str, plan: Plan, done: Done, wait: float) -> None:
    lines = [line for line in plan.lines if line.run == run]
    for line in lines:
        if line.kind == "leftovers":
            _sweep(store, line, done, wait)
    lines = [line for line in lines if line.kind == "checkpoint"]
    going, stayed = _going(store, run, lines, plan.retention)
    if going:  # what stays is read before others have to wait
        check_writable(store.backend, store.index, run)
        intact_before(store, run, set(store.index.steps(run)) - {line.step for line in going})
        with changing(store.backend, store.index, run, wait):
            going, stayed = _going(store, run, lines, plan.retention)
            for why in dict.fromkeys(line.why for line in going):
                chosen = [line for line in going if line.why == why]
                collect(store, run, [line.step for line in chosen], why)
                done.lines += chosen
    done.stayed |= stayed


def _going(
    store: Store, run: str, lines: Sequence[Line], retention: Retention | None
) -> tuple[list[Line], dict[Line, str]]:
    """Which checkpoints still go, and why others that are there stay."""
    now = {each.step: each for each in verdicts(store, run, retention)}
    there = [line for line in lines if line.step in now]
    stayed = {line: why for line in there if (why := _reason_to_stay(line, now[line.step]))}
    return [line for line in there if line not in stayed], stayed


def _reason_to_stay(line: Line, verdict: Verdict) -> str | None:
    """What has become of a checkpoint since it was to go, if it stays for that."""
    if verdict.sequence != line.sequence:
        return "it was saved again meanwhile"
    if verdict.protected or (verdict.keep and not line.why.startswith(NEEDED)):
        return "; ".join(verdict.why)
    return None


def _sweep(store: Store, line: Line, done: Done, wait: float) -> None:
    lock = store.backend.lock(line.run)
    if lock is None:
        done.stayed[line] = f"{store.backend.holder(line.run)} writes into the run"
        return
    with lock, change_of(store.backend, line.run, wait):
        sweep(store.backend, store.index, line.run)
    done.lines.append(line)


def _empty(store: Store, plan: Plan, done: Done) -> None:
    """Empty the trash of what is old, and as far as the plan needs the space."""
    trash = Trash(store.backend)
    before = {entry.folder for entry in trash.entries()}
    trash.empty(older_than=KEPT, now=plan.now)
    if plan.to is not None:
        store.index.refresh()
        over = Space(store.backend, store.index).total - plan.to
        if over > 0:
            trash.empty(need=over)
    left = {entry.folder for entry in trash.entries()}
    for line in plan.lines:
        if line.kind == "trash" and line.entry in before - left:
            done.lines.append(line)
    done.trashed = trash.nbytes()

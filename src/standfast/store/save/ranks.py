"""A checkpoint that many ranks write, and one record commits; `attempts.py` has the protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from functools import partial
from typing import Any

import msgspec

from standfast.errors import BadOption, RanksDisagree, RefusedState
from standfast.parallel.agreement import agree_all, together
from standfast.parallel.communicator import Communicator
from standfast.store.checkpoint import Checkpoint
from standfast.store.run import Run
from standfast.store.save.attempts import Attempt, Write, tidy_together
from standfast.store.save.held import Held, Planned, hold
from standfast.store.save.merging import distinct_labels, merged
from standfast.store.save.planning import Plan, plan_state
from standfast.store.save.saving import SAFETENSORS, Wanted
from standfast.store.save.shares import Share
from standfast.store.save.sharing import Shared
from standfast.store.schema.record import Head, Record
from standfast.store.tree import tree


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
        return run.save(step, state, metrics, epoch, best, replace, comm=comm)

    def prepare() -> tuple[Plan, Wanted]:
        if type(state) is not dict:
            raise RefusedState(
                f"the state of a rank is a dict with keys of its own, not a {type(state).__name__}"
            )
        return plan_state(state), run.wanted(step, metrics, epoch, best, replace)

    plan, wanted = together(comm, prepare)
    _agree(run, comm, wanted, {"`best`": wanted.best, "the metrics": wanted.metrics})
    plan, most = _fitted(comm, state, plan)

    def join(records: Sequence[Record], shares: Sequence[Share]) -> Record:
        return merged(records)

    head = Attempt(run, comm, most, join).make(plan, wanted)
    tidy_together(comm, run.tidy)
    return Checkpoint(run.store, head)


def _agree(run: Run, comm: Communicator, wanted: Wanted, more: Mapping[str, Any]) -> None:
    """Collective: raise RanksDisagree unless all ranks save the same step of the same run."""
    common = {
        "the step": wanted.step,
        "the epoch": wanted.epoch,
        "`replace`": wanted.replace,
        "the run": [run.hash, run.file.identity],
    }
    agree_all(comm, {**common, **more})


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


def save_shared(run: Run, comm: Communicator, state: Any, wanted: Callable[[], Wanted]) -> Head:
    """Collective: commit one state, of which each rank has a part, as the checkpoint of a step.

    All ranks have the same tree. Of tensors that are shared out each gives what it has; all else
    must be the same everywhere, but for what is `per_rank`. Raises as `save_together` does.
    """

    def prepare() -> tuple[Held, Wanted]:
        asked = wanted()
        if asked.format != SAFETENSORS:
            raise BadOption(
                f"format={asked.format!r} is one file that one process writes, and this state is "
                "shared out: save it without, and export it"
            )
        return hold(state, comm.rank), asked

    held, asked = together(comm, prepare)
    head = commit_shared(run, comm, held, asked)
    tidy_together(comm, run.tidy)
    return head


def commit_shared(
    run: Run,
    comm: Communicator,
    held: Held,
    wanted: Wanted,
    writing: Callable[[Shared], Write] | None = None,
    before_commit: Callable[[], None] | None = None,
) -> Head:
    """Collective: the same of what was planned, which `writing` may have another process write."""
    _agree(run, comm, wanted, {})
    shared = run.sharing.share_out(comm, held)
    write = writing(shared) if writing else partial(shared.write, run)
    attempt = Attempt(run, comm, shared.most, shared.join, write)
    return attempt.make(shared.plan, wanted, before_commit)


def commit_planned(
    run: Run,
    comm: Communicator,
    planned: Planned,
    wanted: Wanted,
    before_commit: Callable[[], None] | None = None,
) -> Head:
    """Commit what was planned, here and now, and delete what the run does not keep."""
    if planned.held is None:
        head = run.commit(planned.plan, wanted, None, before_commit)
        run.tidy()
        return head
    head = commit_shared(run, comm, planned.held, wanted, None, before_commit)
    tidy_together(comm, run.tidy)
    return head

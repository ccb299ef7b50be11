"""What is wrong for one rank is refused on all of them, in the same words, and nothing is saved."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from standfast import Store
from standfast.amr import (
    GaugeFrontend,
    OpenTopology,
    PeriodicTopology,
    ScalarFrontend,
    Snapshot,
)
from standfast.amr.migration import repartition
from standfast.errors import (
    BadBlock,
    BadOption,
    GhostsInUse,
    IncompatibleCheckpoint,
    RanksDisagree,
    RefNotFound,
    RefusedState,
    RunBusy,
    StandfastError,
    StateMismatch,
    StepExists,
    WrongRankCount,
)
from standfast.parallel import SingleRank
from standfast.store.backends.memory import MemoryBackend
from tests.amr.meshes import empty_mesh, random_mesh
from tests.kit.rank_threads import on_threads

ODD = 1
"""The rank of three that does what the others do not."""
BOX = OpenTopology(2, (6.0, 6.0))


@dataclass
class Rank:
    """One of three, which have saved a snapshot of step 1; another was saved by one alone."""

    comm: Any
    store: Store
    gauge: int = 0

    def __post_init__(self) -> None:
        self.tree, self.arena = random_mesh(1, 0, gauge=self.gauge)
        repartition(self.tree, self.arena, self.comm)
        if self.comm.rank == 0:
            Snapshot.save(self.store.run("alone"), 1, *random_mesh(1), comm=SingleRank())
        self.save(step=1)

    def odd(self, this: Any, others: Any) -> Any:
        return this if self.comm.rank == ODD else others

    def save(self, run: str = "heat", step: int = 2, **changes: Any) -> Snapshot:
        given = {"tree": self.tree, "arena": self.arena, "comm": self.comm, **changes}
        return Snapshot.save(self.store.run(run), step, **given)

    def load(self, run: str = "heat", ref: Any = "latest", **options: Any) -> Any:
        return Snapshot.load(self.store.run(run), ref, comm=self.comm, **options)


def refused_on_ranks(call: Callable[[Rank], object], gauge: int = 0) -> tuple[type[Any], str]:
    """What a call raises, the same on all ranks, after which nothing else is in the store."""
    backend = MemoryBackend()

    def program(comm: Any) -> Any:
        rank = Rank(comm, Store(backend), gauge)
        with pytest.raises(StandfastError) as caught:
            call(rank)
        return type(caught.value), str(caught.value)

    (refused,) = set(on_threads(3, program))
    found = [(run.name, each.step) for run in Store(backend).runs() for each in run.checkpoints()]
    assert sorted(found) == [("alone", 1), ("heat", 1)]
    return refused


FRONTENDS: dict[str, tuple[int, Any, str]] = {
    "dimension": (0, ScalarFrontend(3, 4, OpenTopology(3, (6.0,) * 3)), "nd: expected 3"),
    "block size": (0, ScalarFrontend(2, 8, BOX), "block_size: expected 8"),
    "dtype": (0, ScalarFrontend(2, 4, BOX, np.float32), "dtype: expected 'float32'"),
    "topology": (0, ScalarFrontend(2, 4, PeriodicTopology(2, (6.0, 6.0))), "topology: expected"),
    "extents": (0, ScalarFrontend(2, 4, OpenTopology(2, (6.0, 8.0))), "topology: expected"),
    "kind": (0, GaugeFrontend(1, 2, 2, 4, BOX), "kind: expected 'gauge', found 'scalar'"),
    "group": (1, GaugeFrontend(2, 2, 2, 4, BOX), "n_gauge: expected 2, found 1"),
    "spinor": (1, GaugeFrontend(1, 1, 2, 4, BOX), "n_spinor: expected 1, found 2"),
}


@pytest.mark.parametrize("who", ["all 3 ranks", "rank 1 of 3"])
@pytest.mark.parametrize("name", FRONTENDS)
def test_another_frontend_is_refused_with_what_differs(name: str, who: str) -> None:
    gauge, frontend, told = FRONTENDS[name]

    def load(rank: Rank) -> object:
        given = frontend if who.startswith("all") else rank.odd(frontend, rank.tree.frontend)
        return rank.load(frontend=given)

    kind, text = refused_on_ranks(load, gauge)
    assert kind is IncompatibleCheckpoint
    assert text.startswith(who)
    assert told in text


def inside_apply(rank: Rank) -> None:
    with rank.odd(rank.tree.applying(), nullcontext()):
        rank.save()


def busy(rank: Rank) -> None:
    lock = partial(rank.store.backend.lock, rank.store.run("busy").hash)
    with rank.odd(lock, nullcontext)():
        rank.comm.all_gather(b"")
        try:
            rank.save("busy")
        finally:
            rank.comm.all_gather(b"")


def two_blocks_of_one_slot(rank: Rank) -> None:
    first, second = rank.tree.live[:2]
    rank.tree.field_slots[first] = rank.tree.field_slots[rank.odd(second, first)]
    rank.save()


def other_levels(rank: Rank) -> None:
    rank.save(tree=empty_mesh(max_level=rank.odd(3, 2))[0])


def other_dtype(rank: Rank) -> None:
    tree, arena = empty_mesh(dtype=rank.odd(np.float32, np.float64))
    rank.save(tree=tree, arena=arena)


STEPS = "the step: ranks 0, 2 have 2, and rank 1 has 3; "
CASES: dict[str, tuple[Callable[[Rank], object], type[StandfastError], str]] = {
    "rank count": (lambda r: r.load("alone"), WrongRankCount, "saved by 1 rank, and is loaded by"),
    "no snapshot": (lambda r: r.load("new"), RefNotFound, "has no checkpoint yet"),
    "no step": (lambda r: r.load(ref=77), RefNotFound, "77"),
    "which snapshot": (lambda r: r.load(ref=r.odd("latest", 1)), RanksDisagree, "'latest'"),
    "step": (lambda r: r.save(step=r.odd(3, 2)), RanksDisagree, STEPS),
    "step and time": (
        lambda r: r.save(step=r.odd(3, 2), time=r.odd(0.5, 0.25)),
        RanksDisagree,
        STEPS,
    ),
    "time": (lambda r: r.save(time=r.odd(0.5, 0.25)), RanksDisagree, "the time: ranks 0, 2 have"),
    "values": (lambda r: r.save(values={"a": np.arange(r.odd(3, 2))}), RanksDisagree, "the values"),
    "types of values": (lambda r: r.save(values={"a": r.odd(1.0, 1)}), RanksDisagree, "the values"),
    "metrics": (lambda r: r.save(metrics={"loss": r.odd(0.5, 0.25)}), RanksDisagree, "the metrics"),
    "replace": (lambda r: r.save(replace=r.odd(True, False)), RanksDisagree, "`replace`"),
    "run": (lambda r: r.save(r.odd("alone", "heat")), RanksDisagree, "the run"),
    "frontend": (other_dtype, RanksDisagree, "the frontend: "),
    "levels": (other_levels, RanksDisagree, "the levels of the tree"),
    "step exists": (lambda r: r.save(step=1), StepExists, "has a checkpoint of step 1 already"),
    "inside apply": (inside_apply, GhostsInUse, "rank 1 of 3: "),
    "busy": (busy, RunBusy, "rank 0 of 3: "),
    "random": (lambda r: r.save(random=r.odd({"a": object()}, None)), RefusedState, "rank 1 of 3"),
    "infinite": (lambda r: r.save(time=r.odd(np.inf, 0.0)), BadOption, "rank 1 of 3: "),
    "unsound": (two_blocks_of_one_slot, BadBlock, "rank 1 of 3: "),
}


@pytest.mark.parametrize("name", CASES)
def test_every_refusal_is_of_one_kind_and_in_one_text_on_all_ranks(name: str) -> None:
    call, expected, told = CASES[name]
    kind, text = refused_on_ranks(call)
    assert kind is expected
    assert told in text


def test_one_process_refuses_what_several_ranks_have_saved() -> None:
    backend = MemoryBackend()

    def save(comm: Any) -> None:
        Rank(comm, Store(backend)).save(random={"kicks": np.random.default_rng(comm.rank)})

    on_threads(3, save)
    run = Store(backend).run("heat")
    with pytest.raises(WrongRankCount):
        Snapshot.load(run)
    with pytest.raises(IncompatibleCheckpoint, match="nd"):
        Snapshot.load(run, 1, frontend=FRONTENDS["dimension"][1], reshard=True)
    with pytest.raises(StateMismatch, match="kicks"):
        Snapshot.load(run, reshard=True).restore_random()

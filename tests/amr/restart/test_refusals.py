"""What is wrong for one rank is refused on all of them, in the same words, and nothing is saved."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from standfast import Store, amr
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
BOX = amr.OpenTopology(2, (6.0, 6.0))


@dataclass
class Rank:
    """One of three, which have saved a snapshot of step 1; another was saved by one alone."""

    comm: Any
    store: Store
    gauge: int = 0

    def __post_init__(self) -> None:
        self.tree, self.arena = random_mesh(1, 0, gauge=self.gauge)
        amr.repartition(self.tree, self.arena, self.comm)
        if self.comm.rank == 0:
            amr.Snapshot.save(self.store.run("alone"), 1, *random_mesh(1), comm=SingleRank())
        self.save(step=1)

    def odd(self, this: Any, others: Any) -> Any:
        return this if self.comm.rank == ODD else others

    def save(self, run: str = "heat", step: int = 2, **changes: Any) -> amr.Snapshot:
        given = {"tree": self.tree, "arena": self.arena, "comm": self.comm, **changes}
        return amr.Snapshot.save(self.store.run(run), step, **given)

    def save_mesh(self, **of: Any) -> amr.Snapshot:
        tree, arena = empty_mesh(**of)
        return self.save(tree=tree, arena=arena)

    def load(self, run: str = "heat", ref: Any = "latest", **options: Any) -> Any:
        return amr.Snapshot.load(self.store.run(run), ref, comm=self.comm, **options)


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


FRONTENDS: dict[str, tuple[int, Any]] = {
    "nd": (0, amr.ScalarFrontend(3, 4, amr.OpenTopology(3, (6.0,) * 3))),
    "block_size": (0, amr.ScalarFrontend(2, 8, BOX)),
    "dtype": (0, amr.ScalarFrontend(2, 4, BOX, np.float32)),
    "topology": (0, amr.ScalarFrontend(2, 4, amr.PeriodicTopology(2, (6.0, 6.0)))),
    "topology.*8": (0, amr.ScalarFrontend(2, 4, amr.OpenTopology(2, (6.0, 8.0)))),
    "kind": (0, amr.GaugeFrontend(1, 2, 2, 4, BOX)),
    "n_gauge": (1, amr.GaugeFrontend(2, 2, 2, 4, BOX)),
    "n_spinor": (1, amr.GaugeFrontend(1, 1, 2, 4, BOX)),
}


@pytest.mark.parametrize("on_all", [True, False])
@pytest.mark.parametrize("field", FRONTENDS)
def test_another_frontend_is_refused_with_what_differs(field, on_all):
    gauge, frontend = FRONTENDS[field]

    def load(rank: Rank) -> object:
        return rank.load(frontend=frontend if on_all else rank.odd(frontend, rank.tree.frontend))

    kind, text = refused_on_ranks(load, gauge)
    assert kind is IncompatibleCheckpoint
    assert re.search(field, text)
    assert ("rank 1" in text) != on_all


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


def inside_apply(rank: Rank) -> None:
    with rank.odd(rank.tree.applying(), nullcontext()):
        rank.save()


RANK = "rank 1"
CASES: dict[str, tuple[Callable[[Rank], object], type[StandfastError], str]] = {
    "rank count": (lambda r: r.load("alone"), WrongRankCount, "3"),
    "no snapshot": (lambda r: r.load("new"), RefNotFound, "run"),
    "no step": (lambda r: r.load(ref=77), RefNotFound, "77"),
    "which snapshot": (lambda r: r.load(ref=r.odd("latest", 1)), RanksDisagree, "'latest'"),
    "step": (lambda r: r.save(step=r.odd(3, 2), time=r.odd(0.5, 0.25)), RanksDisagree, "step"),
    "time": (lambda r: r.save(time=r.odd(0.5, 0.25)), RanksDisagree, "time"),
    "values": (lambda r: r.save(values={"a": np.arange(r.odd(3, 2))}), RanksDisagree, "values"),
    "types of values": (lambda r: r.save(values={"a": r.odd(1.0, 1)}), RanksDisagree, "values"),
    "metrics": (lambda r: r.save(metrics={"loss": r.odd(0.5, 0.25)}), RanksDisagree, "metrics"),
    "replace": (lambda r: r.save(replace=r.odd(True, False)), RanksDisagree, "replace"),
    "run": (lambda r: r.save(r.odd("alone", "heat")), RanksDisagree, "run"),
    "frontend": (lambda r: r.save_mesh(dtype=r.odd("f4", "f8")), RanksDisagree, "frontend"),
    "levels": (lambda r: r.save_mesh(max_level=r.odd(3, 2)), RanksDisagree, "levels"),
    "step exists": (lambda r: r.save(step=1), StepExists, "1"),
    "inside apply": (inside_apply, GhostsInUse, RANK),
    "busy": (busy, RunBusy, "rank 0"),
    "random": (lambda r: r.save(random=r.odd({"a": object()}, None)), RefusedState, RANK),
    "infinite": (lambda r: r.save(time=r.odd(np.inf, 0.0)), BadOption, RANK),
    "unsound": (two_blocks_of_one_slot, BadBlock, RANK),
}


@pytest.mark.parametrize("name", CASES)
def test_every_refusal_is_of_one_kind_and_in_one_text_on_all_ranks(name):
    call, expected, told = CASES[name]
    kind, text = refused_on_ranks(call)
    assert kind is expected
    assert told in text


def test_one_process_refuses_what_several_ranks_have_saved():
    backend = MemoryBackend()

    def save(comm: Any) -> None:
        Rank(comm, Store(backend)).save(random={"kicks": np.random.default_rng(comm.rank)})

    on_threads(3, save)
    run = Store(backend).run("heat")
    with pytest.raises(WrongRankCount):
        amr.Snapshot.load(run)
    with pytest.raises(IncompatibleCheckpoint, match="nd"):
        amr.Snapshot.load(run, 1, frontend=FRONTENDS["nd"][1], reshard=True)
    with pytest.raises(StateMismatch, match="kicks"):
        amr.Snapshot.load(run, reshard=True).restore_random()

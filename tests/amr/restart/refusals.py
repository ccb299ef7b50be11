"""What ranks are refused: `refusals.py STORE OUT`, on several ranks, each with a file of its own.

Every case is a call that all ranks make, some of them with something else than the others. Each
rank tells what was raised, by the name of the case, and which steps are in the store after it.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from standfast import Run, Store
from standfast.amr import (
    AMRTree,
    FieldArena,
    GaugeFrontend,
    OpenTopology,
    PeriodicTopology,
    ScalarFrontend,
    Snapshot,
)
from standfast.errors import FellBack
from standfast.parallel import Communicator, MPIRanks, SingleRank
from tests.amr.restart.simulation import Simulation
from tests.amr.restart.simulations import Heat, Links
from tests.kit.cli import flip_in

BOX = OpenTopology(2, (16.0, 16.0))
HEAT: dict[str, Any] = {
    "dimension": ScalarFrontend(3, 4, OpenTopology(3, (16.0, 16.0, 16.0))),
    "block size": ScalarFrontend(2, 8, BOX),
    "dtype": ScalarFrontend(2, 4, BOX, np.float32),
    "topology": ScalarFrontend(2, 4, PeriodicTopology(2, (16.0, 16.0))),
    "extents": ScalarFrontend(2, 4, OpenTopology(2, (16.0, 8.0))),
    "kind": Links.frontend,
}
LINKS = {
    "group": GaugeFrontend(2, 1, 2, 4, Links.frontend.topology),
    "spinor": GaugeFrontend(1, 2, 2, 4, Links.frontend.topology),
}
STEP = 1
ODD = 1
"""The rank that does what the others do not."""


class Refusals:
    """The cases, on one rank."""

    def __init__(self, comm: Communicator, store: Store) -> None:
        self.comm, self.store = comm, store
        self.is_odd = comm.rank == ODD
        self.heat: Simulation = Heat.begun(comm)
        self.links: Simulation = Links.begun(comm)
        self.told: dict[str, Any] = {}

    def all(self) -> dict[str, Any]:
        self.heat.save(self.run("heat"), STEP)
        self.links.save(self.run("links"), STEP)
        if self.comm.rank == 0:
            Heat.begun(SingleRank()).save(self.run("alone"), STEP)
        self.comm.all_gather(b"")
        self.frontends()
        self.loads()
        self.disagreements()
        self.states()
        self.damage()
        return self.told

    def run(self, name: str) -> Run:
        return self.store.run(name)

    def refused(self, case: str, call: Callable[[], object], run: str = "heat") -> None:
        """Tell what a call raises, and what is in the store when all ranks have made it."""
        try:
            found = ["nothing", repr(call())]
        except Exception as error:
            found = [type(error).__name__, str(error)]
        self.comm.all_gather(b"")
        self.told[case] = [*found, [each.step for each in self.run(run).checkpoints()]]

    def frontends(self) -> None:
        for run, wrong in (("heat", HEAT), ("links", LINKS)):
            right = {"heat": Heat, "links": Links}[run].frontend
            for name, frontend in wrong.items():
                for who in ("all", "one"):
                    given: Any = frontend if who == "all" or self.is_odd else right
                    self.refused(
                        f"frontend: {name}, {who}",
                        lambda run=run, given=given: Snapshot.load(  # type: ignore[misc]
                            self.run(run), frontend=given, comm=self.comm
                        ),
                        run,
                    )

    def loads(self) -> None:
        self.refused(
            "rank count", lambda: Snapshot.load(self.run("alone"), comm=self.comm), "alone"
        )
        self.refused("no snapshot", lambda: Snapshot.load(self.run("new"), comm=self.comm), "new")
        self.refused("no step", lambda: Snapshot.load(self.run("heat"), 77, comm=self.comm))
        ref = "latest" if self.is_odd else STEP
        self.refused("which snapshot", lambda: Snapshot.load(self.run("heat"), ref, comm=self.comm))

    def disagreements(self) -> None:
        odd = self.is_odd
        self.refused("step", lambda: self.save(step=3 if odd else 2))
        later = {"step": 3 if odd else 2, "time": 0.5 if odd else 0.25}
        self.refused("step and time", lambda: self.save(**later))
        self.refused("time", lambda: self.save(time=0.5 if odd else 0.25))
        self.refused("values", lambda: self.save(values={"a": np.arange(2 + odd)}))
        self.refused("values of one type", lambda: self.save(values={"a": 1.0 if odd else 1}))
        self.refused("metrics", lambda: self.save(metrics={"loss": 0.5 if odd else 0.25}))
        self.refused("replace", lambda: self.save(replace=odd))
        self.refused("run", lambda: self.save(run="links" if odd else "heat"))
        frontend = HEAT["dtype"] if odd else Heat.frontend
        tree, arena = AMRTree(frontend, 1.0, 6, 2), FieldArena(frontend, 4)
        self.refused("saved frontend", lambda: self.save(tree=tree, arena=arena))
        deeper = AMRTree(Heat.frontend, 1.0, 6, 3 if odd else 2), FieldArena(Heat.frontend, 4)
        self.refused("levels", lambda: self.save(tree=deeper[0], arena=deeper[1]))

    def save(self, run: str = "heat", step: int = 2, **changes: Any) -> Snapshot:
        given = {"tree": self.heat.tree, "arena": self.heat.arena, "comm": self.comm, **changes}
        return Snapshot.save(self.run(run), step, **given)

    def states(self) -> None:
        """What only one rank's state forbids."""
        self.refused("step exists", lambda: self.save(step=STEP))
        with self.only_here(self.heat.tree.applying):
            self.refused("inside apply", self.save)
        lock = partial(self.store.backend.lock, self.run("busy").hash)
        with self.only_here(lock):
            self.refused("busy", lambda: self.save("busy"), "busy")
        self.refused("random", lambda: self.save(random={"a": object()} if self.is_odd else None))
        self.refused("infinite", lambda: self.save(time=np.inf if self.is_odd else 0.0))
        with self.two_blocks_of_one_slot():
            self.refused("unsound", self.save)

    @contextmanager
    def only_here(self, context: Callable[[], Any]) -> Iterator[None]:
        """A context that the odd rank alone is in while all do something."""
        with ExitStack() as stack:
            if self.is_odd:
                stack.enter_context(context())
            self.comm.all_gather(b"")
            yield
            self.comm.all_gather(b"")

    @contextmanager
    def two_blocks_of_one_slot(self) -> Iterator[None]:
        slots = self.heat.tree.field_slots
        before = slots.copy()
        if self.is_odd:
            one, other = self.heat.tree.live[:2]
            slots[one] = slots[other]
        yield
        slots[:] = before

    def damage(self) -> None:
        """The latest falls back on all ranks if the data of one is damaged; then all goes on."""
        self.heat.advance()
        self.heat.save(self.run("heat"), 20)
        if self.comm.rank == 0:
            flip_in(self.store, f"{self.run('heat').hash}@20", f"rank{ODD}.blocks")
        self.comm.all_gather(b"")
        self.refused("damaged", lambda: Snapshot.load(self.run("heat"), 20, comm=self.comm))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", FellBack)
            found = Snapshot.load(self.run("heat"), comm=self.comm)
        self.told["fell back"] = [found.step, [str(each.message) for each in warned]]
        self.heat.save(self.run("heat"), 30)
        self.told["after"] = Snapshot.load(self.run("heat"), comm=self.comm).step


def main(path: str, out: str) -> None:
    from mpi4py import MPI  # which starts MPI, and tests import this module

    with MPIRanks(MPI.COMM_WORLD, timeout=60) as comm, Store(Path(path)) as store:
        told = Refusals(comm, store).all()
        Path(out, f"{comm.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Both simulations on ranks that are forked, without a stop and from snapshots of it:

    program.py FOLDER RANKS NAME:STEP…

The ranks make all steps and save a snapshot of each that is named. Then other processes load each
of them, save it again as step AGAIN + STEP, and go on to the last step. Every rank writes the
states that it has seen into files of its own in FOLDER, which has the store too.
"""

import json
import sys
from pathlib import Path
from typing import Any

from standfast import Store
from tests.amr.kills.forked_ranks import SAVED, on_forked_ranks
from tests.amr.restart.simulations import SIMULATIONS
from tests.amr.restart.states import followed, whole_state

AGAIN = 100


def straight(comm: Any, store: Store, folder: Path, after: list[str]) -> None:
    for name, kind in SIMULATIONS.items():
        run, simulation = store.run(name), kind.begun(comm)

        def save(simulation: Any = simulation, name: str = name, run: Any = run) -> None:
            if f"{name}:{simulation.step}" in after:
                simulation.save(run)

        tell(folder, comm, f"straight-{name}", followed(simulation, whole_state, save))


def resume(comm: Any, store: Store, folder: Path, after: list[str]) -> None:
    for each in after:
        name, step = each.split(":")
        run = store.run(name)
        simulation = SIMULATIONS[name].resumed(run, int(step), comm)
        simulation.save(run, AGAIN + simulation.step)
        tell(folder, comm, f"resumed-{each}", followed(simulation, whole_state))


def tell(folder: Path, comm: Any, name: str, value: Any) -> None:
    rank = 0 if comm is None else comm.rank
    (folder / f"{name}-{rank}.json").write_text(json.dumps(value))


def main(folder: Path, count: int, after: list[str]) -> None:
    for part in (straight, resume):

        def program(comm: Any, part: Any = part) -> None:
            with Store(folder / "store") as store:
                part(comm if count > 1 else None, store, folder, after)

        assert on_forked_ranks(count, program) == [SAVED] * count


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

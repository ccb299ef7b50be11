"""The golden stores: what a version wrote, which every later one opens.

`python -m tests.store.golden.make` writes those of this version into `tests/store/golden`. Those of
a released version are never written again.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from blake3 import blake3

from standfast import KeepAll, Store
from standfast.store import Run
from standfast.store.schema import marks, names, record, run_file
from standfast.store.schema.seal import seal, unseal

FOLDER: Final = Path(__file__).parent
TODAY, FUTURE = FOLDER / "today", FOLDER / "future"
RUNS: Final = ("whole", "columns", "needs", "version", "marks", "run-file")
"""One that is the same in both, one with additions, and four that are too new in some way."""
WHOLE: Final = 3
"""The step that is one whole torch file."""


def state(step: int) -> dict[str, Any]:
    """A state with what the tree and the columns have, and a tensor that is shared by all steps.

    That of one step is in a torch file, which does not have every text.
    """
    text = "\u00fc" if step == WHOLE else "\u00fc\ud800"
    base = np.arange(20_000, dtype=np.float32)
    own = np.full((3, 5), step, ml_dtypes.bfloat16)
    return {
        "model": {"base": base, "view": base[10:30:2], "own": own, "none": np.zeros((0, 2))},
        "optimizer": {"m": np.full(4, step / 7), "betas": (0.9, 0.999)},
        "step": step,
        "seed": 2**70 + step,
        "odd": {1: b"\xff\x00", "nan": float("nan"), "text": text, "z": -0.0},
    }


def write(folder: Path) -> None:
    """The store of this version."""
    store = Store(folder)
    for number, name in enumerate(RUNS):
        with store.run(hp={"lr": 0.5, "run": number, "name": [name, None]}) as run:
            run.rename(name)
            for step in (1, 2):
                run.save(step, state(step), {"loss": 1 / step}, epoch=step, best=step == 1)
            run.checkpoint(1).tag(f"paper-{name}")
            run.checkpoint(1).note("the figure in the text")
            run.checkpoint(2).add_metrics({"val": 0.25})
            if name == "whole":
                run.save(WHOLE, state(WHOLE), format="torch")
                run.save(4, state(4))
                run.retain(KeepAll(without=["optimizer"]))
    store.close()
    shutil.rmtree(folder / "checkpoints" / ".standfast")


def into_the_future(folder: Path) -> None:
    """Let a store of this version be one that a later version wrote into."""
    store = Store(folder)
    runs = {str(run.name): run for run in store.runs()}
    change_record(runs["columns"], 2, b'{"origin":{"model.base":["elsewhere",1]}}', colour="blue")
    change_file(store, names.run_file(runs["columns"].hash), run_file.FORMAT, colour="blue")
    change_file(store, names.marks_file(runs["columns"].hash, 1), marks.FORMAT, colour="blue")
    change_record(runs["needs"], 2, needs=["packed"])
    name = names.record_file(runs["version"].hash, 2)
    change_file(store, name, record.FORMAT, "standfast record 2", sequence="counted otherwise")
    name = names.marks_file(runs["marks"].hash, 1)
    change_file(store, name, marks.FORMAT, needs=["groups"])
    name = names.run_file(runs["run-file"].hash)
    change_file(store, name, run_file.FORMAT, "standfast run 2", created=["a", "list"])
    store.close()
    shutil.rmtree(folder / "checkpoints" / ".standfast")


def change_record(run: Run, step: int, *lines: bytes, **members: Any) -> None:
    """Add lines to a record, and members to its head, with all its digests right."""

    def change(data: bytes) -> bytes:
        head, *others = data.split(b"\n")[:-2]
        head = seal(record.FORMAT, unseal(head, record.FORMAT) | members)
        body = b"".join(line + b"\n" for line in (head, *others, *lines))
        return body + b'{"digest":"%b"}\n' % blake3(body).hexdigest().encode()

    _rewrite(run.store, names.record_file(run.hash, step), change)


def change_file(
    store: Store, name: str, format: str, newer: str | None = None, **members: Any
) -> None:
    """Add members to the first line of a sealed file, or let it be of a newer version."""

    def change(data: bytes) -> bytes:
        line, end, rest = data.partition(b"\n")
        return seal(newer or format, unseal(line, format) | members) + end + rest

    _rewrite(store, name, change)


def _rewrite(store: Store, name: str, change: Callable[[bytes], bytes]) -> None:
    path = store.backend.path(name)
    data = change(path.read_bytes())
    path.unlink()  # it may be a hard link to a file elsewhere
    path.write_bytes(data)


if __name__ == "__main__":
    for each in (TODAY, FUTURE):
        shutil.rmtree(each, ignore_errors=True)
        write(each)
    into_the_future(FUTURE)

"""Where an exported package came from: the checkpoint, as the manifest tells of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from standfast.store import Checkpoint, Store
from standfast.store.query.view import run_of
from standfast.store.schema import names
from standfast.store.schema.record import END
from standfast.store.tree import tree


def origin_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint as JSON; metrics have the form of a record's, which has NaN too."""
    head = checkpoint.head
    origin = {
        "run": head.run,
        "step": head.step,
        "epoch": head.epoch,
        "sequence": head.sequence,
        "time": head.time,
        "metrics": tree.flatten(checkpoint.metrics)[0],
    }
    run = run_of(checkpoint)
    if run is not None:
        origin["name"] = run.name
        origin["store"] = _place(run.store)
        origin["record"] = _record_digest(run.store, checkpoint)
    return origin


def _place(store: Store) -> str:
    models = store.backend.path(names.MODELS)
    return str(Path(models).resolve().parent.parent) if models else store.place or store.url


def _record_digest(store: Store, checkpoint: Checkpoint) -> str:
    """BLAKE3 over the record, with which it ends."""
    text = store.backend.read(names.record_file(checkpoint.head.run, checkpoint.step))
    return text.rpartition(END)[2][:64].decode("ascii", "replace")

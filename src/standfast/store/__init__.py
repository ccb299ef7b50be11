"""The store: runs, records, references, dedup, repair. Its bytes are in `docs/format.md`."""

from standfast.store.checkpoint import Checkpoint
from standfast.store.load.filling import LoadReport
from standfast.store.run import Run
from standfast.store.store import Store

__all__ = ["Checkpoint", "LoadReport", "Run", "Store"]

"""The store: runs, records, references, dedup, repair. Its bytes are in `docs/format.md`."""

from holdfast.store.checkpoint import Checkpoint
from holdfast.store.filling import LoadReport
from holdfast.store.run import Run
from holdfast.store.store import Store

__all__ = ["Checkpoint", "LoadReport", "Run", "Store"]

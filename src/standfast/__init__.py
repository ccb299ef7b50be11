"""Standfast: checkpoints that lose nothing, stall nothing, and prove it.

    import standfast

    standfast.save("model.safetensors", model.state_dict(), {"step": 100})
    weights = standfast.load("model.safetensors", framework="torch")   # every byte verified

    with standfast.open("model.safetensors") as file:                  # reads the header alone
        rows = file.slice("embedding.weight")[:10]

    state = standfast.TrainingState(model=model, optimizer=optimizer, loader=loader)
    with standfast.Checkpointer("experiments", state, every=100) as ckpt:
        for step in ckpt.steps(10_000):                               # goes on where it stopped
            ckpt.step(step, loss=train_step())

All that can go wrong is a StandfastError; the tree of them is drawn in `standfast.errors`.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "Standfast does not run on Windows: it needs the file locks and the durable renames of "
        "Linux. Run it on Linux, or in WSL 2 (untested)"
    )

from standfast import errors, oxck
from standfast.errors import DamagedFile, StandfastError
from standfast.policies import KeepAll, KeepBest, KeepEvery, KeepLast, KeepTagged
from standfast.schedule import Schedule
from standfast.store import Checkpoint, Run, Store
from standfast.store.tree.per_rank import per_rank
from standfast.tensorfile.convert import Converted, convert
from standfast.tensorfile.diff import Diff, diff
from standfast.tensorfile.load import load
from standfast.tensorfile.open import TensorFile, open
from standfast.tensorfile.save import save
from standfast.tensorfile.verify import verify
from standfast.tensors import Packed, TensorSpec, register_framework

if TYPE_CHECKING:
    from standfast import amr, experiments, packages, parallel, tenzor
    from standfast.torch.loader import ResumableLoader
    from standfast.training.checkpointer import Checkpointer
    from standfast.training.state import TrainingState

__version__ = "0.1.0"

register_framework("torch", "standfast.torch.framework")
register_framework("jax", "standfast.jax.framework")

_LATER = {
    "Checkpointer": "standfast.training.checkpointer",
    "ResumableLoader": "standfast.torch.loader",
    "TrainingState": "standfast.training.state",
}
"""What is imported when it is first asked for: a command that lists a store needs none of it."""
_PACKAGES = "amr dcp experiments jax lightning orbax packages parallel tenzor transformers".split()


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"standfast.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'standfast' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


__all__ = [
    "Checkpoint",
    "Checkpointer",
    "Converted",
    "DamagedFile",
    "Diff",
    "KeepAll",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepTagged",
    "Packed",
    "ResumableLoader",
    "Run",
    "Schedule",
    "StandfastError",
    "Store",
    "TensorFile",
    "TensorSpec",
    "TrainingState",
    "__version__",
    "amr",
    "convert",
    "diff",
    "errors",
    "experiments",
    "load",
    "open",
    "oxck",
    "packages",
    "parallel",
    "per_rank",
    "save",
    "tenzor",
    "verify",
]

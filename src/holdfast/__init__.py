"""Holdfast: checkpoints that lose nothing, stall nothing, and prove it.

    import holdfast

    holdfast.save("model.safetensors", model.state_dict(), {"step": 100})
    weights = holdfast.load("model.safetensors", framework="torch")   # every byte verified

    with holdfast.open("model.safetensors") as file:                  # reads the header alone
        rows = file.slice("embedding.weight")[:10]

    state = holdfast.TrainingState(model=model, optimizer=optimizer, loader=loader)
    with holdfast.Checkpointer("experiments", state, every=100) as ckpt:
        for step in ckpt.steps(10_000):                               # goes on where it stopped
            ckpt.step(step, loss=train_step())

All that can go wrong is a HoldfastError; the tree of them is drawn in `holdfast.errors`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from holdfast import errors, oxck
from holdfast.errors import DamagedFile, HoldfastError
from holdfast.retention import KeepAll, KeepBest, KeepEvery, KeepLast, KeepTagged
from holdfast.schedule import Schedule
from holdfast.store import Checkpoint, Run, Store
from holdfast.store.per_rank import per_rank
from holdfast.tensors import Packed, TensorSpec, register_framework
from holdfast.verbs.convert import Converted, convert
from holdfast.verbs.diff import Diff, diff
from holdfast.verbs.load import load
from holdfast.verbs.open import TensorFile, open
from holdfast.verbs.save import save
from holdfast.verbs.verify import verify

if TYPE_CHECKING:
    from holdfast import amr, experiments, packages, parallel, tenzor
    from holdfast.adapters.torch_loader import ResumableLoader
    from holdfast.training.checkpointer import Checkpointer
    from holdfast.training.state import TrainingState

__version__ = "0.1.0"

register_framework("torch", "holdfast.adapters.torch")
register_framework("jax", "holdfast.adapters.jax")

_LATER = {
    "Checkpointer": "holdfast.training.checkpointer",
    "ResumableLoader": "holdfast.adapters.torch_loader",
    "TrainingState": "holdfast.training.state",
}
"""What is imported when it is first asked for: a command that lists a store needs none of it."""


def __getattr__(name: str) -> Any:
    if name in ("amr", "experiments", "packages", "parallel", "tenzor"):
        return importlib.import_module(f"holdfast.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


__all__ = [
    "Checkpoint",
    "Checkpointer",
    "Converted",
    "DamagedFile",
    "Diff",
    "HoldfastError",
    "KeepAll",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepTagged",
    "Packed",
    "ResumableLoader",
    "Run",
    "Schedule",
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

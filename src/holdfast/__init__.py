"""Holdfast: checkpoints that lose nothing, stall nothing, and prove it.

    import holdfast

    holdfast.save("model.safetensors", model.state_dict(), {"step": 100})
    weights = holdfast.load("model.safetensors", framework="torch")   # every byte verified

    with holdfast.open("model.safetensors") as file:                  # reads the header alone
        rows = file.slice("embedding.weight")[:10]

All that can go wrong is a HoldfastError; the tree of them is drawn in `holdfast.errors`.
"""

from holdfast import errors, oxck
from holdfast.errors import DamagedFile, HoldfastError
from holdfast.store import Checkpoint, Run, Store
from holdfast.tensors import Packed, TensorSpec, register_framework
from holdfast.verbs.convert import Converted, convert
from holdfast.verbs.diff import Diff, diff
from holdfast.verbs.load import load
from holdfast.verbs.open import TensorFile, open
from holdfast.verbs.save import save
from holdfast.verbs.verify import verify

__version__ = "0.1.0"

register_framework("torch", "holdfast.adapters.torch")

__all__ = [
    "Checkpoint",
    "Converted",
    "DamagedFile",
    "Diff",
    "HoldfastError",
    "Packed",
    "Run",
    "Store",
    "TensorFile",
    "TensorSpec",
    "__version__",
    "convert",
    "diff",
    "errors",
    "load",
    "open",
    "oxck",
    "save",
    "verify",
]

"""A model is built: empty first, then with the weights for its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import StateMismatch, shortened
from holdfast.packages.architecture import check_shapes, plain_names
from holdfast.packages.config import Config
from holdfast.packages.weights import Weights
from holdfast.tensors import framework

if TYPE_CHECKING:
    from holdfast.packages.gpt import GPT

_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


def build(weights: Weights, config: Config, device: str = "cpu", *, aligned: bool = True) -> GPT:
    """The model of this configuration with these weights, in evaluation mode.

    They arrive file by file, so that one of them at most is in memory twice. Raises StateMismatch
    before anything is built if they are not what the configuration asks for.
    """
    adapter = framework("torch")  # says what to install if it is missing
    from holdfast.packages import gpt

    names = plain_names(weights.specs, config)
    specs = {plain: weights.specs[name] for plain, name in names.items()}
    check_shapes(specs, config)
    for plain, spec in specs.items():
        if spec.dtype not in _FLOATS:
            raise StateMismatch(f"{shortened(plain)!r} is of {spec.dtype}, which no weight is")
    model = gpt.empty(config)
    plain_of = {name: plain for plain, name in names.items()}
    for arrays in weights.parts(aligned=aligned):
        tensors = {
            plain_of[name]: adapter.tensor(array, specs[plain_of[name]])
            for name, array in arrays.items()
            if name in plain_of
        }
        gpt.fill(model, tensors, device)
    return model.eval()

"""A model is built: empty first, then with the weights for its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.errors import StateMismatch, shortened
from standfast.packages.model.architecture import EMBEDDING, HEAD, check_shapes, plain_names
from standfast.packages.model.config import Config
from standfast.packages.remote.places import File, Folder
from standfast.packages.weights.weights import Weights
from standfast.tensors import framework

if TYPE_CHECKING:
    from standfast.packages.model.gpt import GPT

_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


def build(
    weights: Weights,
    config: Config,
    home: Folder | File,
    device: str = "cpu",
    *,
    aligned: bool = True,
) -> GPT:
    """The model of this configuration with these weights, in evaluation mode.

    They arrive file by file, so that one of them at most is in memory twice. Raises StateMismatch
    before anything is built if they are not what the configuration asks for. An output layer in
    the files that is not the embedding is the model's own, whatever the configuration says.
    """
    adapter = framework("torch")  # says what to install if it is missing
    from standfast.packages.model import gpt

    names = plain_names(weights.specs)
    if config.tie_word_embeddings and HEAD in names:
        if EMBEDDING in names and weights.are_equal(names[HEAD], names[EMBEDDING]):
            del names[HEAD]
        else:
            config = config.changed(tie_word_embeddings=False)
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
    model.origin = f"{_how(weights, aligned)} from {home}, {weights.verdict}"
    return model.eval()


def _how(weights: Weights, aligned: bool) -> str:
    if aligned:
        return "loaded"
    if weights.is_quantized:
        return "read and multiplied"
    return "mapped" if weights.are_here else "read"

"""A model pickled with dill: written when asked for, loaded when the caller trusts the file.

The weights are in the checkpoints, so the pickle has zeros in their place. What a state dict lacks,
such as buffers that are not persistent, is in it.
"""

from __future__ import annotations

import errno
import importlib
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from standfast.errors import BadPickle, MissingFile, RefusedPickle, RefusedState, UnknownFramework
from standfast.store import Store
from standfast.store.schema import names
from standfast.store.tree import tree
from standfast.store.v3.companions import write_shared
from standfast.tensors.adapter import Memory
from standfast.tensors.frameworks import memory_of, unwrapped
from standfast.training.parts import part_of


def pickle_architecture(store: Store, run: str, model: Any) -> None:
    """Write the model, without its weights, beside the description of its architecture."""
    try:
        data = _pickled(unwrapped(model))
    except UnknownFramework:
        raise
    except Exception as error:  # whatever the objects in a model raise
        raise RefusedState(
            f"the {type(model).__name__} cannot be pickled ({type(error).__name__}: {error}): keep "
            "what creates it in the code, and save its weights alone"
        ) from error
    write_shared(store.backend, run, partial(names.architecture_file, suffix=".pkl"), data)


def _pickled(model: Any) -> bytes:
    dill = _dill()
    _, leaves = tree.flatten(part_of("model", model).tree())
    # A state dict has detached tensors, so they are compared by their memory.
    weights = {memory for leaf in leaves if (memory := memory_of(leaf.value))}

    class Pickler(dill.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, value: Any) -> Any:
            return _without_weights(value, weights)

    file = io.BytesIO()
    Pickler(file).dump(model)
    return file.getvalue()


def _without_weights(value: Any, weights: set[Memory]) -> Any:
    """What makes zeros in the place of a weight, for a pickler."""
    torch: Any = sys.modules.get("torch")
    if isinstance(value, np.ndarray):
        zeros = partial(np.zeros, value.shape, value.dtype)
    elif torch and type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_sparse:
        zeros = partial(torch.zeros, tuple(value.shape), dtype=value.dtype)
    else:
        return NotImplemented
    if memory_of(value) not in weights:
        return NotImplemented
    if torch and isinstance(value, torch.nn.Parameter):
        made = (_Call(zeros), value.requires_grad)
        return torch.nn.Parameter, made, vars(value) or None
    return zeros, ()


class _Call:
    """Pickled as the result of a call."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __reduce__(self) -> Any:
        return self._function, ()


def load_architecture(path: Path, trusted: bool) -> Any:
    """The pickled model; raises RefusedPickle unless the caller says that the file is trusted."""
    if not path.is_file():
        raise MissingFile(
            errno.ENOENT,
            f"there is no {path}: architectures are pickled by save_model_architecture, or with "
            "pickle_architectures=True; create the model in the program, and load its weights",
        )
    if not trusted:
        raise RefusedPickle(
            f"{path}: to load a pickled model runs whatever code the file holds, and nobody said "
            "that it can be trusted: create the model in the program and load its weights, or, if "
            "you know who wrote the file, pass trust_architecture=True"
        )
    dill = _dill()
    try:
        return dill.loads(path.read_bytes())
    except Exception as error:  # whatever the code in a pickle raises
        raise BadPickle(
            f"{path}: the model in it cannot be made again ({type(error).__name__}: {error}): "
            "create it in the program, and load its weights"
        ) from error


def _dill() -> Any:
    try:
        return importlib.import_module("dill")
    except ImportError as error:
        raise UnknownFramework(f"dill cannot be imported ({error}): pip install dill") from error

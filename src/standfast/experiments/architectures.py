"""A model pickled with dill: written when asked for, loaded when the caller trusts the file."""

from __future__ import annotations

import errno
import importlib
from pathlib import Path
from typing import Any

from standfast.errors import BadPickle, MissingFile, RefusedPickle, RefusedState, UnknownFramework
from standfast.store import Store
from standfast.store.schema import names
from standfast.tensors.frameworks import unwrapped


def pickle_architecture(store: Store, run: str, model: Any) -> None:
    """Write the model itself beside the description of its architecture."""
    dill = _dill()
    try:
        data = dill.dumps(unwrapped(model))
    except Exception as error:  # whatever the objects in a model raise
        raise RefusedState(
            f"the {type(model).__name__} cannot be pickled ({type(error).__name__}: {error}): keep "
            "what creates it in the code, and save its weights alone"
        ) from error
    store.backend.replace(names.architecture_file(run, ".pkl"), data)


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

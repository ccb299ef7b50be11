"""Model packages: folders that hold a whole model and open everywhere.

    from standfast.packages import load_model_folder, save_model_folder

    save_model_folder(model, tokenizer, config, "models/recipes_20261116_120000")
    model, tokenizer, config, state = load_model_folder("models/recipes_20261116_120000")
    print(tokenizer.decode(model.generate(tokenizer.encode("Take two").ids, 50, seed=1)))

docs/packages.md has the files, byte for byte, and what is refused.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from standfast.packages.archive import pack, unpack
    from standfast.packages.documents.names import REQUIRED_FILES
    from standfast.packages.documents.records import (
        DatasetInfo,
        DatasetMetadata,
        DatasetSample,
        DataStats,
        GenerationInfo,
        TrainingParams,
    )
    from standfast.packages.listing import ModelInfo, list_saved_models
    from standfast.packages.model.config import Config
    from standfast.packages.model.files import (
        load_model,
        load_model_folder,
        load_model_mmaped,
        save_model,
        save_model_folder,
    )
    from standfast.packages.model.gpt import GPT
    from standfast.packages.model.varmap import VarMap
    from standfast.packages.store import export, save_to_store
    from standfast.packages.verify import verify_package

_PLACES = {
    "Config": "model.config",
    "DataStats": "documents.records",
    "DatasetInfo": "documents.records",
    "DatasetMetadata": "documents.records",
    "DatasetSample": "documents.records",
    "GPT": "model.gpt",
    "GenerationInfo": "documents.records",
    "ModelInfo": "listing",
    "REQUIRED_FILES": "documents.names",
    "TrainingParams": "documents.records",
    "VarMap": "model.varmap",
    "export": "store",
    "list_saved_models": "listing",
    "load_model": "model.files",
    "load_model_folder": "model.files",
    "load_model_mmaped": "model.files",
    "pack": "archive",
    "save_model": "model.files",
    "save_model_folder": "model.files",
    "save_to_store": "store",
    "unpack": "archive",
    "verify_package": "verify",
}
"""Each is imported when it is first asked for: to list packages takes no torch."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'standfast.packages' has no attribute {name!r}")
    module = importlib.import_module(f"standfast.packages.{_PLACES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


__all__ = [
    "GPT",
    "REQUIRED_FILES",
    "Config",
    "DataStats",
    "DatasetInfo",
    "DatasetMetadata",
    "DatasetSample",
    "GenerationInfo",
    "ModelInfo",
    "TrainingParams",
    "VarMap",
    "export",
    "list_saved_models",
    "load_model",
    "load_model_folder",
    "load_model_mmaped",
    "pack",
    "save_model",
    "save_model_folder",
    "save_to_store",
    "unpack",
    "verify_package",
]

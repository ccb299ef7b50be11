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
    from standfast.packages.documents.dataset import DatasetInfo, DatasetMetadata, DatasetSample
    from standfast.packages.documents.generation_info import (
        DataStats,
        GenerationInfo,
        TrainingParams,
    )
    from standfast.packages.documents.names import REQUIRED_FILES
    from standfast.packages.folder import load_model_folder, save_model_folder
    from standfast.packages.listing import ModelInfo, list_saved_models
    from standfast.packages.model.config import Config
    from standfast.packages.model.file import load_model, load_model_mmaped, save_model
    from standfast.packages.model.gpt import GPT
    from standfast.packages.model.varmap import VarMap
    from standfast.packages.store.export import export
    from standfast.packages.store.packages import save_to_store
    from standfast.packages.verify import verify_package

_PLACES = {
    "Config": "model.config",
    "DataStats": "documents.generation_info",
    "DatasetInfo": "documents.dataset",
    "DatasetMetadata": "documents.dataset",
    "DatasetSample": "documents.dataset",
    "GPT": "model.gpt",
    "GenerationInfo": "documents.generation_info",
    "ModelInfo": "listing",
    "REQUIRED_FILES": "documents.names",
    "TrainingParams": "documents.generation_info",
    "VarMap": "model.varmap",
    "export": "store.export",
    "list_saved_models": "listing",
    "load_model": "model.file",
    "load_model_folder": "folder",
    "load_model_mmaped": "model.file",
    "pack": "archive",
    "save_model": "model.file",
    "save_model_folder": "folder",
    "save_to_store": "store.packages",
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

"""Model packages: folders that hold a whole model and open everywhere.

    from holdfast.packages import load_model_folder, save_model_folder

    save_model_folder(model, tokenizer, config, "models/recipes_20261116_120000")
    model, tokenizer, config, state = load_model_folder("models/recipes_20261116_120000")
    print(tokenizer.decode(model.generate(tokenizer.encode("Take two").ids, 50, seed=1)))

docs/packages.md has the files, byte for byte, and what is refused.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.packages.archive import pack, unpack
    from holdfast.packages.checking import verify_package
    from holdfast.packages.config import Config
    from holdfast.packages.dataset import DatasetInfo, DatasetMetadata, DatasetSample
    from holdfast.packages.exporting import export
    from holdfast.packages.folder import load_model_folder, save_model_folder
    from holdfast.packages.generation_info import DataStats, GenerationInfo, TrainingParams
    from holdfast.packages.gpt import GPT
    from holdfast.packages.listing import ModelInfo, list_saved_models
    from holdfast.packages.model_file import load_model, load_model_mmaped, save_model
    from holdfast.packages.names import REQUIRED_FILES
    from holdfast.packages.stored import save_to_store
    from holdfast.packages.varmap import VarMap

_PLACES = {
    "Config": "config",
    "DataStats": "generation_info",
    "DatasetInfo": "dataset",
    "DatasetMetadata": "dataset",
    "DatasetSample": "dataset",
    "GPT": "gpt",
    "GenerationInfo": "generation_info",
    "ModelInfo": "listing",
    "REQUIRED_FILES": "names",
    "TrainingParams": "generation_info",
    "VarMap": "varmap",
    "export": "exporting",
    "list_saved_models": "listing",
    "load_model": "model_file",
    "load_model_folder": "folder",
    "load_model_mmaped": "model_file",
    "pack": "archive",
    "save_model": "model_file",
    "save_model_folder": "folder",
    "save_to_store": "stored",
    "unpack": "archive",
    "verify_package": "checking",
}
"""Each is imported when it is first asked for: to list packages takes no torch."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'holdfast.packages' has no attribute {name!r}")
    module = importlib.import_module(f"holdfast.packages.{_PLACES[name]}")
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

"""Packages in a store: what an earlier step holds of one is not written again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from standfast.errors import BadField, UnsupportedFile, shortened
from standfast.packages.documents import json_text, names
from standfast.packages.documents.manifest import FORMAT
from standfast.packages.writer import contents_of
from standfast.store import Checkpoint, Run
from standfast.store.tree import tree
from standfast.store.tree.tree import Ref
from standfast.tensors.frameworks import unwrapped

MODEL: Final = "model"
"""The part of the state that has the weights."""
PACKAGE: Final = "package"
"""The part that has all else."""
_FILES: Final = names.OWN_FILES - {
    names.MODEL,
    names.INDEX,
    names.QUANTIZED,
    names.CONFIG,
    names.MANIFEST,
}
"""The files of a package that are kept as they are; the others are made when it is exported."""


def save_to_store(
    run: Run,
    step: int,
    model: Any,
    tokenizer: Any,
    config: Any = None,
    *,
    dataset: Any = None,
    generation_info: Any = None,
    metrics: Mapping[str, Any] | None = None,
    epoch: int | None = None,
    best: bool = False,
    replace: bool = False,
) -> Checkpoint:
    """Commit a package as the checkpoint of a step, as `run.save` does.

    Weights and files that the store holds already are referred to, not written again.

    >>> save_to_store(run, 300, model, tokenizer, config, metrics={"loss": 2.5}, best=True)
    >>> standfast.packages.export(run.checkpoint("best"), "models/gpt")
    """
    contents = contents_of(
        model, tokenizer, config, dataset=dataset, generation_info=generation_info
    )
    weights = model if isinstance(model, Mapping) else unwrapped(model).state_dict()
    state = {
        MODEL: dict(weights),
        PACKAGE: {
            "format": FORMAT,
            "config": json.loads(json_text.text(contents.config)),
            "files": {name: np.frombuffer(text, np.uint8) for name, text in contents.files.items()},
        },
    }
    return run.save(step, state, metrics, epoch=epoch, best=best, replace=replace)


@dataclass(frozen=True)
class StoredPackage:
    """What a checkpoint of a package has besides the weights."""

    config: Mapping[str, Any]
    files: Mapping[str, bytes]


def stored_package(checkpoint: Checkpoint) -> StoredPackage | None:
    """What `save_to_store` put beside the weights; None if it is another kind of checkpoint."""
    record = checkpoint.record
    state = tree.decode(record.tree, len(record.names))
    package = state.get(PACKAGE) if isinstance(state, dict) else None
    if not isinstance(package, dict) or not _is_ours(package.get("format"), checkpoint):
        return None
    config, files = package.get("config"), package.get("files")
    if not isinstance(config, dict) or not isinstance(files, dict):
        raise BadField(f"{checkpoint.ref}: package should have a config and files")
    for name, value in files.items():
        if name not in _FILES or not isinstance(value, Ref):
            raise BadField(
                f"{checkpoint.ref}: package.files has {shortened(repr(name))}, which is no file "
                "of a package"
            )
    return StoredPackage(config, _read_files(checkpoint, files))


def _is_ours(format: Any, checkpoint: Checkpoint) -> bool:
    if format == FORMAT:
        return True
    if isinstance(format, str) and format.startswith(FORMAT.rstrip("1")):
        raise UnsupportedFile(
            f"{checkpoint.ref}: it is a {shortened(format)!r}, and this release reads {FORMAT!r}: "
            "install a newer Standfast"
        )
    return False


def _read_files(checkpoint: Checkpoint, files: Mapping[str, Ref]) -> dict[str, bytes]:
    specs, content = checkpoint.record.specs, {}
    with checkpoint.data(tensors=[ref.tensor for ref in files.values()]) as data:
        for name, ref in files.items():
            if specs[ref.tensor].dtype != "uint8":
                raise BadField(f"{checkpoint.ref}: package.files.{name} should be bytes")
            content[name] = data.array(ref.tensor).tobytes()
    return content

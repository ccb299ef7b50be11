"""The weights in a folder of Transformers: one file, or shards and the index that names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from standfast.errors import BadField, DuplicateKey, MissingData, shortened
from standfast.tensorfile.importers.contents import Entries, shown
from standfast.tensorfile.importers.values import LeftOut, read_content
from standfast.tensorfile.importers.weight_map import place, read_weight_map

_NAMES: Final = (
    "model.safetensors",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "adapter_model.bin",
)
"""The first that is there is taken."""
_ANY: Final = re.compile(
    r"(model|adapter_model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?"
)


@dataclass(frozen=True)
class Weights:
    """The files of a model's weights."""

    files: tuple[Path, ...]
    index: Path | None = None
    names: tuple[str, ...] = ()
    """The tensors that the index names."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files, with the index."""
        return self.files if self.index is None else (*self.files, self.index)

    def read(self, tensors_only: bool) -> tuple[Any, LeftOut]:
        """The model, whole; raises if the shards do not add up to what the index says."""
        if self.index is None:
            content = read_content(self.files[0], tensors_only)
            return content.tree, content.left_out
        model: dict[Any, Any] = {}
        left_out: LeftOut = {}
        for path in self.files:
            content = read_content(path, tensors_only)
            if not isinstance(content.tree, dict):
                raise BadField(f"{shown(path)}: expected a dict of tensors, as shards are")
            for name, value in content.tree.items():
                if name in model:
                    raise DuplicateKey(
                        f"{shown(path)}: another shard has the tensor {shortened(str(name))!r} too"
                    )
                model[name] = value
            left_out.update(content.left_out)
        for name in self.names:
            if name not in model:
                raise MissingData(
                    f"{shown(self.index)}: no shard has the tensor {shortened(name)!r}, which "
                    "the index names"
                )
        return model, left_out


def find_weights(folder: Entries) -> Weights | None:
    """The weights in a folder; an index that names files elsewhere is refused."""
    for name in _NAMES:
        if name in folder.files:
            return Weights((folder.files[name],))
        if index := folder.files.get(f"{name}.index.json"):
            return _sharded(index, folder)
    return None


def other_weights(name: str) -> bool:
    """Whether a file of this name is of the weights of some model."""
    return _ANY.fullmatch(name) is not None


def _sharded(index: Path, folder: Entries) -> Weights:
    places = read_weight_map(index, other_weights)
    # Looked up among the files that are there: a name out of a file never becomes a path.
    shards: dict[str, Path] = {}
    for tensor, shard in places.items():
        if shard not in folder.files:
            raise MissingData(
                f"{place(index, tensor)} is in {shortened(shard)!r}, which is not in the folder: "
                "get that file, or move the checkpoint away"
            )
        shards[shard] = folder.files[shard]
    return Weights(tuple(shards[name] for name in sorted(shards)), index, tuple(places))

"""One file of a checkpoint as a part of a state: plain values and tensors, nothing else."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from standfast.errors import (
    BadHeader,
    LimitExceeded,
    UnknownFormat,
    UnknownFramework,
    printable,
    shortened,
)
from standfast.formats.torch.values import Stub, name_of
from standfast.formats.trees import ROOT
from standfast.tensorfile.importers.contents import shown
from standfast.tensorfile.open import TensorFile
from standfast.tensors import framework
from standfast.tensors.adapter import Framework

LeftOut = dict[tuple[str, ...], str]
"""The names of classes by the keys that lead to their objects."""

MAX_DEPTH: Final = 110
"""Of the tree and what hangs on it; readers give trees of 100 levels."""
_PLAIN: Final = (str, int, float, complex, bool, bytes, type(None))
_KEYS: Final = (str, int, float, bool, type(None))
_NOTHING: Final = object()
"""In the place of a value that is left out."""
_RENAMED: Final = {"state_dict": "model", "optimizer_states": "optimizer"}


@dataclass(frozen=True)
class Content:
    """What a file holds."""

    tree: Any
    flat: bool
    """Whether it is the tensors of a model and nothing else."""
    metadata: dict[str, Any]
    """What the file says beside its tree."""
    left_out: LeftOut


def read_outline(file: TensorFile) -> Any:
    """The tree of a file as `read_content` has it, with arrays that are not read."""
    plain = _Plain(file, None)
    tree = plain.value(file.outline(), ROOT, ())
    return {} if tree is _NOTHING else tree


def torch_adapter() -> Framework | None:
    """Torch, if it is installed."""
    try:
        return framework("torch")
    except UnknownFramework:
        return None


def read_content(path: Path, tensors_only: bool) -> Content:
    """All of a file, with torch tensors where torch is installed and NumPy arrays elsewhere."""
    try:
        opened = TensorFile(path, writable=True, tensors_only=tensors_only)
    except UnknownFormat as error:
        raise BadHeader(
            f"{shown(path)}: its content is of no format that a checkpoint has; where it is a "
            "pointer to a large file, get that file first"
        ) from error
    with opened as file:
        plain = _Plain(file, torch_adapter())
        given = file.tree()
        tree = plain.value(given, ROOT, ())
        tensors = isinstance(given, dict) and given and all(str(key) in file for key in given)
        metadata = plain.value(file.metadata, None, ("metadata",)) if tensors else {}
        metadata.pop("format", None)  # which says who wrote a safetensors file
    # The state dict of a module, which may hold more than tensors, has the versions of modules.
    flat = bool(tensors) or "_metadata" in getattr(given, "__dict__", {})
    return Content({} if tree is _NOTHING else tree, flat, metadata, plain.left_out)


def as_part(content: Content, name: str) -> tuple[dict[str, Any], LeftOut]:
    """A file that is one part of a state, under the part's name."""
    return {name: content.tree}, {(name, *path): what for path, what in content.left_out.items()}


def as_state(content: Content) -> tuple[dict[Any, Any], LeftOut]:
    """A file that is a whole checkpoint, as a state with parts `model`, `optimizer`, …"""
    if content.flat:
        state, left_out = as_part(content, "model")
        return (state | {"metadata": content.metadata} if content.metadata else state), left_out
    if not isinstance(content.tree, dict):
        return as_part(content, "state")
    names = _part_names([*content.tree, *(path[0] for path in content.left_out if path)])
    return (
        {names.get(key, key): value for key, value in content.tree.items()},
        {
            (*(names.get(key, key) for key in path[:1]), *path[1:]): what
            for path, what in content.left_out.items()
        },
    )


def _part_names(keys: list[Any]) -> dict[Any, str]:
    """The parts that keys such as `optimizer_state_dict` stand for, where no other key is that."""
    names: dict[Any, str] = {}
    taken = set(keys)
    for key in dict.fromkeys(keys):
        if not isinstance(key, str):
            continue
        name = _RENAMED.get(key) or key.removesuffix("_state_dict")
        if name and name not in taken:
            names[key] = name
            taken.add(name)
    return names


def report(missing: LeftOut, left_out: dict[str, str]) -> None:
    """Put down what was left out, by its dotted path, for people."""
    left_out.update({printable(".".join(path)): what for path, what in missing.items()})


class _Plain:
    """Makes a tree out of a file one that a state can be: what cannot be in it is left out."""

    def __init__(self, file: TensorFile, adapter: Framework | None) -> None:
        self.left_out: LeftOut = {}
        self._file = file
        self._adapter = adapter

    def value(self, value: Any, name: str | None, path: tuple[str, ...]) -> Any:
        """A node of the tree; `name` is what the file would call a tensor in its place."""
        if len(path) > MAX_DEPTH:
            raise LimitExceeded(f"{shown(self._file.path)}: a tree of over {MAX_DEPTH} levels")
        if isinstance(value, dict):
            return self._dict(value, name, path)
        if isinstance(value, list):
            return self._members(value, name, path)
        if isinstance(value, tuple):
            return tuple(self._members(value, name, path))
        if isinstance(value, set | frozenset):
            return self._members(_in_order(value), None, path)
        if isinstance(value, np.ndarray) and name is not None and name in self._file:
            return self._tensor(value, name)
        return self._leaf(value, path)

    def _dict(self, node: dict[Any, Any], name: str | None, path: tuple[str, ...]) -> Any:
        copy: dict[Any, Any] = OrderedDict() if isinstance(node, OrderedDict) else {}
        for key, member in node.items():
            if type(key) not in _KEYS:
                known = name_of(key) if isinstance(key, Stub) else shortened(repr(key))
                self.left_out[*path, known] = "a key that is neither text nor a number"
                continue
            below = (*path, str(key))
            found = self.value(member, _below(name, key, path), below)
            if found is not _NOTHING:
                copy[key] = found
        if "_metadata" in getattr(node, "__dict__", {}):
            versions = self.value(vars(node)["_metadata"], None, (*path, "_metadata"))
            if versions is not _NOTHING:
                vars(copy)["_metadata"] = versions
        return copy

    def _members(self, node: Any, name: str | None, path: tuple[str, ...]) -> list[Any]:
        found = (
            self.value(member, _below(name, i, path), (*path, str(i)))
            for i, member in enumerate(node)
        )
        # The others keep their places.
        return [None if member is _NOTHING else member for member in found]

    def _tensor(self, array: np.ndarray[Any, Any], name: str) -> Any:
        return self._adapter.tensor(array, self._file.spec(name)) if self._adapter else array

    def _leaf(self, value: Any, path: tuple[str, ...]) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, np.dtype):
            return str(value)
        if isinstance(value, np.generic):
            return value.item() if value.dtype.kind in "US" else value
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "US":
                return value
            if value.size <= value.nbytes:  # text without letters takes no bytes, ever so much
                return value.tolist()
        self.left_out[path] = name_of(value) if isinstance(value, Stub) else type(value).__name__
        return _NOTHING


def _below(name: str | None, key: Any, path: tuple[str, ...]) -> str | None:
    if name is None:
        return None
    return f"{name}.{key}" if path else str(key)


def _in_order(members: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(members)
    except TypeError:  # of several types
        return sorted(members, key=repr)

"""What stands in a checkpoint under our own metadata key: all but the tensors themselves.

    "standfast": {"version": 1, "tensors": […], "bytes": {…}, "state": {…}}

`state` is a tree of plain values with tensors by number, as the records of a store have it;
`tensors` says of each number where it lies. `bytes` has the dtype and shape of those that the
format cannot hold: they lie in the file as rows of bytes.
"""

from __future__ import annotations

import json
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from standfast.errors import BadField, LimitExceeded, UnsupportedFile, shortened
from standfast.store.tree.tree import Leaf, decode, encode, flatten
from standfast.tensors import DTYPES, TensorSpec, source_of

KEY: Final = "standfast"
VERSION: Final = 1
MAX_RANK: Final = 64

SLOTS: Final = {"momentum_buffer": "v", "exp_avg": "m", "exp_avg_sq": "v_hat"}
"""What the original calls these; all other slots keep the names that the optimizer gives them."""

OPTIMIZER: Final = ("optimizer", "state")
"""The path in the saved tree of what the optimizer's `state_dict` gave."""


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dtype and a shape out of a file."""

    dtype: str
    shape: list[int]

    def checked(self, where: str) -> TensorSpec:
        """The spec, if there can be such a tensor."""
        if self.dtype not in DTYPES:
            raise BadField(f"{where}: no dtype is called {shortened(self.dtype)!r}")
        if len(self.shape) > MAX_RANK or any(not 0 <= n < 1 << 48 for n in self.shape):
            raise LimitExceeded(f"{where}: no array can have the shape {self.shape[:8]}")
        return TensorSpec(self.dtype, tuple(self.shape))


class Stored(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a tensor of the tree lies: under a name in the file, or right here."""

    kind: str
    """What `tensor_of` needs, such as `torch`."""
    name: str | None = None
    spec: Spec | None = None
    data: str | None = None
    """The bytes, in base64."""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of it."""

    version: int
    tensors: list[Stored]
    bytes: dict[str, Spec]
    state: Any


NONE: Final = Document(0, [], {}, None)
"""That of a file which has none."""


def written(
    state: Mapping[str, Any], parameters: Sequence[str], taken: Sequence[str]
) -> tuple[bytes, list[Stored], dict[str, Any]]:
    """A tree's JSON, where its tensors lie, and those of them that the file has to hold.

    Tensors without dimensions are steps and rates: they stand in the JSON.
    """
    node, leaves = flatten(dict(state))
    names = unique((leaf_name(leaf.path, parameters) for leaf in leaves), taken)
    stored, tensors = [], {}
    for leaf, name in zip(leaves, names, strict=True):
        source = source_of(leaf.value)
        if source.spec.shape == ():
            stored.append(_inline(leaf))
        else:
            stored.append(Stored(leaf.kind, name))
            tensors[name] = leaf.value
    return encode(node, range(len(leaves))), stored, tensors


def _inline(leaf: Leaf) -> Stored:
    spec = source_of(leaf.value).spec
    data = b64encode(bytes_of(leaf.value).tobytes()).decode("ascii")
    return Stored(leaf.kind, None, Spec(spec.dtype, list(spec.shape)), data)


def bytes_of(tensor: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A copy of the bytes of any tensor."""
    source = source_of(tensor)
    data = np.empty(source.spec.nbytes, np.uint8)
    source.copy_to(data, 0)
    return data


def to_text(state: bytes, stored: list[Stored], as_bytes: Mapping[str, TensorSpec]) -> bytes:
    """The document as a member of a JSON object."""
    specs = {name: Spec(spec.dtype, list(spec.shape)) for name, spec in as_bytes.items()}
    document = Document(VERSION, stored, specs, msgspec.Raw(state))
    return b'"%b":%b' % (KEY.encode(), msgspec.json.encode(document))


def read(members: Mapping[str, Any]) -> tuple[Document, dict[str, Any]] | None:
    """The document of a file and its tree, with a Ref for each tensor; None if it has none."""
    if KEY not in members:
        return None
    given = members[KEY]
    version = given.get("version") if isinstance(given, dict) else None
    if type(version) is int and version > VERSION:
        raise UnsupportedFile(
            f"metadata key {KEY}: version {version}; this release knows {VERSION}: a newer "
            "Standfast reads it"
        )
    try:
        document = msgspec.convert(given, Document)
    except msgspec.ValidationError as error:
        raise BadField(f"metadata key {KEY}: {error}") from error
    text = json.dumps(document.state, ensure_ascii=False, allow_nan=False).encode()
    state = decode(text, len(document.tensors))
    if not isinstance(state, dict):
        raise BadField(f"metadata key {KEY}: its state is no object")
    return document, state


def inline_array(stored: Stored) -> tuple[np.ndarray[Any, Any], TensorSpec]:
    """A tensor that stands in the document, in fresh memory."""
    where = f"metadata key {KEY}: a tensor in it"
    if stored.spec is None or stored.data is None:
        raise BadField(f"{where} has neither a name nor a value")
    spec = stored.spec.checked(where)
    try:
        data = np.frombuffer(bytearray(a2b_base64(stored.data)), np.uint8)
    except ValueError as error:
        raise BadField(f"{where} is not in base64: {error}") from error
    if data.size != spec.nbytes:
        raise BadField(f"{where}: {spec.nbytes:,} bytes expected, {data.size:,} found")
    return spec.view(data), spec


def leaf_name(path: tuple[Any, ...], parameters: Sequence[str]) -> str:
    """The name of the tensor at a path of the saved tree: `optim/fc1.weight/v`."""
    depth = len(OPTIMIZER)
    if path[:depth] != OPTIMIZER:
        return "/".join(["standfast", *map(str, path[1:])])
    parts = list(path[depth:])
    of_parameter = len(parts) > 1 and parts[0] == "state" and type(parts[1]) is int
    if of_parameter and 0 <= parts[1] < len(parameters):
        parts[:2] = [parameters[parts[1]]]
        parts[1:2] = [SLOTS.get(slot, slot) for slot in parts[1:2]]
    return "/".join(["optim", *map(str, parts)])


def unique(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names, with a ~ behind one that is taken."""
    seen, result = set(taken), []
    for name in names:
        while name in seen:
            name += "~"
        seen.add(name)
        result.append(name)
    return result

"""Hyperparameters in a run file: readable as JSON, and exact where JSON changes a value.

The exact form is a pair. The first member is a tree, in the encoding of `store.tree`. The second
lists the values that a tree cannot hold, as `[path, kind]`: a set is a list in the tree and has
the kind `set`. A path consists of positions, since a key may be any value.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from standfast.errors import BadField, DamagedFile, StandfastError, UnknownFramework, UnstableValue
from standfast.identity import recorded
from standfast.identity.reduction import Applied, Content, Member, Named, Record, reduced
from standfast.store.tree import tree
from standfast.store.tree.nodes import MAX_DEPTH
from standfast.store.tree.values import FORMS, KEY_TYPES
from standfast.tensors import Packed, TensorSpec, kind_of, source_of, tensor_of
from standfast.tensors.dtypes import DTYPES
from standfast.tensors.frameworks import plain

_Path = tuple[int, ...]

_DECIMAL_BITS: Final = 2048
"""Python converts integers of this size to decimal digits under any settings."""
_KEY_BITS: Final = 64
"""Longer integers can be chosen so that many of them have one hash."""
_YAML_KEYS: Final = frozenset({str, int, float, bool, bytes, type(None)})


def exact_form(hp: Any) -> Any:
    """The exact form as JSON; None if JSON has all values and types.

    Raises RefusedState, with the path, for what is nested too deeply.

    >>> exact_form({"betas": (0.9, 0.999), "seeds": {1, 2}})
    [{'betas': {'$tuple': [0.9, 0.999]}, 'seeds': [1, 2]}, [[[1], 'set']]]
    """
    walk = _Exact()
    node, _ = tree.flatten(walk.taken(hp, ()))
    text = tree.encode(node, {})
    if not walk.kinds and text == tree.encode(recorded(hp), {}):
        return None
    return [msgspec.json.decode(text), [[list(path), kind] for path, kind in walk.kinds]]


def exact_value(readable: Any, exact: Any) -> Any:
    """The hyperparameters of a run file, from both of its forms; raises BadField.

    A class, function, member of an enumeration, dataclass or partial comes back as a `Named`,
    `Member`, `Record` or `Applied`, which has the same identity: a name in a file never becomes
    something that the program could call.
    """
    if exact is None:
        return readable
    try:
        content, kinds = msgspec.convert(exact, tuple[Any, list[tuple[list[int], str]]])
        values = tree.decode(msgspec.json.encode(content), 0)
        return _made(values, {tuple(path): kind for path, kind in kinds}, ())
    except (KeyError, TypeError, ValueError, AttributeError, LookupError) as error:
        if isinstance(error, DamagedFile):
            raise
        raise BadField(f"the exact hyperparameters cannot be read: {error}") from error


def yaml_value(value: Any) -> Any:
    """An exact value as YAML can hold it, with sets, bytes, infinity and keys of any plain type.

    What YAML cannot hold is shown as in `recorded`.
    """
    node = value
    if type(value) not in _YAML_KEYS:
        try:
            node = reduced(value)
        except UnstableValue:
            return recorded(value)
    if isinstance(node, list):
        return [yaml_value(member) for member in node]
    if isinstance(node, set):
        members = {_yaml_key(member) for member in node}
        return members if members == node else recorded(value)
    if isinstance(node, dict):
        found = {_yaml_key(key): yaml_value(member) for key, member in node.items()}
        return found if len(found) == len(node) else recorded(value)
    is_exact = type(node) in (float, bytes)
    is_exact |= type(node) is int and node.bit_length() <= _DECIMAL_BITS
    return node if is_exact else recorded(value)


def _yaml_key(key: Any) -> Any:
    shown = yaml_value(key)
    is_long = type(shown) is int and shown.bit_length() > _KEY_BITS
    if type(shown) in _YAML_KEYS and not is_long:
        return shown
    text = recorded(key)
    return text if isinstance(text, str) else json.dumps(text)


# From values to the exact form


class _Exact:
    """One walk through hyperparameters."""

    def __init__(self) -> None:
        self.kinds: list[tuple[_Path, str]] = []
        self._around: set[int] = set()

    def taken(self, value: Any, path: _Path) -> Any:
        """The value as a tree; what a tree cannot hold is added to `kinds`."""
        if type(value) in FORMS:
            return value
        if len(self._around) > MAX_DEPTH:
            return None  # `flatten` refuses what is around it
        try:
            node = value if type(value) in (list, tuple, dict) else reduced(value)
        except UnstableValue:
            node = None
        if node is None or id(value) in self._around:
            return recorded(value)  # identities ignore such a value, or they would refuse it
        self._around.add(id(value))
        kind, content = self._parts(value, node, path)
        if kind:
            self.kinds.append((path, kind))
        self._around.remove(id(value))
        return content

    def _parts(self, value: Any, node: Any, path: _Path) -> tuple[str, Any]:
        """The kind of a value, empty for one that a tree can hold, and its tree."""
        match node:
            case dict() if KEY_TYPES.issuperset(map(type, node)):
                members = self._all(node.values(), path)
                return "", dict(zip(node, members, strict=True))
            case dict():
                return "pairs", self._all(map(list, node.items()), path)
            case set():
                members = sorted(node, key=lambda member: (type(member).__name__, repr(member)))
                kind = "frozenset" if isinstance(value, frozenset) else "set"
                return kind, self._all(members, path)
            case tuple():
                return "", tuple(self._all(node, path))
            case list():
                return "", self._all(node, path)
            case Named(name):
                return "name", name
            case Member(kind, name):
                return "member", [kind, name]
            case Record(kind, fields):
                return "record", self._all([kind, fields], path)
            case Applied(function, arguments, keywords):
                return "partial", self._all([function, arguments, keywords], path)
            case TensorSpec():
                return "spec", [node.dtype, list(node.shape)]
            case Content():
                return "tensor", _tensor_parts(value)
            case str() if isinstance(value, pathlib.PurePath):
                return "path", node
            case str() if isinstance(value, np.dtype):
                return "dtype", node
            case str() if plain(value) is not None:
                return "torch", node
        return "bytearray" if isinstance(value, bytearray) else "", node

    def _all(self, members: Iterable[Any], path: _Path) -> list[Any]:
        return [self.taken(member, (*path, number)) for number, member in enumerate(members)]


def _tensor_parts(value: Any) -> list[Any]:
    source = source_of(value)
    data = np.empty(source.spec.nbytes, np.uint8)
    source.copy_to(data, 0)
    try:
        kind = kind_of(value)
    except StandfastError:  # of a type that would come back as a plain array
        kind = "numpy"
    return [source.spec.dtype, list(source.spec.shape), kind, data.tobytes()]


# And back


def _made(node: Any, kinds: Mapping[_Path, str], path: _Path) -> Any:
    """A decoded tree as the values that it was made of."""

    def made(members: Iterable[Any]) -> list[Any]:
        return [_made(member, kinds, (*path, number)) for number, member in enumerate(members)]

    value = node
    if type(node) is dict:
        value = dict(zip(node, made(node.values()), strict=True))
    elif type(node) in (list, tuple):
        value = type(node)(made(node))
    return _MAKERS[kinds[path]](value) if path in kinds else value


def _tensor(content: list[Any]) -> Any:
    dtype, shape, kind, data = content
    spec = TensorSpec(dtype, tuple(shape))
    array = spec.view(np.frombuffer(bytearray(data), np.uint8))
    try:
        return tensor_of(array, spec, kind)
    except UnknownFramework:
        return Packed(array, dtype, spec.shape) if spec.kind.packed else array


def _torch(text: str) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        return text
    value = vars(torch).get(text.removeprefix("torch."))
    return torch.device(text) if plain(value) != text else value


_MAKERS: Final[dict[str, Callable[[Any], Any]]] = {
    "set": set,
    "frozenset": frozenset,
    "pairs": dict,
    "bytearray": bytearray,
    "path": pathlib.Path,
    "dtype": lambda name: DTYPES[name].numpy,
    "spec": lambda content: TensorSpec(content[0], tuple(content[1])),
    "name": Named,
    "member": lambda content: Member(*content),
    "record": lambda content: Record(*content),
    "partial": lambda content: Applied(*content),
    "tensor": _tensor,
    "torch": _torch,
}

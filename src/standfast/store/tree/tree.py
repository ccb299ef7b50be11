"""A state as one line of JSON and a list of tensors, and back.

Out: state → `flatten` → node and leaves → `encode` → text.
Back: text → `decode` → tree with a `Ref` for each tensor → `build` → state.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from standfast.errors import RefusedTensor
from standfast.store.schema.names import is_text
from standfast.store.tree.decoder import decode
from standfast.store.tree.nodes import MAX_DEPTH, Leaf, Own, Path, Ranks, Ref, path_text
from standfast.store.tree.per_rank import PerRank
from standfast.store.tree.refusals import refused_key, refused_value, state_error
from standfast.store.tree.values import FORMS, KEY_TYPES
from standfast.tensors import kind_of
from standfast.tensors.frameworks import shards_of

__all__ = [
    "Leaf",
    "Own",
    "Path",
    "Ranks",
    "Ref",
    "build",
    "decode",
    "encode",
    "flatten",
    "flatten_apart",
    "flatten_own",
    "parse",
    "path_text",
]


def flatten(state: Any) -> tuple[Any, list[Leaf]]:
    """A state as a node for `encode`, and its tensors in the order of the tree.

    Raises RefusedState, with the path, for what would not come back the same.
    """
    walk = _Flattening()
    return walk.node(state, ()), walk.leaves


def flatten_apart(state: Any) -> tuple[Any, list[Leaf], list[tuple[Path, Any]]]:
    """The same, but what each rank has for itself is not looked into.

    An `Own` stands for each in the node; what they are comes last, with their paths.
    """
    walk = _FlatteningApart()
    return walk.node(state, ()), walk.leaves, walk.own


def flatten_own(trees: list[Any]) -> tuple[Any, list[Leaf]]:
    """What `flatten` gives for trees that are one rank's own: what is marked so in them is too."""
    walk = _FlatteningOwn()
    return walk.node(trees, ()), walk.leaves


class _Flattening:
    """One walk through a state."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self._around: set[int] = set()
        """The containers in which the walk is."""

    def node(self, value: Any, path: Path) -> Any:
        form = FORMS.get(type(value))
        return form(value) if form else self._container_or_tensor(value, path)

    def _nodes(self, members: Iterable[tuple[Any, Any]], path: Path) -> list[Any]:
        nodes = []
        for key, member in members:
            form = FORMS.get(type(member))  # as above, without a path for each number of many
            nodes.append(form(member) if form else self._container_or_tensor(member, (*path, key)))
        return nodes

    def _container_or_tensor(self, value: Any, path: Path) -> Any:
        if type(value) in _CONTAINERS:
            return self._container(value, path)
        try:
            kind, shards = kind_of(value), shards_of(value)
        except RefusedTensor as error:
            raise refused_value(path_text(path), value, str(error)) from error
        self.leaves.append(Leaf(path, value, kind, shards))
        return Ref(len(self.leaves) - 1)

    def _container(self, value: Any, path: Path) -> Any:
        if id(value) in self._around:
            raise state_error(path_text(path), "it contains itself", "break the cycle")
        if len(self._around) == MAX_DEPTH:
            raise state_error(
                path_text(path), f"it lies in {MAX_DEPTH} containers", "make the state flatter"
            )
        self._around.add(id(value))
        node = self._contents(value, path)
        self._around.remove(id(value))
        return node

    def _contents(self, value: Any, path: Path) -> Any:
        return _CONTAINERS[type(value)](self, value, path)

    def _list(self, value: list[Any], path: Path) -> Any:
        return self._nodes(enumerate(value), path)

    def _tuple(self, value: tuple[Any, ...], path: Path) -> Any:
        return {"$tuple": self._nodes(enumerate(value), path)}

    def _ranks(self, value: Ranks, path: Path) -> Any:
        return {"$ranks": self._nodes(enumerate(value), path)}

    def _per_rank(self, value: PerRank, path: Path) -> Any:
        return {"$ranks": self._nodes([(0, value.tree)], path)}

    def _dict(self, value: dict[Any, Any], path: Path) -> Any:
        if _are_names(value):
            return dict(zip(value, self._nodes(value.items(), path), strict=True))
        return {"$dict": self._pairs(value, path)}

    def _ordered(self, value: OrderedDict[Any, Any], path: Path) -> Any:
        node = {"$ordered": self._pairs(value, path)}
        attributes = vars(value)
        if "_metadata" in attributes:  # the versions of the modules of a torch state dict
            node["$metadata"] = self.node(attributes["_metadata"], (*path, "_metadata"))
        _refuse_attributes(attributes, path, {"_metadata"}, "save OrderedDict(value)")
        return node

    def _counter(self, value: Counter[Any], path: Path) -> Any:
        _refuse_attributes(vars(value), path, set(), "save Counter(value)")
        return {"$counter": self._pairs(value, path)}

    def _pairs(self, value: dict[Any, Any], path: Path) -> Any:
        for key in value:
            if type(key) not in KEY_TYPES:
                raise refused_key(path_text(path), key)
        keys = [FORMS[type(key)](key) for key in value]
        return list(zip(keys, self._nodes(value.items(), path), strict=True))


class _FlatteningApart(_Flattening):
    """One that leaves out what each rank has for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.own: list[tuple[Path, Any]] = []

    def _contents(self, value: Any, path: Path) -> Any:
        if type(value) is not PerRank:
            return super()._contents(value, path)
        self.own.append((path, value.tree))
        return Own(len(self.own) - 1)


class _FlatteningOwn(_Flattening):
    """One through what is a rank's own already."""

    def _contents(self, value: Any, path: Path) -> Any:
        if type(value) is PerRank:
            return self.node(value.tree, path)
        return super()._contents(value, path)


_CONTAINERS: Final[dict[type, Callable[[_Flattening, Any, Path], Any]]] = {
    dict: _Flattening._dict,
    OrderedDict: _Flattening._ordered,
    Counter: _Flattening._counter,
    list: _Flattening._list,
    tuple: _Flattening._tuple,
    Ranks: _Flattening._ranks,
    PerRank: _Flattening._per_rank,
}


def _refuse_attributes(names: Iterable[str], path: Path, kept: set[str], advice: str) -> None:
    for name in names:
        if name not in kept and name != "__orig_class__":  # Counter[str]() has that one
            raise state_error(path_text(path), f"it has the attribute {name!r}", advice)


def _are_names(keys: Iterable[Any]) -> bool:
    """Whether the keys may be those of a JSON object: text, and none that looks like a tag."""
    if not _TEXT.issuperset(map(type, keys)):
        return False
    together = "".join(keys)
    return is_text(together) and not ("$" in together and any(key.startswith("$") for key in keys))


_TEXT: Final = frozenset({str})


def encode(node: Any, numbers: Sequence[int] | Mapping[int, int], own: Sequence[Any] = ()) -> bytes:
    """What `flatten` gave as one line of JSON; `numbers` has that of each leaf's tensor.

    `own` has what stands for each `Own` of `flatten_apart`: a node for each rank.
    """

    def reference(ref: Ref | Own) -> dict[str, Any]:
        if isinstance(ref, Own):
            return {"$ranks": own[ref.number]}
        return {"$tensor": numbers[ref.tensor]}

    return json.dumps(
        node,
        default=reference,
        ensure_ascii=False,
        allow_nan=False,
        check_circular=False,
        separators=(",", ":"),
    ).encode()


def parse(text: bytes, first: int = 0) -> Any:
    """The node that a text of `encode` was made of; its tensors are numbered from `first`."""

    def as_ref(node: dict[str, Any]) -> Any:
        return Ref(first + node["$tensor"]) if "$tensor" in node else node

    return json.loads(text, object_hook=as_ref)


def build(tree: Any, tensor: Callable[[int], Any]) -> Any:
    """The state: a new tree, in which `tensor(number)` stands for each Ref to that number."""
    type_ = type(tree)
    if type_ is Ref:
        return tensor(tree.tensor)
    if type_ is list:
        return [build(member, tensor) for member in tree]
    if type_ is tuple:
        return tuple([build(member, tensor) for member in tree])
    if type_ is Ranks:
        return Ranks([build(member, tensor) for member in tree])
    if type_ is dict:
        return {key: build(member, tensor) for key, member in tree.items()}
    if type_ is OrderedDict:
        copy = OrderedDict((key, build(member, tensor)) for key, member in tree.items())
        for name, value in vars(tree).items():
            setattr(copy, name, build(value, tensor))
        return copy
    if type_ is Counter:
        return Counter({key: build(member, tensor) for key, member in tree.items()})
    return tree

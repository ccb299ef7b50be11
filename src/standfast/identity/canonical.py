"""The canonical bytes of a value: the same in every process, on every machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from standfast.errors import UnstableValue, printable, shortened
from standfast.identity import encodings
from standfast.identity.names import type_name
from standfast.identity.reduction import Applied, Content, Encoded, Member, Named, Record, reduced
from standfast.tensors import TensorSpec

MAX_DEPTH: Final = 100
"""How many containers may lie in each other: fewer than Python's stack bears."""

_SINGLE: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): encodings.none,
    bool: encodings.boolean,
    int: encodings.integer,
    float: encodings.real,
    complex: encodings.imaginary,
    str: encodings.text,
    bytes: encodings.octets,
    Named: lambda node: encodings.named(node.name),
    Member: lambda node: encodings.member(node.kind, node.name),
    TensorSpec: encodings.tensor_spec,
    Content: lambda node: encodings.tensor(node.spec, node.digest),
    Encoded: lambda node: node.data,
}


class Canonical:
    """Encodes one value, and knows where in it it is, for the sake of messages.

    `reduce` makes plain values of others. Entries whose dotted path is in `skipped` are left out.
    """

    def __init__(
        self,
        root: str,
        *,
        reduce: Callable[[Any], Any] = reduced,
        skipped: frozenset[str] = frozenset(),
    ) -> None:
        self._root = root
        self._reduce = reduce
        self._skipped = skipped
        self._path: list[Any] = []
        self._open: set[int] = set()

    def encode(self, value: Any) -> bytes:
        """The canonical bytes of the value; raises UnstableValue with the path of what has none."""
        single = _SINGLE.get(type(value))
        if single:
            return single(value)
        node = value if type(value) in _CONTAINERS else self._reduced(value)
        single = _SINGLE.get(type(node))
        return single(node) if single else self._container(value, node)

    def refuse(self, reason: str) -> NoReturn:
        """Raise UnstableValue for the value that is being encoded."""
        raise UnstableValue(f"{self._where()} {reason}")

    def _reduced(self, value: Any) -> Any:
        try:
            return self._reduce(value)
        except UnstableValue as error:
            raise UnstableValue(f"{self._where()} {error}") from error.__cause__

    def _container(self, value: Any, node: Any) -> bytes:
        if id(value) in self._open:
            self.refuse(f"is a {type_name(type(value))} that holds itself: give each value once")
        if len(self._path) == MAX_DEPTH:
            self.refuse(f"lies more than {MAX_DEPTH} levels deep: give values that are flatter")
        self._open.add(id(value))
        self._path.append(None)
        try:
            return _CONTAINERS[type(node)](self, node)
        finally:
            self._path.pop()
            self._open.remove(id(value))

    def _list(self, items: list[Any] | tuple[Any, ...]) -> bytes:
        encoded = []
        for index, item in enumerate(items):
            self._path[-1] = index
            encoded.append(self.encode(item))
        return encodings.sequence(encoded)

    def _set(self, items: set[Any]) -> bytes:
        self._path[-1] = _Element()
        return encodings.unordered([self.encode(item) for item in items])

    def _mapping(self, entries: dict[Any, Any]) -> bytes:
        pairs: dict[bytes, bytes] = {}
        for key, value in entries.items():
            self._path[-1] = key
            if self._skipped and ".".join(map(str, self._path)) in self._skipped:
                continue
            name = self.encode(key)
            if name in pairs:
                self.refuse("has the same key as another entry: give keys that differ as text")
            pairs[name] = self.encode(value)
        return encodings.mapping(pairs.items())

    def _record(self, node: Record) -> bytes:
        return encodings.record(node.kind, self._mapping(node.fields))

    def _applied(self, node: Applied) -> bytes:
        parts = []
        for name in ("function", "arguments", "keywords"):
            self._path[-1] = name
            parts.append(self.encode(getattr(node, name)))
        return encodings.applied(*parts)

    def _where(self) -> str:
        return self._root + "".join(map(path_step, self._path))


_CONTAINERS: Final[dict[type, Callable[[Canonical, Any], bytes]]] = {
    list: Canonical._list,
    tuple: Canonical._list,
    set: Canonical._set,
    frozenset: Canonical._set,
    dict: Canonical._mapping,
    Record: Canonical._record,
    Applied: Canonical._applied,
}


class _Element:
    """The place of an element of a set, which has none."""

    def __str__(self) -> str:
        return "{…}"


def path_step(key: Any) -> str:
    """One step of a value's path, as one would write it: `.name`, `['a name']`, `[0]`."""
    if isinstance(key, str):
        return f".{key}" if key.isidentifier() else f"[{shortened(printable(key))!r}]"
    if isinstance(key, _Element):
        return str(key)
    if key is None or isinstance(key, bool | int | float | bytes):
        return f"[{key!r}]"
    return f"[a {type_name(type(key))}]"

"""The `.metadata` of a torch.distributed.checkpoint folder, without torch and without running code.

The pickle becomes objects of known classes with known fields; `standfast.dcp.folder.contents`
sees to it that they tell one story. `docs/formats/dcp.md` is the page of the bytes, and of what is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from standfast.errors import (
    BadField,
    BadPickle,
    LimitExceeded,
    RefusedPickle,
    StandfastError,
    printable,
    shortened,
)
from standfast.formats.limits import MAX_RANK, MAX_SIZE
from standfast.formats.torch.globals import Globals
from standfast.formats.torch.pickle import _Machine
from standfast.formats.torch.values import CONSTANTS, HINT, Stub, kind_of, name_of, of_type

MAX_METADATA: Final = 1 << 29
"""The longest `.metadata`; that of a million chunks has 100 MB."""


def read_metadata(data: bytes) -> Fields:
    """The fields of the `Metadata` that a `.metadata` holds; whatever is wrong there raises."""
    return Fields(_unpickled(data), "Metadata", "the pickle")


class Key(NamedTuple):
    """A MetadataIndex, as the key of a dictionary."""

    name: str
    offsets: tuple[int, ...] | None


class Object:
    """An object of a class in the table: a name and its fields."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.fields: Any = None
        """None until it is given its state."""


def _unpickled(data: bytes) -> Any:
    if len(data) > MAX_METADATA:
        raise LimitExceeded(f"{len(data):,} bytes, over {MAX_METADATA:,}")
    machine = _Machine(data, False)
    machine.globals = _Names(len(data))
    try:
        return machine.run()
    except RefusedPickle as error:
        raise RefusedPickle(str(error).removesuffix(HINT)) from None


class _Names(Globals):
    """All that a `.metadata` can name or call."""

    def __init__(self, allowance: int) -> None:
        super().__init__(allowance, False)

    def find(self, module: str, name: str) -> Stub | str:
        """A dtype is text, a class of the table a stub; all else is refused."""
        what = f"{module}.{name}"
        if what in CONSTANTS:
            return what
        if what in _CALLS:
            return Stub(what)
        raise RefusedPickle(
            f"{shortened(printable(what))} is none of the names that stand in a .metadata, and "
            "nothing that a file names is ever called"
        )

    def call(self, function: Any, arguments: Any) -> Any:
        """What a call gives: an object without fields, or a plain value."""
        if type(function) is not Stub or type(arguments) is not tuple:
            raise BadPickle(f"expected a class and its arguments, found {kind_of(function)}")
        try:
            return _CALLS[function.what](arguments)
        except StandfastError as error:
            raise type(error)(f"{name_of(function)}: {error}") from None

    def build(self, target: Any, state: Any) -> Any:
        """The object that was given its fields."""
        if type(target) is not Object or target.fields is not None:
            raise BadPickle(f"{what_is(target)} is given a state, and takes none")
        if target.kind == "TensorProperties":
            if type(state) is not tuple or len(state) != 5:
                raise BadPickle("TensorProperties: expected a state of five values")
            state = {"dtype": state[0], "layout": state[1]}
        target.fields = of_type(dict, state)
        return target

    def key(self, value: Any) -> Any:
        """A MetadataIndex as a key; names are text and never come here."""
        if type(value) is not Object or value.kind != "MetadataIndex":
            raise BadPickle(f"{what_is(value)} as a key: expected text or a MetadataIndex")
        fields = Fields(value, "MetadataIndex", "a key")
        name, offsets = checked(str, fields.get("fqn"), "fqn"), fields.get("offset")
        return Key(name, None if offsets is None else checked_counts(offsets, "offset"))

    def storage(self, persistent_id: Any) -> Stub:
        """There is none outside of the items."""
        raise BadPickle("a storage, which has no place in a .metadata")


def what_is(value: Any) -> str:
    """What a value is, for a message."""
    return value.kind if type(value) is Object else kind_of(value)


def _size(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    (lengths,) = _taking(1, arguments)
    return checked_counts(lengths, "a shape")


def _layout(arguments: tuple[Any, ...]) -> Any:
    (name,) = _taking(1, arguments)
    return of_type(str, name)


def _memory_format(arguments: tuple[Any, ...]) -> None:
    """Which of torch's memory formats it is does not matter to anybody."""
    (number,) = _taking(1, arguments)
    if type(number) is not int or number not in (0, 1, 2):
        raise BadPickle("expected 0, 1 or 2")


def _path(arguments: tuple[Any, ...]) -> None:
    """Where the folder was saved to: nothing is ever looked for there."""
    for part in arguments:
        of_type(str, part)


def _ordered_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    _taking(0, arguments)
    return {}


def _taking(count: int, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(arguments) != count:
        raise BadPickle(f"{len(arguments)} arguments, expected {count}")
    return arguments


def _makes(kind: str) -> Callable[[tuple[Any, ...]], Object]:
    def make(arguments: tuple[Any, ...]) -> Object:
        _taking(0, arguments)
        return Object(kind)

    return make


_FIELDS: Final[dict[str, frozenset[str]]] = {
    "Metadata": frozenset(
        "state_dict_metadata planner_data storage_data storage_meta version".split()
    ),
    "StorageMeta": frozenset("checkpoint_id save_id load_id modules".split()),
    "TensorStorageMetadata": frozenset("properties size chunks".split()),
    "TensorProperties": frozenset("dtype layout".split()),
    "ChunkStorageMetadata": frozenset("offsets sizes".split()),
    "BytesStorageMetadata": frozenset(),
    "MetadataIndex": frozenset("fqn offset index".split()),
    "_StorageInfo": frozenset("relative_path offset length transform_descriptors".split()),
}
_MODULE: Final = "torch.distributed.checkpoint"
_EARLIER: Final = "torch.distributed._shard.sharded_tensor.metadata"
_CALLS: Final[dict[str, Callable[[tuple[Any, ...]], Any]]] = {
    **{f"{_MODULE}.metadata.{kind}": _makes(kind) for kind in _FIELDS if kind != "_StorageInfo"},
    f"{_MODULE}.filesystem._StorageInfo": _makes("_StorageInfo"),
    f"{_MODULE}.metadata._MEM_FORMAT_ENCODING": _memory_format,
    f"{_EARLIER}.TensorProperties": _makes("TensorProperties"),
    f"{_EARLIER}.MEM_FORMAT_ENCODING": _memory_format,
    "torch.Size": _size,
    "torch.serialization._get_layout": _layout,
    "collections.OrderedDict": _ordered_dict,
    **{
        f"{module}.{kind}": _path
        for module in ("pathlib", "pathlib._local")
        for kind in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    },
}
"""Who takes the arguments of each name."""


# Fields, and the plain values in them


class Fields:
    """The fields of an object that must be of a certain class."""

    def __init__(self, found: Any, kind: str, where: str) -> None:
        self._where = f"{where}: {kind}"
        if type(found) is not Object or found.kind != kind:
            raise BadField(f"{where}: expected a {kind}, found {what_is(found)}")
        self._fields: dict[str, Any] = found.fields or {}
        for name in self._fields:
            if name not in _FIELDS[kind]:
                shown = repr(shortened(name)) if type(name) is str else "that is no text"
                raise BadField(f"{self._where} has a field {shown}, which is unknown")

    def get(self, name: str) -> Any:
        """A field, or None."""
        return self._fields.get(name)

    def dict(self, name: str) -> dict[Any, Any]:
        """A field that must be a dictionary."""
        found: dict[Any, Any] = checked(dict, self.get(name), f"{self._where}.{name}")
        return found


def checked(kind: type, value: Any, where: str) -> Any:
    """The value, which must be of just this type."""
    if type(value) is not kind:
        raise BadField(f"{where}: expected a {kind.__name__}, found {what_is(value)}")
    return value


def checked_counts(value: Any, where: str) -> tuple[int, ...]:
    """A shape or an offset; its numbers are counts."""
    counts: tuple[int, ...] = checked(tuple, value, where)
    if len(counts) > MAX_RANK:
        raise LimitExceeded(f"{where}: over {MAX_RANK} dimensions")
    for count in counts:
        checked_count(count, where)
    return counts


def checked_count(value: Any, where: str) -> int:
    """A number that counts or measures something."""
    if type(value) is not int or value < 0:
        shown = "a negative number" if type(value) is int else what_is(value)
        raise BadField(f"{where}: expected a count, found {shown}")
    if value > MAX_SIZE:
        raise LimitExceeded(f"{where}: a number over 2^58")
    return value

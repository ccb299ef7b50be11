"""Writes the pickle of a torch checkpoint that is a whole tree, with tensors that share storages.

What comes out is what `torch.load(weights_only=True)` reads as the same tree, and our own reader
too; a value that one of them cannot read is refused with its path.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from standfast.errors import RefusedState, RefusedTensor, printable, shortened
from standfast.formats.torch.pickle_writer import (
    FALSE,
    TORCH_NAME,
    TRUE,
    Heads,
    refuse_shape,
    write_global,
    write_integer,
    write_integers,
    write_text,
)
from standfast.formats.torch.values import STORAGE_OF, WIDTH_OF, StoredTensor
from standfast.formats.zip.tensors import MAX_ENTRY
from standfast.tensors import TensorSpec

_MAX_INTEGER: Final = 255
"""Bytes: torch reads no opcode for longer ones."""
_MAX_KEY: Final = 1 << 64
"""Our reader takes no larger integer for a key."""
_UNREAD: Final = "which torch.load(weights_only=True) does not read"


class TreeTensor(NamedTuple):
    """A tensor in a tree that is to be written."""

    stored: StoredTensor
    wants_gradient: bool = False
    is_parameter: bool = False


def write_tree(tree: Any, tensors: Iterable[TreeTensor]) -> bytes:
    """The pickle of a tree whose tensors are these; raises RefusedState, with the path.

    Containers are dict, OrderedDict (with a `_metadata`), Counter, list and tuple.
    """
    writer = _Writer(tensors)
    try:
        writer.value(tree)
    except _Refused as error:
        raise RefusedState(f"{error.where()}: {error}") from error.__cause__
    pickle = b"".join((b"\x80\x02", *writer.parts, b"."))
    if len(pickle) > MAX_ENTRY:
        raise RefusedState(
            f"the plain values take {len(pickle):,} bytes as a pickle, over {MAX_ENTRY:,}: save "
            "large ones as tensors"
        )
    return pickle


class _Refused(Exception):
    """Why a value is refused; its path grows on the way out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[Any] = []

    def where(self) -> str:
        keys = [printable(shortened(str(key))) for key in reversed(self.path)]
        return shortened(".".join(keys)) if keys else "state"


class _Writer:
    """One walk through a tree."""

    def __init__(self, tensors: Iterable[TreeTensor]) -> None:
        self.parts: list[bytes] = []
        self._heads = Heads()
        self._typed = _typed_storages(tensors)
        self._in_metadata = False

    def value(self, value: Any) -> None:
        scalar = _SCALARS.get(type(value))
        if scalar is not None:
            self.parts.append(scalar(value))
        elif (container := _CONTAINERS.get(type(value))) is not None:
            container(self, value)
        elif type(value) is TreeTensor:
            self._tensor(value)
        else:
            raise _Refused(_unreadable(value))

    def _members(self, members: Iterable[tuple[Any, Any]]) -> None:
        for key, member in members:
            try:
                self.value(member)
            except _Refused as error:
                error.path.append(key)
                raise

    def _items(self, value: dict[Any, Any]) -> None:
        if not value:
            return
        self.parts.append(b"(")
        for key, member in value.items():
            try:
                self.parts.append(_key(key))
                self.value(member)
            except _Refused as error:
                error.path.append(key)
                raise
        self.parts.append(b"u")

    def _dict(self, value: dict[Any, Any]) -> None:
        self.parts.append(b"}")
        self._items(value)

    def _ordered(self, value: OrderedDict[Any, Any]) -> None:
        self.parts.append(self._heads.once(write_global("collections", "OrderedDict")) + b")R")
        self._items(value)
        if "_metadata" in vars(value):  # the versions of the modules of a state dict
            within, self._in_metadata = self._in_metadata, True
            self.parts.append(b"}" + write_text("_metadata"))
            self._members([("_metadata", vars(value)["_metadata"])])
            self.parts.append(b"sb")
            self._in_metadata = within

    def _counter(self, value: Counter[Any]) -> None:
        self.parts.append(self._heads.once(write_global("collections", "Counter")) + b"}")
        self._items(value)
        self.parts.append(b"\x85R")

    def _list(self, value: list[Any]) -> None:
        self.parts.append(b"](")
        self._members(enumerate(value))
        self.parts.append(b"e")

    def _tuple(self, value: tuple[Any, ...]) -> None:
        self.parts.append(b"(")
        self._members(enumerate(value))
        self.parts.append(b"t")

    def _tensor(self, tensor: TreeTensor) -> None:
        stored = tensor.stored
        if self._in_metadata:
            raise _Refused("a tensor in `_metadata`, where no reader looks for one: move it")
        if stored.dtype not in TORCH_NAME:
            raise _Refused(f"torch has no dtype {stored.dtype}: save it in another, or its bytes")
        spec = TensorSpec(stored.dtype, stored.shape)
        try:
            refuse_shape("", spec)
        except RefusedTensor as error:
            raise _Refused(str(error).removeprefix("tensor '': ")) from error
        typed = stored.storage in self._typed
        head, location, tail = self._heads.of("", stored.dtype, typed, tensor.wants_gradient)
        width = WIDTH_OF[stored.dtype]
        count = stored.storage_bytes // (width if typed else 1)
        offset, strides = _in_elements(stored, spec, width)
        sizes = write_integers(spec.array_shape) + write_integers(strides)
        place = write_integer(count) + b"tQ" + write_integer(offset) + sizes
        before, after = b"", b""
        if tensor.is_parameter:
            before = self._heads.once(write_global("torch._utils", "_rebuild_parameter")) + b"("
        self.parts += (before, head, write_text(stored.storage), location, place, tail)
        if tensor.is_parameter:
            hooks = self._heads.once(write_global("collections", "OrderedDict")) + b")R"
            after = (TRUE if tensor.wants_gradient else FALSE) + hooks + b"tR"
            self.parts.append(after)


_CONTAINERS: Final[dict[type, Callable[[_Writer, Any], None]]] = {
    dict: _Writer._dict,
    OrderedDict: _Writer._ordered,
    Counter: _Writer._counter,
    list: _Writer._list,
    tuple: _Writer._tuple,
}


def _typed_storages(tensors: Iterable[TreeTensor]) -> set[str]:
    """The storages that can be of a dtype: all their tensors have the same, and fill it."""
    found: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for tensor in tensors:
        found.setdefault(tensor.stored.storage, set()).add(tensor.stored.dtype)
        sizes[tensor.stored.storage] = tensor.stored.storage_bytes
    return {
        storage
        for storage, dtypes in found.items()
        if len(dtypes) == 1
        and (dtype := next(iter(dtypes))) in STORAGE_OF
        and sizes[storage] % WIDTH_OF[dtype] == 0
    }


def _in_elements(stored: StoredTensor, spec: TensorSpec, width: int) -> tuple[int, list[int]]:
    """The offset and the strides as torch counts them; a step that is never taken is one."""
    strides = [
        stride if length > 1 else width
        for length, stride in zip(spec.array_shape, stored.strides, strict=True)
    ]
    if min(strides, default=0) < 0 or any(step % width for step in (stored.offset, *strides)):
        raise _Refused(
            "it shares the memory of another tensor in a way that torch has not (backwards, or "
            "between two elements): save a copy of it"
        )
    return stored.offset // width, [stride // width for stride in strides]


# Plain values


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 16:
        return write_integer(value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    length = value.bit_length() // 8 + 1
    if length > _MAX_INTEGER:
        raise _Refused(f"an integer of {length:,} bytes, {_UNREAD}: save its text")
    return b"\x8a" + bytes([length]) + value.to_bytes(length, "little", signed=True)


def _float(value: float) -> bytes:
    return b"G" + struct.pack(">d", value)


def _text(value: str) -> bytes:
    try:
        return write_text(value)
    except UnicodeEncodeError as error:
        raise _Refused("text with a lone surrogate, which is no Unicode: save its bytes") from error
    except OverflowError:
        raise _Refused(f"a text of {len(value):,} characters, {_UNREAD}: save a tensor") from None


def _bytes(value: bytes) -> bytes:
    # Protocol 2 has no bytes: it asks for text to be encoded.
    text = _text(value.decode("latin-1"))
    return write_global("_codecs", "encode") + text + write_text("latin1") + b"\x86R"


def _complex(value: complex) -> bytes:
    parts = _float(value.real) + _float(value.imag)
    return write_global("builtins", "complex") + parts + b"\x86R"


_SCALARS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda value: b"N",
    bool: lambda value: TRUE if value else FALSE,
    int: _integer,
    float: _float,
    complex: _complex,
    str: _text,
    bytes: _bytes,
}


def _key(key: Any) -> bytes:
    if type(key) is int and not -_MAX_KEY < key < _MAX_KEY:
        raise _Refused("a key of more than 64 bits: use str(key)")
    return _SCALARS[type(key)](key)


def _unreadable(value: Any) -> str:
    kind = type(value)
    name = (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    )
    advice = "save value.item()" if isinstance(value, np.generic) else "save it as plain values"
    return f"a {printable(shortened(name))}, {_UNREAD}: {advice}"

"""The file formats, one file each, and how the right one is found."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from standfast.errors import UnknownFormat
from standfast.files.layout import Index, Layout
from standfast.formats.npz import file as _npz
from standfast.formats.oxck import file as _oxck
from standfast.formats.reader import Options, Read
from standfast.formats.safetensors import file as _safetensors
from standfast.formats.sunc import file as _sunc
from standfast.formats.tenzor import file as _tenzor
from standfast.formats.torch import file as _torch
from standfast.tensors import TensorSpec


class Format(Protocol):
    """What a format's module provides: pure functions over specs, layouts and bytes."""

    NAME: str
    SUFFIXES: tuple[str, ...]
    DTYPES: frozenset[str]
    """What it can hold."""
    MAX_RANK: int
    STRINGS_ONLY: bool
    """Whether it holds no metadata but strings, unless ours say how to read them."""
    BARE_KEYS: frozenset[str] | None
    """The only metadata keys it holds without our extras; None if any."""
    SEEKS: bool
    """Whether the reader needs the end of the file first."""

    def recognises(self, head: bytes, size: int) -> bool:
        """Whether a file that starts with `head` (up to 1024 bytes) is meant to be of this format.

        Ten bytes are enough, except to tell two kinds of archives apart.
        """
        ...

    def layout(
        self,
        tensors: Sequence[tuple[str, TensorSpec]],
        metadata: Mapping[str, Any] | bytes,
        extras: bool,
    ) -> Layout:
        """Where the tensors go; raises if the format cannot hold them.

        Without `extras` the file has no digests and nothing else of ours.
        """
        ...

    def read_index(self, read: Read, size: int | None, options: Options) -> Index:
        """What the file holds; raises a DamagedFile for bytes that no writer wrote.

        `size` is None for a stream: its end is where the content ends.
        """
        ...


FORMATS: tuple[Format, ...] = tuple(
    cast(Format, module) for module in (_safetensors, _tenzor, _oxck, _sunc, _torch, _npz)
)


_PACKED: Final = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
"""What files begin with that hold another one, and the program that takes it out."""


def format_named(name: str) -> Format:
    """The format of this name."""
    for format in FORMATS:
        if name == format.NAME:
            return format
    known = ", ".join(format.NAME for format in FORMATS)
    raise UnknownFormat(f"there is no format {name!r}; there are {known}")


def format_for_writing(path: str | os.PathLike[str]) -> Format:
    """The format that the path's suffix names."""
    name = os.path.basename(os.fspath(path)).lower()
    for format in FORMATS:
        if name.endswith(format.SUFFIXES):
            return format
    known = ", ".join(suffix for format in FORMATS for suffix in format.SUFFIXES)
    raise UnknownFormat(
        f"{os.fspath(path)}: no format has this suffix; there are {known}, or name it by format="
    )


def format_of_file(path: str | os.PathLike[str], head: bytes, size: int) -> Format:
    """The format of a file that exists: by its content, else by its suffix.

    The suffix makes a damaged file a damaged one, not one of no known format.
    """
    for format in FORMATS:
        if format.recognises(head, size):
            return format
    try:
        return format_for_writing(path)
    except UnknownFormat:
        packed = next((name for start, name in _PACKED.items() if head.startswith(start)), None)
        why = "neither its content nor its suffix is of a known format"
        if packed and ".tar." in os.path.basename(os.fsdecode(path)):
            why = "it is an archive: `standfast unpack` gives the package in it"
        elif packed:
            why = f"it is compressed: `{packed} -d` gives the file in it"
        raise UnknownFormat(f"{os.fspath(path)}: {why}") from None

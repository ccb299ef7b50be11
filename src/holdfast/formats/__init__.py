"""The file formats, one file each, and how the right one is found."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from holdfast.errors import UnknownFormat
from holdfast.files.layout import Index, Layout
from holdfast.formats import safetensors
from holdfast.tensors import TensorSpec


class Format(Protocol):
    """What a format's module provides: pure functions over specs, layouts and header bytes."""

    NAME: str
    SUFFIXES: tuple[str, ...]

    def recognises(self, head: bytes, size: int) -> bool:
        """Whether a file that starts with `head` (up to 64 bytes) is meant to be of this format."""
        ...

    def layout(
        self, tensors: Sequence[tuple[str, TensorSpec]], metadata: Mapping[str, Any]
    ) -> Layout:
        """Where the tensors go; raises if the format cannot hold them."""
        ...

    def read_index(self, read: Callable[[int, int], bytes], size: int, verify: bool) -> Index:
        """What the file holds; raises a DamagedFile for bytes that no writer wrote."""
        ...


FORMATS: tuple[Format, ...] = (cast(Format, safetensors),)


def format_for_writing(path: str | os.PathLike[str]) -> Format:
    """The format that the path's suffix names."""
    name = os.path.basename(os.fspath(path)).lower()
    for format in FORMATS:
        if name.endswith(format.SUFFIXES):
            return format
    known = ", ".join(suffix for format in FORMATS for suffix in format.SUFFIXES)
    raise UnknownFormat(f"{os.fspath(path)}: no format has this suffix; there are {known}")


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
        raise UnknownFormat(
            f"{os.fspath(path)}: neither its content nor its suffix is of a known format"
        ) from None

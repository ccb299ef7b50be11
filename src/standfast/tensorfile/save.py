"""Save tensors to a file, durably."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np

from standfast.errors import (
    RefusedMetadata,
    RefusedTensor,
    UnsupportedDType,
    UnsupportedTensor,
    WriteFailed,
    within_memory,
)
from standfast.files import disk
from standfast.files.layout import Layout
from standfast.files.paths import check_local
from standfast.files.writer import write_file, write_stream
from standfast.formats import Format, format_for_writing, format_named
from standfast.tensorfile.portable import portable
from standfast.tensors import Source, source_of
from standfast.tensors.cast import Cast, CastSource, fitting, is_exact

Tensors = Mapping[str, Any] | Iterable[tuple[str, Any]]


def save(
    target: str | os.PathLike[str] | BinaryIO,
    tensors: Tensors,
    metadata: Mapping[str, Any] | bytes | None = None,
    *,
    format: str | None = None,
    cast: bool = False,
    extras: bool = True,
) -> None:
    """Save named tensors to a file; when this returns, the file is whole and on the disk.

    Until then whatever stood at the path stays as it was. Tensors are NumPy arrays or torch
    tensors, of any strides, in a mapping or as pairs; metadata is any JSON value under string
    keys. A binary stream may stand in the place of the path: it gets the same bytes, in two
    passes over the tensors, one to hash and one to write.

    The suffix of the path names the format, or `format` does; a stream gets safetensors. What
    the format cannot hold is refused by name, or with `cast=True` saved as the nearest that it
    can. `extras=False` leaves out digests, and all else that is ours and not the format's.

    >>> standfast.save("model.safetensors", model.state_dict(), {"step": 100})
    """
    with within_memory():
        if isinstance(target, str | bytes | os.PathLike):
            path = os.fsdecode(target)
            kind = chosen_format(path, format)
            layout, sources = _planned(kind, tensors, metadata, cast=cast, extras=extras)
            write_file(path, layout, sources, disk.LOCAL)
        elif hasattr(target, "write"):
            kind = format_named("safetensors" if format is None else format)
            layout, sources = _planned(kind, tensors, metadata, cast=cast, extras=extras)
            write_stream(target, layout, sources)
        else:
            raise WriteFailed(errno.EINVAL, f"{target!r} is neither a path nor a stream")


def _planned(
    kind: Format, tensors: Tensors, metadata: Any, *, cast: bool, extras: bool
) -> tuple[Layout, list[Source]]:
    """Where everything goes; all that will be refused is refused here."""
    sources = _sources(tensors, kind)
    if cast:
        sources, _ = cast_sources(sources, kind)
    given = {} if metadata is None else metadata
    _check_kind(given, kind)
    if cast and isinstance(given, Mapping):
        given, _ = portable(given, kind, cast=True, extras=extras)
    layout = kind.layout([(name, source.spec) for name, source in sources], given, extras)
    return layout, [source for _, source in sources]


def chosen_format(path: str, name: str | None) -> Format:
    """The format of this name, or the path's suffix; raises BadOption if the path is a URL."""
    check_local(path)
    return format_for_writing(path) if name is None else format_named(name)


def _check_kind(metadata: Any, format: Format) -> None:
    verbatim = isinstance(metadata, bytes) and getattr(format, "VERBATIM", False)
    if not isinstance(metadata, Mapping) and not verbatim:
        raise RefusedMetadata(f"metadata is a {type(metadata).__name__}: it must be a mapping")


def cast_sources(
    sources: list[tuple[str, Source]], format: Format
) -> tuple[list[tuple[str, Source]], list[Cast]]:
    """The sources as the format can hold them, and what had to be cast for it."""
    fitted: list[tuple[str, Source]] = []
    casts = []
    for name, source in sources:
        before = source.spec
        after = fitting(before, format.DTYPES, format.MAX_RANK)
        if after is None:
            raise UnsupportedDType(
                f"tensor {name!r}: {format.NAME} has no dtype that {before.dtype} can be cast to"
            )
        if after != before:
            casts.append(Cast(name, before, after, is_exact(before.dtype, after.dtype)))
            source = CastSource(source, after)
        fitted.append((name, source))
    return fitted, casts


def _sources(tensors: Tensors, format: Format) -> list[tuple[str, Source]]:
    refusal = UnsupportedTensor(
        f"a {type(tensors).__name__} is no mapping of names to tensors, nor pairs of them"
    )
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    if not isinstance(pairs, Iterable):
        raise refusal
    sources = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise refusal
        name, value = pair
        if getattr(format, "RECORDS", False):
            value = _records_as_bytes(value)
        try:
            sources.append((name, source_of(value)))
        except RefusedTensor as error:
            error.args = (f"tensor {name!r}: {error}",)
            raise
    return sources


def _records_as_bytes(value: Any) -> Any:
    """A structured array as rows of bytes; anything else as it is."""
    if not isinstance(value, np.ndarray) or value.dtype.names is None or value.dtype.hasobject:
        return value
    rows = np.ascontiguousarray(value)
    return rows.view(np.uint8).reshape(*value.shape, value.dtype.itemsize)

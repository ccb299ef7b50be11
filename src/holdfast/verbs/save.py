"""Save tensors to a file, durably."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from holdfast.errors import RefusedMetadata, RefusedTensor, UnsupportedTensor, WriteFailed
from holdfast.files import disk
from holdfast.files.writer import write_file, write_stream
from holdfast.formats import format_for_writing
from holdfast.tensors import Source, source_of

Tensors = Mapping[str, Any] | Iterable[tuple[str, Any]]


def save(
    target: str | os.PathLike[str] | BinaryIO,
    tensors: Tensors,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Save named tensors to a file; when this returns, the file is whole and on the disk.

    Until then whatever stood at the path stays as it was. Tensors are NumPy arrays or torch
    tensors, of any strides, in a mapping or as pairs; metadata is any JSON value under string
    keys. A binary stream may stand in the place of the path: it gets the same bytes, in two
    passes over the tensors, one to hash and one to write.

    >>> holdfast.save("model.safetensors", model.state_dict(), {"step": 100})
    """
    if isinstance(target, str | bytes | os.PathLike):
        stream, path = None, os.fsdecode(target)
    elif hasattr(target, "write"):
        stream, path = target, "stream.safetensors"
    else:
        raise WriteFailed(errno.EINVAL, f"{target!r} is neither a path nor a stream")
    format = format_for_writing(path)
    if metadata is not None and not isinstance(metadata, Mapping):
        raise RefusedMetadata(f"metadata is a {type(metadata).__name__}: it must be a mapping")
    sources = _sources(tensors)
    layout = format.layout([(name, source.spec) for name, source in sources], metadata or {})
    if stream is not None:
        write_stream(stream, layout, [source for _, source in sources])
    else:
        write_file(path, layout, [source for _, source in sources], disk.LOCAL)


def _sources(tensors: Tensors) -> list[tuple[str, Source]]:
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
        try:
            sources.append((name, source_of(value)))
        except RefusedTensor as error:
            error.args = (f"tensor {name!r}: {error}",)
            raise
    return sources

"""NumPy's `.npz` as pure functions: specs to a layout, bytes to an index.

`docs/formats/npz.md` is the page of the bytes, and of what is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from standfast.errors import (
    BadField,
    BadName,
    DamagedFile,
    DuplicateKey,
    SizeMismatch,
    shortened,
)
from standfast.files.deflate import inflated_start
from standfast.files.layout import Deflated, Form, Index, Layout
from standfast.formats.limits import MAX_NAME, refuse
from standfast.formats.limits import MAX_RANK as MAX_RANK
from standfast.formats.npz.npy_header import (
    MAX_HEADER,
    ArrayHeader,
    header_size,
    read_header,
    write_header,
)
from standfast.formats.reader import Options, Read
from standfast.formats.zip.archive import Entry, read_archive
from standfast.formats.zip.tensors import (
    ArchiveBuilder,
    check_digests,
    columns,
    read_own,
    refuse_bare_metadata,
)
from standfast.tensors import TensorSpec

NAME: Final = "npz"
SUFFIXES: Final = (".npz",)
STRINGS_ONLY: Final = False
BARE_KEYS: Final[frozenset[str] | None] = frozenset()
SEEKS: Final = True

DTYPES: Final = frozenset(
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 "
    "float16 float32 float64 complex64 complex128".split()
)
"""The others would come back from NumPy as raw bytes without a type."""

_SUFFIX: Final = ".npy"
_OWN: Final = "standfast.json"


def recognises(head: bytes, size: int) -> bool:
    """Whether a file with these first bytes is meant to be one of this format."""
    return head.startswith((b"PK\3\4", b"PK\5\6"))


# Writing


def layout(
    tensors: Sequence[tuple[str, TensorSpec]], metadata: Mapping[str, Any], extras: bool
) -> Layout:
    """Where these tensors go: an entry each, not compressed, its elements aligned to 64 bytes."""
    refuse(tensors, NAME, DTYPES)
    builder = ArchiveBuilder()
    for name, spec in tensors:
        if len((name + _SUFFIX).encode()) > MAX_NAME or "\0" in name:
            raise BadName(f"tensor {shortened(name)!r}: too long for a zip entry, or with a NUL")
        builder.add_tensor(name + _SUFFIX, write_header(spec), spec.nbytes)
    if extras:
        # numpy.load lists every entry of the directory, so ours is not in it.
        builder.add_own(_OWN, metadata, listed=False)
    else:
        refuse_bare_metadata(metadata)
    return builder.layout(extras)


# Reading


def read_index(read: Read, size: int | None, options: Options) -> Index:
    """The index of a file of `size` bytes."""
    assert size is not None
    archive = read_archive(read, size)
    rows: dict[str, int] = {}
    headers, crcs, starts, sizes = [], [], [], []
    forms = {}
    for row, entry in enumerate(archive.entries):
        name = _name(entry)
        if name in rows:
            raise DuplicateKey(f"two entries are the array {shortened(name)!r}")
        rows[name] = row
        header, before = _header(read, entry)
        headers.append(header)
        crcs.append((before, entry.crc))
        if form := _form(entry, header):
            forms[row] = form
        # What lies there compressed starts with its header, and is skipped when inflated.
        skip = 0 if entry.deflated else header.size
        starts.append(entry.data_at + skip)
        sizes.append(entry.stored_size - skip)
    own = None
    if archive.unlisted:
        if [entry.name for entry in archive.unlisted] != [_OWN]:
            raise BadField("entries that the directory does not list, and none of them is ours")
        own = read_own(read, archive.unlisted[0])
    begins, lengths = columns(starts), columns(sizes)
    return Index(
        format=NAME,
        metadata=own["metadata"] if own else {},
        rows=rows,
        dtypes=[header.dtype for header in headers],
        shapes=[header.shape for header in headers],
        starts=begins,
        sizes=lengths,
        end=size,
        digests=check_digests(read, size, archive, own, begins, lengths)
        if options.verify
        else None,
        crcs=crcs,
        forms=forms,
    )


def _name(entry: Entry) -> str:
    if not entry.name.endswith(_SUFFIX):
        raise BadField(
            f"entry {shortened(entry.name)!r} (offset {entry.header_at:,}): its name does not end "
            "in .npy, so it is no array"
        )
    return entry.name.removesuffix(_SUFFIX)


def _header(read: Read, entry: Entry) -> tuple[ArrayHeader, int]:
    """The header of an array, and its CRC-32, from which that of the elements goes on."""
    try:
        # Few headers are longer than NumPy's shortest.
        start = _start(read, entry, 128)
        if header_size(start) > len(start):
            start = _start(read, entry, MAX_HEADER)
        header = read_header(start)
    except DamagedFile as error:
        where = f"entry {shortened(entry.name)!r} (offset {entry.header_at:,})"
        raise type(error)(f"{where}: {error}") from error
    nbytes = TensorSpec(header.dtype, header.shape).nbytes
    if header.size + nbytes != entry.size:
        where = f"entry {shortened(entry.name)!r} (offset {entry.header_at:,})"
        raise SizeMismatch(
            f"{where}: {header.dtype} of shape {list(header.shape)} and its header take "
            f"{header.size + nbytes:,} bytes, but the entry has {entry.size:,}"
        )
    return header, zlib.crc32(start[: header.size])


def _start(read: Read, entry: Entry, length: int) -> bytes:
    if not entry.deflated:
        return read(entry.data_at, min(entry.size, length))
    data = read(entry.data_at, min(entry.stored_size, MAX_HEADER))
    return inflated_start(data, min(entry.size, length))


def _form(entry: Entry, header: ArrayHeader) -> Form | None:
    spec = TensorSpec(header.dtype, header.shape)
    strides = None
    if header.fortran_order and spec.size and sum(n > 1 for n in header.shape) > 1:
        step = spec.kind.numpy.itemsize
        steps = []
        for n in header.shape:
            steps.append(step)
            step *= n
        strides = tuple(steps)
    swapped = header.big_endian and spec.kind.numpy.itemsize > 1
    deflated = (
        Deflated(entry.size, header.size, entry.crc, _name(entry)) if entry.deflated else None
    )
    if strides is None and not swapped and deflated is None:
        return None
    return Form(strides, swapped, deflated=deflated)

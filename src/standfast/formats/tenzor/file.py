"""The `.tenzor` format as pure functions: specs to a layout, bytes to an index.

`docs/formats/tenzor.md` is the page of the bytes, and of what is refused.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from standfast.errors import (
    BadField,
    BadHeader,
    BadName,
    DuplicateKey,
    DuplicateName,
    LimitExceeded,
    RefusedMetadata,
    SizeMismatch,
    TruncatedFile,
    UnknownDType,
    UnsupportedFile,
    UnsupportedShape,
    shortened,
)
from standfast.files.digests import DIGEST, chunk_counts
from standfast.files.disk import ALIGNMENT
from standfast.files.layout import Index, Late, Layout, Sums
from standfast.formats.limits import refuse
from standfast.formats.reader import Options, Read, Start, check_end
from standfast.formats.seal import chunk_count, chunks_size
from standfast.formats.tenzor.metadata import (
    Metadata,
    checkpoint_metadata,
    own_members,
    own_size,
    parse_metadata,
    seal_head,
    user_members,
)
from standfast.formats.tenzor.names import hash_name, hash_names
from standfast.tensors import DTYPES as ALL_DTYPES
from standfast.tensors import TensorSpec

__all__ = ["checkpoint_metadata", "hash_name", "layout", "read_index"]

NAME: Final = "tenzor"
SUFFIXES: Final = (".tenzor",)
MAX_RANK: Final = 5
STRINGS_ONLY: Final = False
BARE_KEYS: Final[frozenset[str] | None] = None
SEEKS: Final = False
VERBATIM: Final = True
"""Metadata may be given as bytes."""

MAGIC: Final = b"TENZOR\0\0"
MAX_METADATA: Final = 1 << 28
MAX_TENSORS: Final = 1 << 24
MAX_SIZE: Final = 1 << 62

CODES: Final = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)
"""The dtypes by their codes."""
DTYPES: Final = frozenset(CODES)

_HEADER: Final = struct.Struct("<8s4I2QI20s")
_ENTRY: Final = np.dtype(
    [
        ("hash", "<u8"),
        ("dtype", "u1"),
        ("ndim", "u1"),
        ("padding", "V2"),
        ("shape", "<u4", 5),
        ("offset", "<u8"),
        ("size", "<u8"),
    ]
)
_WIDTHS: Final = np.array([ALL_DTYPES[name].numpy.itemsize for name in CODES])

Array = np.ndarray[Any, Any]


def recognises(head: bytes, size: int) -> bool:
    """Whether a file with these first bytes is meant to be one of this format."""
    return head.startswith(MAGIC)


# Writing


def layout(
    tensors: Sequence[tuple[str, TensorSpec]], metadata: Mapping[str, Any] | bytes, extras: bool
) -> Layout:
    """Where these tensors go: back to back, the widest items first, and otherwise as given.

    The original maps the file and accepts no tensor that is misaligned; the format has no gaps.
    Metadata given as bytes, a JSON object, is written as it is.
    """
    refuse(tensors, NAME, DTYPES, MAX_RANK)
    members = user_members(metadata)
    given = tensors
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i][1].kind.numpy.itemsize)
    tensors = [tensors[i] for i in order]
    entries = _entries(tensors)
    sizes = [spec.nbytes for _, spec in tensors]
    names = [name for name, _ in tensors]
    ours = own_size(names, chunks_size(chunk_count(sizes))) if extras else 0
    metadata_size = 2 + ours + len(members) + (1 if ours and members else 0)
    if isinstance(metadata, bytes) and not extras:
        metadata_size = len(metadata)
    if metadata_size > MAX_METADATA:
        raise RefusedMetadata(f"{metadata_size:,} bytes of metadata and names, over {MAX_METADATA}")
    index_at = 64 + _rounded(metadata_size, 8)
    data_at = _rounded(index_at + entries.nbytes, ALIGNMENT)
    header = _HEADER.pack(MAGIC, 1, 0, len(tensors), 0, index_at, data_at, metadata_size, bytes(20))

    def make(sums: Sums) -> bytes:
        if extras:
            digests = _reordered(sums.digests(), [spec.nbytes for _, spec in given], order)
            text = b"{%b}" % b",".join(filter(None, (own_members(names, digests), members)))
        else:
            text = metadata if isinstance(metadata, bytes) else b"{%b}" % members
        before_index = (header + text).ljust(index_at, b"\0")
        head = (before_index + entries.tobytes()).ljust(data_at, b"\0")
        return seal_head(head) if extras else head

    return Layout(order, data_at + sum(sizes), head=Late(data_at, make), digested=extras)


def _reordered(digests: bytes, sizes: Sequence[int], order: Sequence[int]) -> bytes:
    """The chunk digests of tensors of these sizes, with the tensors in another order."""
    ends = np.cumsum(chunk_counts(np.array(sizes, np.int64))) * DIGEST
    starts = [0, *ends.tolist()]
    return b"".join(digests[starts[i] : starts[i + 1]] for i in order)


def _entries(tensors: Sequence[tuple[str, TensorSpec]]) -> Array:
    entries = np.zeros(len(tensors), _ENTRY)
    entries["hash"] = hash_names([name for name, _ in tensors])
    _refuse_collisions(tensors, entries["hash"])
    for i, (name, spec) in enumerate(tensors):
        if any(n > 0xFFFFFFFF for n in spec.shape):
            raise UnsupportedShape(
                f"tensor {name!r}: a dimension of {list(spec.shape)} over 2^32-1"
            )
        entries["dtype"][i] = CODES.index(spec.dtype)
        entries["ndim"][i] = len(spec.shape)
        entries["shape"][i, : len(spec.shape)] = spec.shape
    entries["size"] = [spec.nbytes for _, spec in tensors]
    entries["offset"] = np.cumsum(entries["size"]) - entries["size"]
    return entries


def _refuse_collisions(tensors: Sequence[tuple[str, TensorSpec]], hashes: Array) -> None:
    order = np.argsort(hashes, kind="stable")
    twice = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if twice.size:
        first, second = order[twice[0]], order[twice[0] + 1]
        raise DuplicateName(
            f"tensors {tensors[first][0]!r} and {tensors[second][0]!r}: both names have the hash "
            f"{int(hashes[first]):#018x}, and the format keeps only hashes; rename one"
        )


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


# Reading


def read_index(read: Read, size: int | None, options: Options) -> Index:
    """The index of a file of `size` bytes, or of a stream."""
    start = Start(read, size)
    count, index_at, data_at, metadata_size = _read_header(start.take(0, 64, "the header"))
    head = start.take(0, data_at, f"the metadata and the index of {count:,} tensors")
    metadata = parse_metadata(head[64 : 64 + metadata_size])
    _check_zeros(head, 64 + metadata_size, index_at)
    _check_zeros(head, index_at + 48 * count, data_at)
    entries = np.frombuffer(head, _ENTRY, count, index_at)
    _check_entries(entries, index_at)
    sizes = entries["size"].astype(np.int64)
    end = data_at + int(sizes.sum())
    check_end(end, size, "the last tensor" if count else "the index")
    names = _names(entries["hash"], metadata, options.names)
    digests = None
    if options.verify:
        digests = metadata.check_digests(head, sizes)
    return Index(
        format=NAME,
        metadata=metadata.user,
        rows=dict(zip(names, range(count), strict=True)),
        dtypes=np.array(CODES, object)[entries["dtype"]].tolist(),
        shapes=_Shapes(entries),
        starts=data_at + entries["offset"].astype(np.int64),
        sizes=sizes,
        end=end,
        digests=digests,
        text=metadata.text,
    )


def _read_header(header: bytes) -> tuple[int, int, int, int]:
    """The count of tensors, where index and data start, the size of the metadata."""
    magic, version, flags, count, padding, index_at, data_at, metadata_size, reserved = (
        _HEADER.unpack(header)
    )
    if magic != MAGIC:
        raise BadHeader(f"field magic (offset 0): expected {MAGIC!r}, found {magic!r}")
    if version != 1:
        raise UnsupportedFile(f"field version (offset 8): {version}; only version 1 is known")
    if flags:
        raise UnsupportedFile(f"field flags (offset 12): {flags:#x}; none are known")
    if padding or any(reserved):
        raise BadField("fields padding (offset 20) and reserved (offset 44): expected zeros")
    if count > MAX_TENSORS:
        raise LimitExceeded(f"field tensor_count (offset 16): {count:,}, over {MAX_TENSORS:,}")
    if metadata_size > MAX_METADATA:
        raise LimitExceeded(
            f"field metadata_size (offset 40): {metadata_size:,}, over {MAX_METADATA:,}"
        )
    expected = 64 + _rounded(metadata_size, 8)
    if index_at != expected:
        raise BadField(f"field index_offset (offset 24): {index_at:,}, expected {expected:,}")
    expected = _rounded(index_at + count * 48, ALIGNMENT)
    if data_at != expected:
        raise BadField(f"field data_offset (offset 32): {data_at:,}, expected {expected:,}")
    return count, index_at, data_at, metadata_size


def _check_zeros(head: bytes, begin: int, end: int) -> None:
    if any(head[begin:end]):
        raise BadField(f"offset {begin:,}: expected zeros up to {end:,}")


def _check_entries(entries: Array, index_at: int) -> None:
    """Every entry, all at once; the first wrong one is then explained."""
    shape = np.ascontiguousarray(entries["shape"].T)  # five long rows are quickly gone through
    unused = np.arange(5)[:, None] >= entries["ndim"]
    dims = np.where(unused, 1, shape).astype(np.float64)
    known = entries["dtype"] < len(CODES)
    widths = _WIDTHS[np.where(known, entries["dtype"], 0)]
    # In floating point nothing overflows; what is small enough for it is then computed exactly.
    small = np.where(dims == 0, 1, dims).prod(axis=0) * widths <= MAX_SIZE
    exact = np.where(small, dims, 0).astype(np.int64).prod(axis=0) * widths
    sized = small & (exact.astype(np.uint64) == entries["size"])
    ends = np.cumsum(entries["size"], dtype=np.uint64)
    before = ends - entries["size"]
    placed = entries["offset"] == before
    plain = entries["padding"] == np.void(b"\0\0")
    sound = known & (entries["ndim"] <= 5) & sized & placed & plain
    sound &= ~(unused & (shape != 0)).any(axis=0)
    if not sound.all():
        row = int(np.flatnonzero(~sound)[0])
        _explain(entries[row], f"entry {row} (offset {index_at + 48 * row:,})", int(before[row]))
    # Sizes that are sound one by one may add up to more than an integer holds.
    if entries["size"].sum(dtype=np.float64) > MAX_SIZE:
        raise TruncatedFile(
            "the tensors have more bytes than any file, by their sizes in the index"
        )


def _explain(entry: Any, where: str, expected: int) -> None:
    where = f"{where}, {int(entry['hash']):#018x}"
    code, ndim, shape = int(entry["dtype"]), int(entry["ndim"]), entry["shape"].tolist()
    if code >= len(CODES):
        raise UnknownDType(f"{where}: field dtype: {code}, over {len(CODES) - 1}")
    if ndim > 5:
        raise BadField(f"{where}: field ndim: {ndim}, over 5")
    if bytes(entry["padding"]) != b"\0\0":
        raise BadField(f"{where}: field padding: expected zeros")
    if any(shape[ndim:]):
        raise BadField(f"{where}: field shape: {shape} has more than {ndim} dimensions")
    nbytes = math.prod(shape[:ndim]) * int(_WIDTHS[code])
    if math.prod(filter(None, shape[:ndim])) * int(_WIDTHS[code]) > MAX_SIZE:
        raise LimitExceeded(f"{where}: field shape: no array can have {shape[:ndim]}")
    if nbytes != int(entry["size"]):
        raise SizeMismatch(
            f"{where}: {CODES[code]} of shape {shape[:ndim]} takes {nbytes:,} bytes, but field "
            f"size says {int(entry['size']):,}"
        )
    raise BadField(f"{where}: field data offset: {int(entry['offset']):,}, expected {expected:,}")


def _names(hashes: Array, metadata: Metadata, given: Sequence[str] | None) -> list[str]:
    """The tensors' names: out of the metadata, or from the caller, or the hash itself."""
    order = np.sort(hashes)
    if (order[1:] == order[:-1]).any():
        twice = int(order[:-1][order[1:] == order[:-1]][0])
        raise DuplicateKey(f"field name_hash: two tensors have {twice:#018x}")
    if metadata.names is not None:
        names = metadata.names
        if len(names) != len(hashes):
            raise BadField(
                f"metadata key standfast.names: {len(names):,} names for {len(hashes):,} tensors"
            )
        wrong = np.flatnonzero(hash_names(names) != hashes)
        if wrong.size:
            name = names[wrong[0]]
            raise BadField(
                f"metadata key standfast.names: {shortened(name)!r} has not the hash "
                f"{int(hashes[wrong[0]]):#018x} of its tensor"
            )
        return names
    return _names_given(hashes, given or [])


def _names_given(hashes: Array, given: Sequence[str]) -> list[str]:
    try:
        hashes_given = hash_names(given).tolist()
    except (TypeError, UnicodeEncodeError) as error:
        raise BadName(f"the names given are not all valid Unicode strings: {error}") from error
    by_hash: dict[int, str] = {}
    for name, value in zip(given, hashes_given, strict=True):
        if by_hash.setdefault(value, name) != name:
            raise DuplicateName(
                f"names {by_hash[value]!r} and {name!r}: both have the hash {value:#018x}"
            )
    names = [by_hash.get(value, f"{value:#018x}") for value in hashes.tolist()]
    if len(set(names)) < len(names):
        raise DuplicateName("a name that was given is the hash of another tensor")
    return names


class _Shapes(Sequence[tuple[int, ...]]):
    """The shapes, each made when it is asked for: of a hundred thousand most never are."""

    def __init__(self, entries: Array) -> None:
        self._shapes = entries["shape"]
        self._ndims = entries["ndim"]

    def __len__(self) -> int:
        return len(self._ndims)

    def __getitem__(self, row: Any) -> Any:
        return tuple(self._shapes[row, : self._ndims[row]].tolist())

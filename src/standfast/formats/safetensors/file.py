"""The safetensors format as pure functions: specs to a layout, header bytes to an index.

`docs/formats/safetensors.md` is the page of the bytes, and of what is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from standfast.errors import (
    BadHeader,
    BadRange,
    LimitExceeded,
    RefusedTensor,
    SizeMismatch,
    TrailingBytes,
    TruncatedFile,
    UnknownDType,
    shortened,
)
from standfast.files.digests import DIGEST
from standfast.files.disk import ALIGNMENT
from standfast.files.layout import Index, Late, Layout, Sums
from standfast.formats.limits import MAX_NAME, MAX_RANK, refuse
from standfast.formats.metadata import from_strings, to_strings
from standfast.formats.reader import Options, Read
from standfast.formats.safetensors.header import Entries, Entry, locate, parse_header
from standfast.formats.seal import (
    CHUNKS_KEY,
    KEY,
    ZEROS,
    check_seal,
    chunk_count,
    chunks_text,
    parse_chunks,
    sealed,
)
from standfast.tensors import DTYPES as ALL_DTYPES
from standfast.tensors import TensorSpec

NAME: Final = "safetensors"
SUFFIXES: Final = (".safetensors",)
STRINGS_ONLY: Final = True
BARE_KEYS: Final[frozenset[str] | None] = None
SEEKS: Final = False

MAX_HEADER: Final = 100_000_000
"""As in the reference library; it bounds the number of tensors and the metadata too."""
MAX_BITS: Final = 1 << 62

DTYPE_OF: Final = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn",
    "F6_E2M3": "float6_e2m3fn",
    "F6_E3M2": "float6_e3m2fn",
}
CODE_OF: Final = {dtype: code for code, dtype in DTYPE_OF.items()}
DTYPES: Final = frozenset(CODE_OF)
BITS_OF: Final = {code: ALL_DTYPES[dtype].bits for code, dtype in DTYPE_OF.items()}

# Our two keys stand first, so that the digest that covers the header has a fixed place in it.
# Transformers reads a file that has metadata only if it names a framework there.
_FRAMEWORK: Final = {"format": "pt", "standfast.format": "added"}
_OURS: Final = b'"standfast.digest":"'
_START: Final = b'{"__metadata__":{' + _OURS
_DIGEST_AT: Final = 8 + len(_START)


def recognises(head: bytes, size: int) -> bool:
    """Whether a file with these first bytes is meant to be one of this format."""
    return size >= 10 and head[8:9] == b"{"


# Writing


def layout(
    tensors: Sequence[tuple[str, TensorSpec]], metadata: Mapping[str, Any], extras: bool
) -> Layout:
    """Where these tensors go; raises before anything is written if the format cannot hold them.

    The header lists them in the order given. Their bytes lie in the order of their width, the
    widest first, because the format allows no gaps and so keeps each of them aligned.
    """
    refuse(tensors, NAME, DTYPES, MAX_RANK, reserved=["__metadata__"])
    sizes = [spec.nbytes for _, spec in tensors]
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i][1].kind.numpy.itemsize)
    starts = [0] * len(tensors)
    end = 0
    for i in order:
        starts[i] = end
        end += sizes[i]
    entries = {
        name: Entry(CODE_OF[spec.dtype], spec.shape, (start, start + size))
        for (name, spec), start, size in zip(tensors, starts, sizes, strict=True)
    }
    strings = strings_of(metadata, extras)
    head = Header(strings, entries, chunk_count(sizes) if extras else None)
    if head.size - 8 > MAX_HEADER:
        raise RefusedTensor(
            f"the header would take {head.size - 8:,} bytes, over the format's limit of "
            f"{MAX_HEADER:,}: save fewer tensors to a file, or less metadata"
        )
    return Layout(order, head.size + end, Late(head.size, head.make), digested=extras)


def strings_of(metadata: Mapping[str, Any], extras: bool = True) -> dict[str, str]:
    """The metadata as the header has it."""
    strings = to_strings(metadata, typed=extras)
    if extras and "format" not in strings:
        strings |= _FRAMEWORK
    return strings


class Header:
    """The header of a file, but for the digests."""

    def __init__(
        self, strings: dict[str, str], entries: Entries, chunks: int | None, room: int = 0
    ) -> None:
        # Both are JSON objects: their braces are left off, to join them to what stands around.
        self._strings = msgspec.json.encode(strings)[1:-1]
        self._entries = msgspec.json.encode(entries)[1:-1]
        self._sealed = chunks is not None
        self._room = room
        self.size = len(self._padded(bytes((chunks or 0) * DIGEST)))
        """From its length to its padding, whatever the digests are; `room` at least."""

    def make(self, sums: Sums) -> bytes:
        """The whole header, with the digests in it."""
        return self.with_digests(sums.digests() if self._sealed else b"")

    def with_digests(self, digests: bytes) -> bytes:
        """The whole header, with these digests in it."""
        text = self._padded(digests)
        return sealed(text, _DIGEST_AT) if self._sealed else text

    def _padded(self, digests: bytes) -> bytes:
        ours = b""
        if self._sealed:
            ours = b"".join((_OURS, ZEROS, b'","standfast.chunks":"', chunks_text(digests), b'"'))
        members = []
        if strings := b",".join(filter(None, (ours, self._strings))):
            members.append(b'"__metadata__":{%b}' % strings)
        if self._entries:
            members.append(self._entries)
        text = b"{%b}" % b",".join(members)
        length = -(-max(8 + len(text), self._room) // ALIGNMENT) * ALIGNMENT - 8
        return length.to_bytes(8, "little") + text.ljust(length)


# Reading


def read_index(read: Read, size: int | None, options: Options) -> Index:
    """The index of a file of `size` bytes, or of a stream.

    Every way in which the header can be wrong raises its own error. `verify=False` leaves out
    the header's digest alone.
    """
    if size is not None and size < 8:
        raise TruncatedFile(f"the file has {size} bytes; its header length alone takes 8")
    length = int.from_bytes(read(0, 8), "little")
    if length > MAX_HEADER:
        raise LimitExceeded(f"header length (offset 0): {length:,}, over {MAX_HEADER:,}")
    if size is not None and length > size - 8:
        raise TruncatedFile(
            f"header length (offset 0): {length:,}, but the file ends after {size - 8:,} more bytes"
        )
    header = read(0, 8 + length)
    if header[8:9] != b"{":
        raise BadHeader(f"offset 8: expected '{{', found {header[8:9]!r}")
    strings, entries = parse_header(header)
    begins, ends = _check_entries(entries, header)
    end = _check_ranges(list(entries), begins, ends, None if size is None else size - len(header))
    sizes = ends - begins
    return Index(
        format=NAME,
        metadata=_user_metadata(strings),
        rows=dict(zip(entries, range(len(entries)), strict=True)),
        dtypes=[DTYPE_OF[entry.dtype] for entry in entries.values()],
        shapes=[entry.shape for entry in entries.values()],
        starts=begins + len(header),
        sizes=sizes,
        end=len(header) + end,
        digests=_read_digests(strings, header, sizes) if options.verify else None,
    )


def _user_metadata(strings: Mapping[str, str]) -> dict[str, Any]:
    metadata = from_strings(strings)
    if _FRAMEWORK.items() <= strings.items():
        del metadata["format"]
    return metadata


def _check_entries(entries: Entries, header: bytes) -> tuple[np.ndarray[Any, Any], ...]:
    """Names, dtypes, shapes and sizes; returns where the byte ranges begin and end."""
    flat = np.fromiter(
        chain.from_iterable([entry.data_offsets for entry in entries.values()]), np.int64
    )
    begins, ends = flat[0::2], flat[1::2]
    try:
        bits = [math.prod(e.shape) * BITS_OF.get(e.dtype, 0) for e in entries.values()]
        sound = (np.array(bits, np.int64) == 8 * (ends - begins)) & (begins < ends)
    except OverflowError:
        sound = np.zeros(len(entries), bool)
    longest = max(map(len, entries), default=0)
    if longest > MAX_NAME // 4 or not sound.all():
        # Perhaps only an empty tensor or a long name: the slow way finds out, and explains.
        for (name, entry), fine in zip(entries.items(), sound, strict=True):
            if not fine or len(name) > MAX_NAME // 4:
                _check_entry(name, entry, header)
    return begins, ends


def _check_entry(name: str, entry: Entry, header: bytes) -> None:
    bits = BITS_OF.get(entry.dtype)
    begin, end = entry.data_offsets
    if bits is None:
        raise UnknownDType(f"{locate(name, header)}: field dtype: {entry.dtype!r:.80}")
    if math.prod(entry.shape) * bits != 8 * (end - begin):
        raise SizeMismatch(
            f"{locate(name, header)}: {entry.dtype} of shape {list(entry.shape)} takes "
            f"{math.prod(entry.shape) * bits:,} bits, but field data_offsets "
            f"[{begin}, {end}] spans {end - begin:,} bytes"
        )
    if math.prod(filter(None, entry.shape)) * bits > MAX_BITS:
        raise LimitExceeded(
            f"{locate(name, header)}: field shape: no array can have {list(entry.shape)}"
        )
    if len(name.encode()) > MAX_NAME:
        raise LimitExceeded(f"{locate(name, header)}: a name of over {MAX_NAME:,} bytes")


def _check_ranges(
    names: list[str],
    begins: np.ndarray[Any, Any],
    ends: np.ndarray[Any, Any],
    available: int | None,
) -> int:
    """The ranges must cover the data section, each byte once, in some order; returns its size."""
    order = np.lexsort((ends, begins))
    expected = np.concatenate(([0], ends[order]))
    wrong = np.flatnonzero(begins[order] != expected[:-1])
    if wrong.size:
        row, should = order[wrong[0]], int(expected[wrong[0]])
        what = "a hole before it" if begins[row] > should else "it overlaps another tensor"
        raise BadRange(
            f"tensor {shortened(names[row])!r}: field data_offsets starts at {int(begins[row]):,}, "
            f"expected {should:,} ({what})"
        )
    end = int(expected[-1])
    if available is None:
        return end
    if end > available:
        first = order[np.flatnonzero(ends[order] > available)[0]]
        raise TruncatedFile(
            f"tensor {shortened(names[first])!r}: the data section has {available:,} bytes, "
            f"but the tensor ends at {int(ends[first]):,} of {end:,}"
        )
    if end < available:
        raise TrailingBytes(
            f"{available - end:,} bytes follow the last tensor, which ends the file"
        )
    return end


def _read_digests(
    strings: Mapping[str, str], header: bytes, sizes: np.ndarray[Any, Any]
) -> bytes | None:
    if CHUNKS_KEY not in strings and KEY not in strings:
        return None
    check_seal(strings.get(KEY) if header.startswith(_START, 8) else None, header, _DIGEST_AT)
    return parse_chunks(strings.get(CHUNKS_KEY), sizes)

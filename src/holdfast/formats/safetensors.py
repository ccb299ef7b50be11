"""The safetensors format as pure functions: specs to a layout, header bytes to an index.

`docs/formats/safetensors.md` is the page of the bytes, and of what is refused.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
from blake3 import blake3

from holdfast.errors import (
    BadField,
    BadHeader,
    BadName,
    BadRange,
    DuplicateName,
    IndexMismatch,
    LimitExceeded,
    RefusedTensor,
    SizeMismatch,
    TrailingBytes,
    TruncatedFile,
    UnknownDType,
    UnsupportedDType,
    shortened,
)
from holdfast.files.digests import CHUNK, DIGEST, chunk_counts
from holdfast.files.disk import ALIGNMENT
from holdfast.files.layout import Index, Layout
from holdfast.formats.metadata import from_strings, to_strings
from holdfast.formats.safetensors_header import (
    MAX_NAME,
    MAX_RANK,
    Entries,
    Entry,
    locate,
    parse_header,
)
from holdfast.tensors import DTYPES, TensorSpec

NAME: Final = "safetensors"
SUFFIXES: Final = (".safetensors",)

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
BITS_OF: Final = {code: DTYPES[dtype].bits for code, dtype in DTYPE_OF.items()}

# Our two keys stand first, so that the digest that covers the header has a fixed place in it.
_START: Final = b'{"__metadata__":{"holdfast.digest":"'
_ZEROS: Final = b"0" * (2 * DIGEST)
_DIGEST_AT: Final = 8 + len(_START)
_CHUNKS_TAG: Final = f"blake3:{CHUNK}:"


def recognises(head: bytes, size: int) -> bool:
    """Whether a file with these first bytes is meant to be one of this format."""
    return size >= 10 and head[8:9] == b"{"


# Writing


def layout(tensors: Sequence[tuple[str, TensorSpec]], metadata: Mapping[str, Any]) -> Layout:
    """Where these tensors go; raises before anything is written if the format cannot hold them.

    The header lists them in the order given. Their bytes lie in the order of their width, the
    widest first, because the format allows no gaps and so keeps each of them aligned.
    """
    _refuse_names(tensors)
    for name, spec in tensors:
        if spec.dtype not in CODE_OF:
            raise UnsupportedDType(f"tensor {name!r}: safetensors has no dtype {spec.dtype}")
        if len(spec.shape) > MAX_RANK:
            raise RefusedTensor(f"tensor {name!r}: {len(spec.shape)} dimensions, over {MAX_RANK}")
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
    chunk_count = int(chunk_counts(np.array(sizes, np.int64)).sum())
    header = _Header(to_strings(metadata), entries)
    header_size = header.size(chunk_count)
    if header_size - 8 > MAX_HEADER:
        raise RefusedTensor(
            f"the header would take {header_size - 8:,} bytes, over the format's limit of "
            f"{MAX_HEADER:,}: save fewer tensors to a file, or less metadata"
        )
    return Layout(order, header_size, header_size + end, header.sealed)


def _refuse_names(tensors: Sequence[tuple[str, TensorSpec]]) -> None:
    seen = set()
    for name, _ in tensors:
        if not isinstance(name, str):
            raise BadName(f"tensor {name!r}: a name must be a string")
        try:
            length = len(name.encode())
        except UnicodeEncodeError as error:
            raise BadName(f"tensor {name!r}: the name is not valid Unicode ({error})") from error
        if length > MAX_NAME:
            raise BadName(f"tensor {name[:40]!r}…: a name of {length:,} bytes, over {MAX_NAME:,}")
        if name == "__metadata__":
            raise BadName("tensor '__metadata__': the format reserves this name")
        if name in seen:
            raise DuplicateName(f"tensor {name!r}: two tensors have this name")
        seen.add(name)


class _Header:
    """The header of a file, but for the digests."""

    def __init__(self, strings: dict[str, str], entries: Entries) -> None:
        # Both are JSON objects: their braces are left off, to join them to what stands around.
        self._strings = msgspec.json.encode(strings)[1:-1]
        self._entries = msgspec.json.encode(entries)[1:-1]

    def size(self, chunk_count: int) -> int:
        """How long the sealed header will be."""
        return len(self.sealed(bytes(chunk_count * DIGEST)))

    def sealed(self, chunk_digests: bytes) -> bytes:
        """The whole header, from its length to its padding, with the digests in it."""
        text = b"".join(
            (
                _START,
                _ZEROS,
                b'","holdfast.chunks":"',
                _CHUNKS_TAG.encode(),
                binascii.b2a_base64(chunk_digests, newline=False),
                b'"',
                b"," + self._strings if self._strings else b"",
                b"}",
                b"," + self._entries if self._entries else b"",
                b"}",
            )
        )
        length = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT - 8
        header = bytearray(length.to_bytes(8, "little") + text.ljust(length))
        header[_DIGEST_AT : _DIGEST_AT + len(_ZEROS)] = _index_digest(bytes(header)).encode()
        return bytes(header)


def _index_digest(header: bytes) -> str:
    """The digest over the header with zeros in the digest's own place."""
    hasher = blake3(header[:_DIGEST_AT])
    hasher.update(_ZEROS)
    hasher.update(memoryview(header)[_DIGEST_AT + len(_ZEROS) :])
    return hasher.hexdigest()


# Reading


def read_index(read: Callable[[int, int], bytes], size: int, verify: bool) -> Index:
    """The index of a file of `size` bytes; `read(start, length)` gives its bytes.

    Every way in which the header can be wrong raises its own error. `verify=False` leaves out
    the header's digest alone.
    """
    if size < 8:
        raise TruncatedFile(f"the file has {size} bytes; its header length alone takes 8")
    length = int.from_bytes(read(0, 8), "little")
    if length > MAX_HEADER:
        raise LimitExceeded(f"header length (offset 0): {length:,}, over {MAX_HEADER:,}")
    if length > size - 8:
        raise TruncatedFile(
            f"header length (offset 0): {length:,}, but the file ends after {size - 8:,} more bytes"
        )
    header = read(0, 8 + length)
    if header[8:9] != b"{":
        raise BadHeader(f"offset 8: expected '{{', found {header[8:9]!r}")
    strings, entries = parse_header(header)
    begins, ends = _check_entries(entries, header)
    _check_ranges(list(entries), begins, ends, size - len(header))
    sizes = ends - begins
    return Index(
        format=NAME,
        metadata=from_strings(strings),
        rows=dict(zip(entries, range(len(entries)), strict=True)),
        dtypes=[DTYPE_OF[entry.dtype] for entry in entries.values()],
        shapes=[entry.shape for entry in entries.values()],
        starts=begins + len(header),
        sizes=sizes,
        digests=_read_digests(strings, header, sizes, verify),
    )


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
    names: list[str], begins: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], available: int
) -> None:
    """The ranges must cover the data section, each byte once, in some order."""
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


def _read_digests(
    strings: Mapping[str, str], header: bytes, sizes: np.ndarray[Any, Any], verify: bool
) -> bytes | None:
    chunks, own = strings.get("holdfast.chunks"), strings.get("holdfast.digest")
    if (chunks is None and own is None) or not verify:
        return None
    if not (
        own
        and re.fullmatch("[0-9a-f]{64}", own)
        and header.startswith(_START + own.encode(), 8)
        and own == _index_digest(header)
    ):
        raise IndexMismatch(
            "the header does not match its own digest (holdfast.digest): it is damaged, or "
            "another program rewrote it and kept Holdfast's keys; verify=False opens it unchecked"
        )
    if chunks is None or not chunks.startswith(_CHUNKS_TAG):
        raise BadField(f"metadata key holdfast.chunks: expected text that starts {_CHUNKS_TAG!r}")
    try:
        digests = binascii.a2b_base64(chunks[len(_CHUNKS_TAG) :], strict_mode=True)
    except ValueError as error:
        raise BadField(f"metadata key holdfast.chunks: not base64 ({error})") from error
    count = int(chunk_counts(sizes).sum())
    if len(digests) != count * DIGEST:
        raise BadField(
            f"metadata key holdfast.chunks: {len(digests):,} bytes of digests for {count:,} chunks"
        )
    return digests

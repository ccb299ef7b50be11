"""The safetensors format as pure functions: specs to a layout, header bytes to an index.

`docs/formats/safetensors.md` is the page of the bytes, and of what is refused.
"""

from __future__ import annotations

import binascii
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from blake3 import blake3

from holdfast.errors import (
    BadField,
    BadHeader,
    BadName,
    BadRange,
    DuplicateKey,
    DuplicateName,
    IndexMismatch,
    LimitExceeded,
    RefusedTensor,
    SizeMismatch,
    TrailingBytes,
    TruncatedFile,
    UnknownDType,
    UnsupportedDType,
    printable,
    shortened,
)
from holdfast.files.digests import CHUNK, DIGEST, chunk_counts
from holdfast.files.disk import ALIGNMENT
from holdfast.files.layout import Index, Layout
from holdfast.formats.metadata import (
    MAX_DEPTH,
    bounded_integer,
    from_strings,
    is_nested_deeply,
    to_strings,
    unique_pairs,
)
from holdfast.tensors import DTYPES, TensorSpec

NAME: Final = "safetensors"
SUFFIXES: Final = (".safetensors",)

MAX_HEADER: Final = 100_000_000
"""As in the reference library; it bounds the number of tensors and the metadata too."""
MAX_NAME: Final = 65_535
MAX_RANK: Final = 64
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


_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 59)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MAX_RANK)]
    data_offsets: tuple[_Size, _Size]


_Entries = dict[str, _Entry]


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
        name: _Entry(CODE_OF[spec.dtype], spec.shape, (start, start + size))
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

    def __init__(self, strings: dict[str, str], entries: _Entries) -> None:
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
    strings, entries = _parse(header)
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


def _parse(header: bytes) -> tuple[dict[str, str], _Entries]:
    """The metadata and the entries; duplicate keys are refused at every level."""
    return _parse_fast(header) or _parse_strictly(header)


def _parse_fast(header: bytes) -> tuple[dict[str, str], _Entries] | None:
    """What nearly every writer writes, quickly; None if only the strict way can be sure.

    Copies of a header of many megabytes are what takes the time, so there is only one.
    """
    strings: dict[str, str] = {}
    start = 8
    text = bytearray(header)
    try:
        if header.startswith(_METADATA, 8):
            start = _end_of_strings(header, 8 + len(_METADATA))
            if header[start : start + 2] != b',"':
                return None
            metadata = header[8 + len(_METADATA) : start].decode()
            msgspec.json.decode(metadata, type=dict[str, str])  # which never nests
            strings = json.loads(metadata, object_pairs_hook=unique_pairs)
            text[start] = ord("{")  # in the place of the comma
        if not 0 < sys.get_int_max_str_digits() < 10_000 and re.search(rb"\d{30}", header):
            return None  # Python's guard against endless numbers was taken away
        entries = msgspec.json.decode(memoryview(text)[start:], type=_Entries)
    except (ValueError, RecursionError):
        return None
    # The decoder keeps the last of two equal keys silently. No entry lacks a field, so if each
    # field's name stands just once an entry, there was no second entry and no second field.
    # Only an escaped letter could hide one from this count.
    fields = (b'"dtype"', b'"shape"', b'"data_offsets"')
    once = all(text.count(field, start) == len(entries) for field in fields)
    # It also takes -0 for a size. (One letter is looked for ten times as fast as two.)
    rare = any(text.find(c, start) >= 0 and text.find(s, start) >= 0 for c, s in _RARE.items())
    if not once or rare or "__metadata__" in entries:
        return None
    return strings, entries


_METADATA: Final = b'{"__metadata__":'
_RARE: Final = {b"\\": b"\\u", b"-": b"-0"}


def _end_of_strings(header: bytes, start: int) -> int:
    """Where an object that holds only strings ends: after the first brace outside of them."""
    at, brace, inside = start, -1, False
    for _ in range(10_000):  # more quotes than that are quicker done by a real decoder
        if brace < at:
            brace = header.index(b"}", at)
        quote = header.find(b'"', at)
        if not inside and (quote < 0 or brace < quote):
            return brace + 1
        if quote < 0:
            break
        if not inside or not _is_escaped(header, quote):
            inside = not inside
        at = quote + 1
    raise ValueError


def _is_escaped(header: bytes, quote: int) -> bool:
    before = header[max(0, quote - 64) : quote]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands in the text, each key as often as it does."""


def _parse_strictly(header: bytes) -> tuple[dict[str, str], _Entries]:
    """The slow way, which sees every duplicate and can say what is wrong with which tensor."""
    members = _members(_decode(header), "")
    strings = members.pop("__metadata__", _Pairs())
    if not isinstance(strings, _Pairs):
        raise BadField(f"__metadata__: expected an object, found {type(strings).__name__}")
    strings = _members(strings, "__metadata__: ")
    _check_strings(strings)
    entries = {}
    for name, member in members.items():
        if not _is_unicode(name):
            raise BadHeader(f"{_where(name, header)}: the name is not valid Unicode")
        try:
            entries[name] = msgspec.convert(_fields(member), _Entry)
        except DuplicateKey as error:
            raise DuplicateKey(f"{_where(name, header)}: {error}") from None
        except UnicodeEncodeError as error:
            raise BadHeader(f"{_where(name, header)}: a field is not valid Unicode") from error
        except msgspec.ValidationError as error:
            reason = shortened(printable(str(error).replace("`", "").replace("$.", "field ")))
            raise BadField(f"{_where(name, header)}: {reason}") from error
    return strings, entries


def _fields(member: Any) -> Any:
    """An entry's fields, each once; what else is an object inside becomes a plain one."""
    if not isinstance(member, _Pairs):
        return member
    fields = unique_pairs(member)
    return {key: dict(v) if isinstance(v, _Pairs) else v for key, v in fields.items()}


def _decode(header: bytes) -> _Pairs:
    try:
        text = header[8:].decode()
    except UnicodeDecodeError as error:
        raise BadHeader(f"offset {8 + error.start}: not UTF-8 ({error.reason})") from error
    if is_nested_deeply(header[8:]):
        raise BadHeader(f"the header nests deeper than {MAX_DEPTH} levels")
    try:
        decoded: _Pairs = json.loads(
            text, object_pairs_hook=_Pairs, parse_int=_integer, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        at = 8 + len(text[: error.pos].encode())
        raise BadHeader(f"offset {at}: the header is not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise BadHeader(f"the header is not JSON ({error})") from error
    return decoded


def _integer(text: str) -> int | float:
    # -0 is none of our sizes: as a float it is refused where it stands.
    return -0.0 if text == "-0" else bounded_integer(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}")


def _members(pairs: _Pairs, where: str) -> dict[str, Any]:
    try:
        return unique_pairs(pairs)
    except DuplicateKey as error:
        raise DuplicateKey(f"{where}{error}") from None


def _check_strings(strings: dict[str, Any]) -> None:
    for key, value in strings.items():
        if not isinstance(value, str):
            raise BadField(
                f"__metadata__[{shortened(key)!r}]: expected a string, "
                f"found {'object' if isinstance(value, _Pairs) else type(value).__name__}"
            )
        if not (_is_unicode(key) and _is_unicode(value)):
            raise BadHeader(f"__metadata__[{shortened(key)!r}]: not valid Unicode")


def _is_unicode(text: str) -> bool:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _where(name: str, header: bytes) -> str:
    """A tensor and the offset of its header entry, for a message."""
    if len(name) > MAX_NAME:
        return f"tensor {shortened(name)!r}"
    for behind in (rb"\s*:\s*\{\s*\"", rb"\s*:"):
        for ascii in (False, True):
            quoted = json.dumps(name, ensure_ascii=ascii).encode(errors="replace")
            if found := re.search(re.escape(quoted) + behind, header):
                return f"tensor {shortened(name)!r} (offset {found.start()})"
    return f"tensor {shortened(name)!r}"


def _check_entries(entries: _Entries, header: bytes) -> tuple[np.ndarray[Any, Any], ...]:
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


def _check_entry(name: str, entry: _Entry, header: bytes) -> None:
    bits = BITS_OF.get(entry.dtype)
    begin, end = entry.data_offsets
    if bits is None:
        raise UnknownDType(f"{_where(name, header)}: field dtype: {entry.dtype!r:.80}")
    if math.prod(entry.shape) * bits != 8 * (end - begin):
        raise SizeMismatch(
            f"{_where(name, header)}: {entry.dtype} of shape {list(entry.shape)} takes "
            f"{math.prod(entry.shape) * bits:,} bits, but field data_offsets "
            f"[{begin}, {end}] spans {end - begin:,} bytes"
        )
    if math.prod(filter(None, entry.shape)) * bits > MAX_BITS:
        raise LimitExceeded(
            f"{_where(name, header)}: field shape: no array can have {list(entry.shape)}"
        )
    if len(name.encode()) > MAX_NAME:
        raise LimitExceeded(f"{_where(name, header)}: a name of over {MAX_NAME:,} bytes")


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

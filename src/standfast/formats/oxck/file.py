"""The `OXCK` format as pure functions: specs to a layout, bytes to an index.

`docs/formats/oxck.md` is the page of the bytes, and of what is refused. `standfast.oxck` has the
names that users of the original look for.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from standfast.errors import (
    BadField,
    BadHeader,
    DamagedFile,
    DuplicateKey,
    LimitExceeded,
    RefusedMetadata,
    SizeMismatch,
    UnsupportedFile,
    shortened,
)
from standfast.files.digests import DIGEST
from standfast.files.disk import ALIGNMENT
from standfast.files.layout import Index, Late, Layout, Sums
from standfast.formats.limits import MAX_NAME, refuse
from standfast.formats.limits import MAX_RANK as MAX_RANK
from standfast.formats.metadata import from_strings, to_strings
from standfast.formats.reader import Options, Read, Start, check_end
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
from standfast.tensors import TensorSpec

NAME: Final = "oxck"
SUFFIXES: Final = (".oxck",)
DTYPES: Final = frozenset({"float32"})
STRINGS_ONLY: Final = True
BARE_KEYS: Final[frozenset[str] | None] = None
SEEKS: Final = False

MAGIC: Final = b"OXCK"
MAX_METADATA: Final = 1 << 28
MAX_ELEMENTS: Final = 1 << 60
START_SIZE: Final = 28
"""From the magic to the length of the metadata."""

_START: Final = struct.Struct("<4sIQQI")
_U32: Final = struct.Struct("<I")
_DIGEST_TEXT: Final = re.compile(rb'[{,]"%b":"' % re.escape(KEY.encode()))


def recognises(head: bytes, size: int) -> bool:
    """Whether a file with these first bytes is meant to be one of this format."""
    return head.startswith(MAGIC)


# Writing


def layout(
    tensors: Sequence[tuple[str, TensorSpec]], metadata: Mapping[str, Any], extras: bool
) -> Layout:
    """Where these tensors go: each behind a header of its own, in the order given.

    With `extras` the metadata is padded with spaces, which every reader skips, so that what
    holds the digests ends on a page.
    """
    refuse(tensors, NAME, DTYPES)
    strings = to_strings(metadata, typed=extras)
    headers = [tensor_header(name, spec.shape, spec.size) for name, spec in tensors]
    sizes = [spec.nbytes for _, spec in tensors]
    if not extras:
        return bare_layout(to_text(strings).encode(), headers, sizes)
    return sealed_layout(strings, headers, sizes)


def bare_layout(text: bytes, headers: Sequence[bytes], sizes: Sequence[int]) -> Layout:
    """The layout of a file with this metadata and nothing of ours."""
    start = file_start(text, len(headers))
    body = _body(headers)
    return Layout([start, *body], len(start) + sum(map(len, headers)) + sum(sizes))


def sealed_layout(
    strings: Mapping[str, str], headers: Sequence[bytes], sizes: Sequence[int]
) -> Layout:
    """The layout of a file with digests among its metadata."""

    def make_start(digests: bytes) -> bytes:
        ours = {KEY: ZEROS.decode(), CHUNKS_KEY: chunks_text(digests).decode()}
        text = to_text({**strings, **ours}).encode()
        padding = -(START_SIZE + len(text)) % ALIGNMENT
        return file_start(text + b" " * padding, len(headers))

    def make(sums: Sums) -> bytes:
        start = make_start(sums.digests())
        return sealed(start, digest_at(start), after=headers)

    size = len(make_start(bytes(chunk_count(sizes) * DIGEST)))
    whole = size + sum(map(len, headers)) + sum(sizes)
    return Layout(_body(headers), whole, head=Late(size, make), digested=True)


def _body(headers: Sequence[bytes]) -> list[bytes | int | Late]:
    """Each tensor behind its header."""
    return [piece for i, header in enumerate(headers) for piece in (header, i)]


def file_start(text: bytes, count: int) -> bytes:
    """What precedes the first tensor."""
    if len(text) > MAX_METADATA:
        raise RefusedMetadata(f"{len(text):,} bytes of metadata, over {MAX_METADATA:,}")
    return _START.pack(MAGIC, 1, 0, count, len(text)) + text


def tensor_header(name: str, shape: Sequence[int], elements: int) -> bytes:
    """What precedes the elements of a tensor."""
    encoded = name.encode()
    return struct.pack(
        f"<I{len(encoded)}sI{len(shape)}QQ", len(encoded), encoded, len(shape), *shape, elements
    )


def digest_at(start: bytes) -> int:
    """Where the digits of our digest stand, in metadata as `to_text` writes it."""
    # A quote inside of a string has a backslash before it, so the key is found and nothing else.
    found = _DIGEST_TEXT.search(start, START_SIZE)
    return found.end() if found else len(start)


# Reading


class Entry(NamedTuple):
    """What a tensor's header says, and where it stands."""

    name: str
    shape: tuple[int, ...]
    elements: int
    header: bytes
    start: int
    """Where the elements start."""


def read_index(read: Read, size: int | None, options: Options) -> Index:
    """The index of a file of `size` bytes, or of a stream."""
    start = Start(read, size)
    head, count = read_start(start)
    strings = from_text(head[START_SIZE:])
    entries: dict[str, Entry] = {}
    end = len(head)
    for entry in read_entries(start, len(head), count):
        if entry.name in entries:
            raise DuplicateKey(
                f"tensor {shortened(entry.name)!r} (offset {end:,}): a second one of this name; "
                "standfast.oxck.Checkpoint keeps both"
            )
        entries[entry.name] = entry
        end = entry.start + 4 * entry.elements
    check_end(end, size, "the last tensor" if count else "the metadata")
    sizes = np.fromiter((4 * entry.elements for entry in entries.values()), np.int64)
    digests = None
    if options.verify and (KEY in strings or CHUNKS_KEY in strings):
        headers = b"".join(entry.header for entry in entries.values())
        check_seal(strings.get(KEY), head, digest_at(head), after=[headers])
        digests = parse_chunks(strings.get(CHUNKS_KEY), sizes)
    return Index(
        format=NAME,
        metadata=from_strings(strings),
        rows=dict(zip(entries, range(len(entries)), strict=True)),
        dtypes=["float32"] * len(entries),
        shapes=[
            # No dimensions and no elements: legal, and no scalar.
            entry.shape if entry.shape or entry.elements else (0,)
            for entry in entries.values()
        ],
        starts=np.fromiter((entry.start for entry in entries.values()), np.int64),
        sizes=sizes,
        end=end,
        digests=digests,
    )


def read_start(start: Start, known: bytes = b"") -> tuple[bytes, int]:
    """The bytes that precede the first tensor, checked, and the number of tensors.

    `known` are the first ones, if the caller has read them.
    """
    fixed = known + start.take(len(known), START_SIZE - len(known), "the header")
    magic, version, _, count, length = _START.unpack(fixed)
    if magic != MAGIC:
        raise BadHeader(f"field magic (offset 0): expected {MAGIC!r}, found {magic!r}")
    if version != 1:
        raise UnsupportedFile(f"field version (offset 4): {version}; only version 1 is known")
    if length > MAX_METADATA:
        raise LimitExceeded(f"field metadata_len (offset 24): {length:,}, over {MAX_METADATA:,}")
    return fixed + start.take(START_SIZE, length, "the metadata"), count


def read_entries(start: Start, at: int, count: int) -> Iterator[Entry]:
    """The headers of `count` tensors, the first of which stands at `at`, one by one.

    A count that lies is found where the bytes end: nothing is allocated by it.
    """
    for number in range(count):
        try:
            entry = _read_entry(start, at)
        except DamagedFile as error:
            where = f"tensor {number:,} of {count:,} (offset {at:,})"
            error.args = (f"{where}: {error}", *error.args[1:])
            raise
        yield entry
        at = entry.start + 4 * entry.elements


def _read_entry(start: Start, at: int) -> Entry:
    """The header at `at`, read forwards and never further than it reaches."""
    length = start.take(at, 4, "field name_len")
    (name_length,) = _U32.unpack(length)
    if name_length > MAX_NAME:
        raise LimitExceeded(f"field name_len: {name_length:,}, over {MAX_NAME:,}")
    named = start.take(at + 4, name_length + 4, "the name and field ndim")
    try:
        name = named[:-4].decode()
    except UnicodeDecodeError as error:
        raise BadHeader(f"the name is not UTF-8 ({error.reason})") from error
    (rank,) = _U32.unpack_from(named, name_length)
    if rank > MAX_RANK:
        raise LimitExceeded(f"field ndim of {shortened(name)!r}: {rank:,}, over {MAX_RANK}")
    sizes = start.take(at + 8 + name_length, 8 * rank + 8, "the shape and field data_len")
    *shape, elements = struct.unpack(f"<{rank + 1}Q", sizes)
    header = b"".join((length, named, sizes))
    data_at = at + len(header)
    start.check(data_at, 4 * elements, "the elements")
    _check_shape(name, shape, elements)
    return Entry(name, tuple(shape), elements, header, data_at)


def _check_shape(name: str, shape: list[int], elements: int) -> None:
    if shape and math.prod(shape) != elements:
        raise SizeMismatch(
            f"the shape {shape} of {shortened(name)!r} has {math.prod(shape):,} elements, "
            f"but field data_len says {elements:,}"
        )
    if not shape and elements > 1:
        raise SizeMismatch(
            f"{shortened(name)!r} is a scalar, but field data_len says {elements:,} elements"
        )
    if not elements and math.prod(filter(None, shape)) > MAX_ELEMENTS:
        raise LimitExceeded(f"no array can have the shape {shape} of {shortened(name)!r}")


# Metadata: strings under strings, in a lenient kind of JSON

_WHITE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""White space to the original: Unicode's, and so without U+001C to U+001F, which Python adds."""
_BETWEEN: Final = re.compile(f"[{_WHITE},]*")
_COLON: Final = re.compile(f"[{_WHITE}]*:[{_WHITE}]*")
_UNKNOWN_ESCAPE: Final = re.compile(r"\\(?![nrt]).?", re.DOTALL)

# No text that was UTF-8 holds these two, so they can stand for what is escaped.
_BACKSLASH: Final = "\ud800"
_QUOTE: Final = "\ud801"


def to_text(strings: Mapping[str, str]) -> str:
    """Metadata as text: keys in the order of their bytes, only quotes and backslashes escaped."""
    pairs = sorted(strings.items(), key=lambda pair: pair[0].encode())
    return "{" + ",".join(f'"{_escaped(key)}":"{_escaped(value)}"' for key, value in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def from_text(text: bytes) -> dict[str, str]:
    """The metadata out of its text; raises BadField where the original raises MetadataParse.

    As in the original, commas may be missing, doubled or stray, of two equal keys the last
    wins, and no text at all is no metadata.
    """
    try:
        whole = text.decode().strip(_WHITE)
    except UnicodeDecodeError as error:
        raise BadField(
            f"the metadata is not UTF-8 ({error.reason} at its byte {error.start})"
        ) from error
    if not whole:
        return {}
    if len(whole) < 2 or not (whole.startswith("{") and whole.endswith("}")):
        raise BadField(f"the metadata is not in braces: {shortened(whole)!r}")
    marked = whole[1:-1].replace("\\\\", _BACKSLASH).replace('\\"', _QUOTE)
    if unknown := _UNKNOWN_ESCAPE.search(marked):
        raise BadField(f"the metadata has the unknown escape {_plain(unknown.group(0))!r}")
    # The quotes that are left stand around strings, so every other piece between them is one:
    # what precedes a key, the key, the colon, the value, and so on.
    pieces = marked.split('"')
    _check_structure(pieces)
    keys, values = pieces[1::4], pieces[3::4]
    if "\\" in marked or _BACKSLASH in marked or _QUOTE in marked:
        return dict(zip(map(_unescaped, keys), map(_unescaped, values), strict=True))
    return dict(zip(keys, values, strict=True))


def _check_structure(pieces: list[str]) -> None:
    """Raise unless what lies outside of strings is what may lie there."""
    # Each different piece is looked at once: there may be millions of equal ones.
    before_keys = {piece for piece in set(pieces[::4]) if not _BETWEEN.fullmatch(piece)}
    before_values = {piece for piece in set(pieces[2::4]) if not _COLON.fullmatch(piece)}
    if before_keys or before_values:
        _explain(pieces, before_keys, before_values)
    if len(pieces) % 2 == 0:
        raise BadField(f"the metadata has a string without an end: {_shown(pieces[-1])}")
    if len(pieces) % 4 == 3:
        raise BadField(f"the metadata has no value under the key {_shown(pieces[-2])}")


def _explain(pieces: list[str], before_keys: set[str], before_values: set[str]) -> None:
    """Raise for the first piece that is wrong in its place."""
    for number, piece in enumerate(pieces):
        if number % 4 == 0 and piece in before_keys:
            raise BadField(f"the metadata has {_shown(piece)} where a key in quotes belongs")
        if number % 4 == 2 and piece in before_values:
            raise BadField(
                f"the metadata has {_shown(piece)} behind the key {_shown(pieces[number - 1])}, "
                "where ':' and a value in quotes belong"
            )


def _shown(piece: str) -> str:
    return repr(_plain(shortened(piece)))


def _plain(marked: str) -> str:
    """A marked text as it stands in the file."""
    return marked.replace(_QUOTE, '\\"').replace(_BACKSLASH, "\\\\")


def _unescaped(marked: str) -> str:
    for escape, letter in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        marked = marked.replace(escape, letter)
    return marked.replace(_QUOTE, '"').replace(_BACKSLASH, "\\")

"""Builds OXCK files byte by byte, right and wrong ones, and reads them as the original does."""

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import BinaryIO, NamedTuple

from blake3 import blake3

from tests.formats import builders

START = 28
"""Where the metadata starts."""


def tensor(
    name: str | bytes = "a",
    shape: Sequence[int] = (1,),
    data: bytes = bytes(4),
    *,
    name_length: int | None = None,
    rank: int | None = None,
    elements: int | None = None,
) -> bytes:
    """A tensor with its header; the lengths are the right ones unless they are given."""
    encoded = name if isinstance(name, bytes) else name.encode()
    return b"".join(
        (
            struct.pack("<I", len(encoded) if name_length is None else name_length),
            encoded,
            struct.pack("<I", len(shape) if rank is None else rank),
            struct.pack(f"<{len(shape)}Q", *shape),
            struct.pack("<Q", len(data) // 4 if elements is None else elements),
            data,
        )
    )


def floats(*values: float) -> bytes:
    """Elements as they stand in a file."""
    return struct.pack(f"<{len(values)}f", *values)


def file_of(
    text: str | bytes = "{}",
    *tensors: bytes,
    magic: bytes = b"OXCK",
    version: int = 1,
    flags: int = 0,
    count: int | None = None,
    length: int | None = None,
) -> bytes:
    """A file of this metadata and these tensors; what is given replaces the right header."""
    encoded = text if isinstance(text, bytes) else text.encode()
    claimed = len(encoded) if length is None else length
    tensors_claimed = len(tensors) if count is None else count
    start = struct.pack("<4sIQQI", magic, version, flags, tensors_claimed, claimed)
    return start + encoded + b"".join(tensors)


def sealed_file(text: str, *tensors: tuple[str, Sequence[int], bytes]) -> bytes:
    """A file with a digest that matches, whatever else stands in it.

    In the text `SEAL` stands where the digits belong.
    """
    zeros = text.replace("SEAL", "0" * 64)
    headers = [tensor(name, shape, b"", elements=len(data) // 4) for name, shape, data in tensors]
    surroundings = file_of(zeros, count=len(tensors)) + b"".join(headers)
    digest = blake3(surroundings).hexdigest()
    return file_of(text.replace("SEAL", digest), *(tensor(*each) for each in tensors))


saved = partial(builders.saved, "oxck")
index_of = partial(builders.index_of, "oxck")


# The original, from its Rust code


class OriginalError(Exception):
    """One of the six errors of the original, by its name."""


class OriginalTensor(NamedTuple):
    """A tensor as the original holds it."""

    name: str
    shape: list[int]
    data: bytes


def original_read(stream: BinaryIO) -> tuple[dict[str, str], list[OriginalTensor]]:
    """`Checkpoint::read_from`."""

    def exact(length: int) -> bytes:
        data = stream.read(length)
        if len(data) < length:
            raise OriginalError("TruncatedData")
        return data

    def integer(width: int) -> int:
        return int.from_bytes(exact(width), "little")

    def text(raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise OriginalError("MetadataParse") from error

    if exact(4) != b"OXCK":
        raise OriginalError("InvalidMagic")
    if integer(4) != 1:
        raise OriginalError("UnsupportedVersion")
    integer(8)
    count = integer(8)
    metadata = original_metadata(text(exact(integer(4))))
    tensors = []
    for _ in range(count):
        name = text(exact(integer(4)))
        shape = [integer(8) for _ in range(integer(4))]
        tensors.append(OriginalTensor(name, shape, exact(4 * integer(8))))
    return metadata, tensors


def original_metadata(text: str) -> dict[str, str]:
    """`deserialize_metadata`, letter by letter."""
    text = text.strip(ORIGINAL_WHITE)
    if text in ("", "{}"):
        return {}
    if not text.startswith("{") or not text.endswith("}") or text == "{":
        raise OriginalError("MetadataParse")
    letters = text[1:-1]
    metadata: dict[str, str] = {}
    at = 0
    while True:
        while at < len(letters) and (letters[at] == "," or letters[at] in ORIGINAL_WHITE):
            at += 1
        if at >= len(letters):
            return metadata
        if letters[at] != '"':
            raise OriginalError("MetadataParse")
        key, at = _original_string(letters, at + 1)
        at = _skipped(letters, at)
        if letters[at : at + 1] != ":":
            raise OriginalError("MetadataParse")
        at = _skipped(letters, at + 1)
        if letters[at : at + 1] != '"':
            raise OriginalError("MetadataParse")
        metadata[key], at = _original_string(letters, at + 1)


_WHITE_RANGES = [(9, 13), (0x2000, 0x200A), (0x2028, 0x2029)]
_WHITE_LETTERS = [0x20, 0x85, 0xA0, 0x1680, 0x202F, 0x205F, 0x3000]
ORIGINAL_WHITE = "".join(
    map(chr, [*(c for a, b in _WHITE_RANGES for c in range(a, b + 1)), *_WHITE_LETTERS])
)
"""Unicode's property White_Space, of which `char::is_whitespace` is the test."""


def _skipped(letters: str, at: int) -> int:
    while at < len(letters) and letters[at] in ORIGINAL_WHITE:
        at += 1
    return at


def _original_string(letters: str, at: int) -> tuple[str, int]:
    """`parse_json_string`: the string that starts at `at`, and where it ends."""
    out: list[str] = []
    while at < len(letters):
        letter = letters[at]
        if letter == '"':
            return "".join(out), at + 1
        if letter == "\\":
            at += 1
            if at >= len(letters) or letters[at] not in '"\\nrt':
                raise OriginalError("MetadataParse")
            letter = {"n": "\n", "r": "\r", "t": "\t"}.get(letters[at], letters[at])
        out.append(letter)
        at += 1
    raise OriginalError("MetadataParse")


def original_text(metadata: Mapping[str, str]) -> str:
    """`serialize_metadata`."""

    def escaped(text: str) -> str:
        return "".join("\\" + letter if letter in '"\\' else letter for letter in text)

    keys = sorted(metadata, key=str.encode)
    return "{" + ",".join(f'"{escaped(k)}":"{escaped(metadata[k])}"' for k in keys) + "}"

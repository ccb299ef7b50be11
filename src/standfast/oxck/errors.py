"""The six errors of the original, by their names."""

from __future__ import annotations

from standfast.errors import (
    BadField,
    BadHeader,
    BadName,
    FileError,
    StandfastError,
    TruncatedFile,
    UnsupportedFile,
)
from standfast.formats.limits import MAX_NAME


class CheckpointError(StandfastError):
    """The base of the original's six errors; each is also the one that `standfast` raises."""


class Io(CheckpointError, FileError):
    """The file or the stream could not be read or written."""


class InvalidMagic(CheckpointError, BadHeader):
    """The file does not begin with `OXCK`."""

    def __init__(self, got: bytes) -> None:
        super().__init__(f"invalid magic bytes: expected b'OXCK', got {got!r}")
        self.got = got


class UnsupportedVersion(CheckpointError, UnsupportedFile):
    """The file has a version other than 1."""

    def __init__(self, version: int) -> None:
        super().__init__(f"unsupported checkpoint version: {version}")
        self.version = version


class MetadataParse(CheckpointError, BadField):
    """The metadata, or a name, is not the text that it should be."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"metadata parse error: {reason}")
        self.reason = reason


class TruncatedData(CheckpointError, TruncatedFile):
    """The bytes end before the checkpoint does."""

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(f"truncated data: expected {expected:,} bytes, got {got:,}")
        self.expected = expected
        self.got = got


class NameTooLong(CheckpointError, BadName):
    """A tensor's name has more than 65,535 bytes."""

    def __init__(self, length: int) -> None:
        super().__init__(f"tensor name too long: {length:,} bytes (at most {MAX_NAME:,})")
        self.length = length

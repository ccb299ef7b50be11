"""The manifest of a package: the digest of every file, what the model is, where it came from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec
from blake3 import blake3

from standfast.errors import (
    BadField,
    IndexMismatch,
    LimitExceeded,
    MissingData,
    MissingFile,
    TruncatedFile,
    UnsupportedFile,
)
from standfast.files import disk
from standfast.files.input.file import SourceFile
from standfast.files.input.ranges import SourceRanges
from standfast.files.lines import replace_lines
from standfast.formats.metadata import from_json
from standfast.packages.documents import json_text
from standfast.packages.documents.names import MANIFEST
from standfast.packages.remote.places import Folder, opened
from standfast.packages.remote.pointer import FORMAT as POINTER
from standfast.packages.remote.pointer import SAVES

FORMAT: Final = "standfast package 1"
_NO_DIGEST: Final = "0" * 64
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_BLOCK: Final = 1 << 20
_LARGEST: Final = 16 << 20
"""Bytes of the largest manifest that is read: one of 100,000 files."""
_LONGEST_HEADER: Final = 100_000_000
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class ModelSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What the weights are, for those who list packages."""

    type: str
    parameters: _Count
    nbytes: _Count
    """The bytes of the tensors, as they lie in the package."""
    dtype: str
    quantization: str | None = None


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size of a file, and BLAKE3 over it, or over the header that has its digests."""

    size: int
    digest: str
    of_header: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What the manifest says of the file."""
        return {"size": self.size, "header" if self.of_header else "blake3": self.digest}


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says."""

    created: str
    files: Mapping[str, FileDigest]
    model: ModelSummary
    provenance: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Folder) -> Self | None:
        """The manifest of a package; None if it has none, a DamagedFile if it is not sound."""
        path = folder / MANIFEST
        try:
            with closing(opened(path)) as file:
                if file.size > _LARGEST:
                    raise LimitExceeded(f"{path}: {file.size:,} bytes, over {_LARGEST:,}")
                text = file.read(0, file.size)
        except MissingFile:
            return None
        return json_text.named(path, lambda: cls._of_text(text))

    @classmethod
    def _of_text(cls, text: bytes) -> Self:
        given = from_json(text, "manifest")
        if given.get("format") == POINTER:
            raise UnsupportedFile(
                "this is a copy of what an object store has: the package is the folder "
                f"{SAVES}/{given.get('folder')!s:.80} in it"
            )
        if given.get("format") != FORMAT:
            raise UnsupportedFile(f"format is {given.get('format')!r:.80}: expected {FORMAT!r}")
        digest = given.get("digest")
        if not isinstance(digest, str) or text.count(digest.encode()) != 1:
            raise BadField("digest should be 64 hexadecimal digits")
        if blake3(text.replace(digest.encode(), _NO_DIGEST.encode())).hexdigest() != digest:
            raise IndexMismatch("the manifest is not the one that was written: its digest differs")
        files, provenance = given.get("files"), given.get("provenance")
        if not isinstance(files, dict) or not isinstance(provenance, dict):
            raise BadField("files and provenance should be objects")
        try:
            model = msgspec.convert(given.get("model"), ModelSummary)
            created = msgspec.convert(given.get("created"), str)
        except msgspec.ValidationError as error:
            raise BadField(f"model or created: {error}") from error
        digests = {name: _file_digest(name, entry) for name, entry in files.items()}
        return cls(created, digests, model, provenance)

    def check_names(self, needed: Iterable[str]) -> None:
        """Raise MissingData for a file that a reader needs and the manifest does not vouch for."""
        for name in needed:
            if name not in self.files:
                raise MissingData(
                    f"{MANIFEST} does not name {name}: it was added to the package later"
                )

    def write(self, folder: Path) -> None:
        """Put it into a folder, durably."""
        content = {
            "created": self.created,
            "digest": _NO_DIGEST,
            "files": {name: entry.as_dict() for name, entry in self.files.items()},
            "format": FORMAT,
            "model": msgspec.to_builtins(self.model),
            "provenance": dict(self.provenance),
        }
        text = json_text.text(content).encode()
        digest = blake3(text + b"\n").hexdigest()
        signed = text.replace(_NO_DIGEST.encode(), digest.encode(), 1)
        replace_lines(folder / MANIFEST, [signed], disk.LOCAL)


def digest_of(path: str | os.PathLike[str]) -> FileDigest:
    """The digest of a file as it is now: of a safetensors file that of its header."""
    with closing(opened(path)) as file:
        of_header = file.path.endswith(".safetensors")
        end = _header_end(file) if of_header else file.size
        hasher = blake3()
        for start in range(0, end, _BLOCK):
            hasher.update(file.read(start, min(_BLOCK, end - start)))
        return FileDigest(file.size, hasher.hexdigest(), of_header)


def _header_end(file: SourceFile | SourceRanges) -> int:
    length = int.from_bytes(file.read(0, 8), "little") if file.size >= 8 else _LONGEST_HEADER
    if length > min(_LONGEST_HEADER, file.size - 8):
        raise TruncatedFile(f"{file.path}: it ends before its header does")
    return 8 + length


def _file_digest(name: str, entry: Any) -> FileDigest:
    if "/" in name or name in ("", ".", "..", MANIFEST):
        raise BadField(f"files[{name!r:.80}] is not the name of a file in the folder")
    if isinstance(entry, dict):
        size, of_header = entry.get("size"), "header" in entry
        digest = entry.get("header" if of_header else "blake3")
        if (
            type(size) is int
            and 0 <= size < 1 << 63
            and isinstance(digest, str)
            and _DIGEST.fullmatch(digest)
        ):
            return FileDigest(size, digest, of_header)
    raise BadField(f"files[{name!r:.80}] should have a size and a digest")

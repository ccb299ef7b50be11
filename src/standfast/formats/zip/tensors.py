"""What torch's and NumPy's zip files have in common: how we build one, seal it, and check it.

The digests and the metadata are an entry of their own, a JSON object. The archive's comment is
`standfast.digest:` and 64 digits: the digest over everything in the file but the tensors and
these digits themselves, with which the file ends.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from standfast.errors import (
    BadArchive,
    BadField,
    IndexMismatch,
    LimitExceeded,
    RefusedMetadata,
    UnsupportedFile,
    shortened,
)
from standfast.files.digests import DIGEST
from standfast.files.layout import Late, Layout, Sums
from standfast.formats.metadata import OWN, check_metadata, check_needs, from_json
from standfast.formats.reader import Read
from standfast.formats.seal import (
    CHUNKS_KEY,
    ZEROS,
    check_seal,
    chunk_count,
    chunks_text,
    parse_chunks,
    sealed,
)
from standfast.formats.zip.archive import Archive, other_ranges
from standfast.formats.zip.records import (
    Entry,
    central_directory,
    descriptor,
    local_header,
    unlisted_header,
    whole_entry,
)

ALIGN: Final = 64
"""Where the bytes of tensors start, as torch has it."""
MAX_ENTRY: Final = 1 << 29
"""The longest entry that is read as a whole."""

_COMMENT: Final = b"standfast.digest:"


class _Planned(NamedTuple):
    """An entry that the directory will list."""

    name: str
    header_at: int
    size: int
    crc: Callable[[Sums], int]

    def entry(self, sums: Sums | None) -> Entry:
        crc = self.crc(sums) if sums else 0
        return Entry(self.name, self.header_at, 0, self.size, self.size, crc, deflated=False)


class ArchiveBuilder:
    """Collects entries in the order in which they will lie in the file."""

    def __init__(self) -> None:
        self._at = 0
        self._body: list[bytes | int | Late] = []
        self._listed: list[_Planned] = []
        self._sizes: list[int] = []
        self._crcs: list[int] = []

    def add(self, name: str, data: bytes) -> None:
        """Append an entry whose bytes are known."""
        crc = zlib.crc32(data)
        self._listed.append(_Planned(name, self._at, len(data), lambda sums: crc))
        self._append(whole_entry(name, data, self._at))

    def add_tensor(self, name: str, before: bytes, nbytes: int) -> int:
        """Append an entry of the bytes `before` and then the next tensor, which has `nbytes`.

        Returns where in the file the tensor begins.
        """
        number, size = len(self._sizes), len(before) + nbytes
        self._listed.append(_Planned(name, self._at, size, lambda sums: sums.crc(number)))
        self._append(local_header(name, size, self._at, ALIGN) + before)
        start = self._at
        self._body.append(number)
        self._at += nbytes
        self._sizes.append(nbytes)
        self._crcs.append(zlib.crc32(before))
        length = len(descriptor(0, size))
        self._append(Late(length, lambda sums: descriptor(sums.crc(number), size)))
        return start

    def add_own(
        self,
        name: str,
        metadata: Mapping[str, Any],
        listed: bool,
        told: Callable[[bytes], bytes] | None = None,
        chunks: int | None = None,
    ) -> None:
        """Append our entry; one that is not listed is passed over by other programs.

        It has the digests of all tensors, or those `chunks` ones that `told` makes of what the
        writer knows.
        """
        check_metadata(metadata)
        at = self._at
        count = chunk_count(self._sizes) if chunks is None else chunks

        def digests(sums: Sums) -> bytes:
            return told(sums.digests()) if told else sums.digests()

        def text(known: bytes) -> bytes:
            members = {CHUNKS_KEY: chunks_text(known).decode(), "metadata": dict(metadata)}
            return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()

        def whole(known: bytes) -> bytes:
            data = text(known)
            if listed:
                return whole_entry(name, data, at)
            return unlisted_header(name, zlib.crc32(data), len(data)) + data

        def crc(sums: Sums) -> int:
            return zlib.crc32(text(digests(sums)))

        zeros = bytes(count * DIGEST)
        if listed:
            self._listed.append(_Planned(name, at, len(text(zeros)), crc))
        self._append(Late(len(whole(zeros)), lambda sums: whole(digests(sums))))

    def layout(self, is_sealed: bool) -> Layout:
        """The whole file; sealed if our entry is in it."""
        at, before = self._at, list(self._body)
        comment = _COMMENT + ZEROS if is_sealed else b""

        def end(sums: Sums) -> bytes:
            made = central_directory([plan.entry(sums) for plan in self._listed], at, comment)
            if not is_sealed:
                return made
            parts = [part.make(sums) if isinstance(part, Late) else part for part in before]
            texts = [part for part in parts if isinstance(part, bytes)]
            return sealed(made, len(made) - len(ZEROS), before=texts)

        planned = [plan.entry(None) for plan in self._listed]
        self._append(Late(len(central_directory(planned, at, comment)), end))
        return Layout(self._body, self._at, digested=is_sealed, crcs=self._crcs)

    def _append(self, piece: bytes | Late) -> None:
        self._body.append(piece)
        self._at += len(piece) if isinstance(piece, bytes) else piece.size


def refuse_bare_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise if there is metadata and no entry of ours to hold it."""
    for key in metadata:
        raise RefusedMetadata(
            f"metadata[{key!r}]: without extras, this format holds no metadata; cast=True drops it"
        )


# Reading


def read_entry(read: Read, entry: Entry) -> bytes:
    """All bytes of a small entry, which must be stored and whole."""
    if entry.deflated:
        raise UnsupportedFile(f"entry {shortened(entry.name)!r} is compressed")
    if entry.size > MAX_ENTRY:
        raise LimitExceeded(f"entry {shortened(entry.name)!r}: {entry.size:,} bytes")
    return read(entry.data_at, entry.size)


def read_own(read: Read, entry: Entry) -> dict[str, Any]:
    """Our entry: an object with `standfast.chunks` and `metadata`; other members are ignored."""
    data = read_entry(read, entry)
    if zlib.crc32(data) != entry.crc:
        raise BadArchive(f"entry {entry.name!r}: its CRC-32 is not {entry.crc:08x}")
    members = from_json(data, f"entry {entry.name!r}")
    check_needs(members)
    if not isinstance(members.get("metadata"), dict) or CHUNKS_KEY not in members:
        raise BadField(f"entry {entry.name!r}: expected the keys {CHUNKS_KEY} and metadata")
    for key in members["metadata"]:
        if key.startswith(OWN):
            raise BadField(
                f"entry {entry.name!r}: metadata has the key {shortened(key)!r}, which no user "
                "can set"
            )
    return members


def check_digests(
    read: Read,
    size: int,
    archive: Archive,
    own: Mapping[str, Any] | None,
    starts: np.ndarray[Any, Any],
    sizes: np.ndarray[Any, Any],
) -> bytes | None:
    """The chunk digests, once the seal was found right; None for a file of another program."""
    has_seal = archive.comment.startswith(_COMMENT)
    if own is None and not has_seal:
        return None
    if own is None or not has_seal:
        raise IndexMismatch(
            "one of Standfast's digests and its seal is gone: another program rewrote the file, or "
            "it is damaged; verify=False opens it unchecked"
        )
    order = np.argsort(starts, kind="stable")
    covered = list(zip(starts[order].tolist(), (starts + sizes)[order].tolist(), strict=True))
    others = [read(a, b - a) for a, b in other_ranges(archive, size, covered)]
    digits = archive.comment[len(_COMMENT) :].decode("latin-1")
    check_seal(digits, others[-1], len(others[-1]) - len(ZEROS), before=others[:-1])
    return parse_chunks(own[CHUNKS_KEY], sizes)


def seal_of(archive: Archive) -> str:
    """The digest that a file of ours has of itself."""
    return archive.comment.removeprefix(_COMMENT).decode("latin-1")


def columns(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A column of an index."""
    return np.array(values, np.int64)

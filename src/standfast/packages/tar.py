"""Tar archives of plain files: written the same way always, read front to back and strictly.

Of the archives that programs write, those are read that hold only files and folders, with or
without the headers that pax adds for long names and large files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from standfast.errors import (
    BadArchive,
    DuplicateKey,
    LimitExceeded,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
    printable,
    shortened,
)

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
_LARGEST_FIELD: Final = 1 << 33
"""From here on the size of a file does not fit into its header."""
_MOST_ATTRIBUTES: Final = 64 << 10
_MOST_PADDING: Final = 1 << 20
_KINDS: Final = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file",
}


@dataclass(frozen=True, slots=True)
class Member:
    """A file or a folder in an archive."""

    name: str
    size: int
    is_folder: bool


def header(member: Member) -> bytes:
    """What stands before the content of a member: without times and owners."""
    import tarfile

    info = tarfile.TarInfo(member.name)
    info.size = member.size
    info.type = tarfile.DIRTYPE if member.is_folder else tarfile.REGTYPE
    info.mode = 0o755 if member.is_folder else 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def padding(size: int) -> bytes:
    """What stands after the content of a member, up to the next block."""
    return bytes(-size % BLOCK)


class TarReader:
    """The members of an archive that comes in pieces, one after the other."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self._left = 0
        """Bytes of the content of this member that were not taken."""
        self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        """Each member; its `content` is there until the next one is asked for."""
        while True:
            for _ in self.content():
                pass
            self._exactly(self._padding)
            block = self._exactly(BLOCK)
            if not any(block):
                self._expect_end()
                return
            yield self._member(block)

    def content(self) -> Iterator[bytes | memoryview]:
        """What is left of the content of this member, in pieces."""
        while self._left:
            piece = self._some(self._left)
            self._left -= len(piece)
            yield piece

    def _member(self, block: bytes) -> Member:
        attributes: dict[str, str] = {}
        kind = _kind(block)
        if kind == b"x":
            size = _number(block[124:136])
            if size > _MOST_ATTRIBUTES:
                raise LimitExceeded(f"a header of {size:,} bytes, over {_MOST_ATTRIBUTES:,}")
            attributes = _attributes(self._exactly(size))
            self._exactly(-size % BLOCK)
            block = self._exactly(BLOCK)
            kind = _kind(block)
        name = attributes.get("path", _name(block))
        shown = repr(shortened(printable(name)))
        if kind not in (b"0", b"\0", b"5"):
            what = _KINDS.get(kind, f"a header of the kind {kind!r}")
            raise UnsupportedFile(
                f"{shown} is {what}, and only plain files and folders are unpacked: pack the "
                "folder with `standfast pack`"
            )
        size = _size(block, attributes)
        if kind == b"5" and size:
            raise BadArchive(f"{shown} is a folder of {size:,} bytes: a folder has none")
        self._left, self._padding = size, -size % BLOCK
        return Member(name, size, kind == b"5")

    def _some(self, most: int) -> memoryview:
        """The next bytes, at least one and up to so many."""
        if not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                raise TruncatedFile("the archive ends in the middle")
            self._rest = memoryview(piece)
        some, self._rest = self._rest[:most], self._rest[most:]
        return some

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            parts.append(self._some(count))
            count -= len(parts[-1])
        return b"".join(parts)

    def _expect_end(self) -> None:
        """After a block of zeros there must be nothing but some more."""
        found = BLOCK
        while self._rest or self._fill():
            if bytes(self._rest).strip(b"\0") or found > _MOST_PADDING:
                raise TrailingBytes("there is more after the end of the archive")
            found += len(self._rest)
            self._rest = memoryview(b"")
        if found < len(END):
            raise TruncatedFile("the archive ends in the middle of its end")

    def _fill(self) -> bool:
        self._rest = memoryview(next(self._pieces, b""))
        return len(self._rest) > 0


def _kind(block: bytes) -> bytes:
    """The letter of a header, of which the sum is right."""
    if block[257:262] != b"ustar":
        raise BadArchive("it is no tar archive: a header does not say `ustar`")
    if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * ord(" "):
        raise BadArchive("a header is damaged: its sum is not the one that it says")
    return block[156:157]


def _name(block: bytes) -> str:
    name = _text(block[:100].split(b"\0")[0])
    if block[257:263] == b"ustar\0" and block[345]:
        return f"{_text(block[345:500].split(bytes(1))[0])}/{name}"
    return name


def _size(block: bytes, attributes: dict[str, str]) -> int:
    if "size" not in attributes:
        return _number(block[124:136])
    given = attributes["size"]
    # Where both could say it, one could say this and the other that.
    if not given.isascii() or not given.isdecimal() or len(given) > 20:
        raise BadArchive(f"the size {shortened(printable(given))!r} is no number")
    if int(given) < _LARGEST_FIELD:
        raise BadArchive(f"the size {given} stands in two places")
    return int(given)


def _number(field: bytes) -> int:
    """A number as tar has it: octal digits, or bytes where those do not suffice."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    if not digits or digits.strip(b"01234567"):
        raise BadArchive(f"a number in a header is {field!r}")
    return int(digits, 8)


def _attributes(text: bytes) -> dict[str, str]:
    """The lines `LENGTH KEY=VALUE` of a pax header."""
    attributes: dict[str, str] = {}
    while text:
        digits, space, _ = text[:20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        line, text = text[:length], text[length:]
        key, equals, value = line[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(line) != length or line[-1:] != b"\n":
            raise BadArchive("a header is damaged: a line of it is none of pax")
        name = _text(key)
        if name.startswith("GNU.sparse") or name == "hdrcharset":
            raise UnsupportedFile(
                f"a header has {name!r}, which is not unpacked: pack the folder with "
                "`standfast pack`"
            )
        if name in attributes:
            raise DuplicateKey(f"a header has {shortened(printable(name))!r} twice")
        attributes[name] = _text(value) if name in ("path", "size") else ""
    return attributes


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BadArchive(f"a name is not UTF-8: {raw[:200]!r}") from error

"""Packages as one file: `.tar.gz` or `.tar.zst`, verified before it is written and after."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

from standfast.errors import (
    BadArchive,
    BadOption,
    ChangedFile,
    DuplicateKey,
    LimitExceeded,
    MissingData,
    MissingFile,
    NotEnoughSpace,
    NothingToVerify,
    NotVerified,
    RefusedPickle,
    TrailingBytes,
    TruncatedFile,
    UnreadableFile,
    UnsupportedFile,
    printable,
    shortened,
)
from standfast.files import disk
from standfast.files.atomic import as_write_failed, is_aside
from standfast.files.compression import compressing, decompressed, writing
from standfast.files.folder_swap.open_folder import holding_folder
from standfast.files.folder_swap.swap import make_folders, making_folder
from standfast.files.input.file import SourceFile
from standfast.files.reader import Progress
from standfast.packages.documents.json_text import named
from standfast.packages.remote.places import check_are_here, while_unchanged
from standfast.packages.verify import check_entries, verify_package

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


SUFFIXES: Final = (".tar.gz", ".tgz", ".tar.zst")
MOST_MEMBERS: Final = 1_000
_LONGEST_NAME: Final = 255
_PIECE: Final = 1 << 20


def pack(
    folder: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
) -> Path:
    """Write a package as one file, durably, after it was verified; returns its path.

    Unless it is told otherwise it lies beside the folder: `gpt.tar.gz`. The same package under the
    same name gives the same bytes.
    """
    check_are_here(folder, target)
    home = Path(os.path.abspath(os.fsdecode(folder)))
    path = archive_path(Path(os.fsdecode(folder)), target)
    _check_target(path, home)
    while_unchanged(home, lambda: _pack(home, path, progress))
    return path


def archive_path(folder: Path, target: str | os.PathLike[str] | None = None) -> Path:
    """Where the archive of a package goes: beside it, unless it is told otherwise."""
    if target is not None:
        return Path(os.fsdecode(target))
    name = os.path.basename(os.path.abspath(folder))
    return Path(os.path.normpath(folder / "..")) / f"{name}{SUFFIXES[0]}"


def unpack(
    archive: str | os.PathLike[str],
    into: str | os.PathLike[str] = ".",
    *,
    progress: Progress | None = None,
) -> Path:
    """Unpack a package into a folder of its own below `into`, and verify it; returns the folder.

    Until all of it is there and sound, nothing is; raises AlreadyExists if something is there
    already, and a DamagedFile or UnsupportedFile for an archive that holds anything but one folder
    of plain files.
    """
    check_are_here(archive, into)
    return named(archive, lambda: _unpack(archive, Path(os.fsdecode(into)), progress))


def _check_target(path: Path, home: Path) -> None:
    if not path.name.endswith(SUFFIXES):
        raise BadOption(f"{path}: the name of an archive ends in one of {', '.join(SUFFIXES)}")
    if os.path.realpath(path.parent) == os.path.realpath(home):
        raise BadOption(f"{path} would be in the folder that is packed: choose another place")


def _pack(home: Path, path: Path, progress: Progress | None) -> None:
    with holding_folder(home) as is_there:
        names = _files(home)
        _verify(home)
        with compressing(path, disk.LOCAL) as stream:
            stream.write(header(Member(home.name, 0, is_folder=True)))
            for name in names:
                _add(stream, home / name, f"{home.name}/{name}", progress)
            stream.write(END)
            if not is_there():  # as long as the archive has no name yet
                raise ChangedFile(f"{home} was replaced while it was packed: pack it again")


def _files(home: Path) -> list[str]:
    """The names of what is packed, sorted; raises if not all can be."""
    found = _listed(home)
    if len(found) >= MOST_MEMBERS:
        raise UnsupportedFile(f"{home} has {len(found):,} files: fewer than {MOST_MEMBERS:,} fit")
    files = _checked_entries(home)
    for name in sorted(set(found) - set(files)):
        raise UnsupportedFile(
            f"{home / name} is not a file, and an archive holds only files: move it away"
        )
    names = [name for name in files if not is_aside(name)]
    for name in (home.name, *names):
        if not _is_name(name) or home.name.startswith("."):
            raise UnsupportedFile(
                f"{shortened(printable(name))!r} cannot be a name in an archive: rename it"
            )
    return sorted(names)


def _listed(home: Path) -> list[str]:
    try:
        return os.listdir(home)
    except OSError as error:  # gone this moment
        raise UnreadableFile(error.errno, f"cannot list {home}: {error.strerror}") from error


def _checked_entries(home: Path) -> list[str]:
    try:
        return check_entries(home)
    except RefusedPickle as error:
        reason = str(error).partition(":")[0]
        raise RefusedPickle(f"{reason}: no archive with pickles is packed or unpacked") from error


def _verify(home: Path) -> None:
    try:
        verify_package(home)
    except NothingToVerify as error:  # a package of another program's
        warnings.warn(f"nothing was verified: {error}", NotVerified, stacklevel=5)


def _add(stream: BinaryIO, path: Path, name: str, progress: Progress | None) -> None:
    with closing(SourceFile(path)) as file:
        stream.write(header(Member(name, file.size, is_folder=False)))
        for start in range(0, file.size, _PIECE):
            piece = file.read(start, min(_PIECE, file.size - start))
            stream.write(piece)
            if progress is not None:
                progress(len(piece))
        file.check_unchanged()
        stream.write(padding(file.size))


def _unpack(archive: str | os.PathLike[str], into: Path, progress: Progress | None) -> Path:
    with closing(decompressed(archive, progress)) as pieces:
        reader = TarReader(pieces)
        members = iter(reader)
        first = next(members, None)
        if first is None:
            raise BadArchive("the archive is empty")
        top, _ = _place(first)
        with as_write_failed(into):
            make_folders(Path(os.path.abspath(into)), disk.LOCAL)
        with making_folder(into / top, disk.LOCAL) as aside:
            _extract(reader, chain([first], members), top, aside)
            _checked_entries(aside)
            try:
                _verify(aside)
            except MissingFile as error:
                raise MissingData(f"it holds no package: {error.strerror}") from error
    return into / top


def _extract(reader: TarReader, members: Iterable[Member], top: str, aside: Path) -> None:
    """Write the files of the archive into a folder that has nothing in it."""
    for count, member in enumerate(members, 1):
        if count > MOST_MEMBERS:
            raise LimitExceeded(f"it holds more than {MOST_MEMBERS:,} files")
        folder, name = _place(member)
        if folder != top:
            raise BadArchive(f"it holds two folders, {top!r} and {folder!r}, and a package is one")
        if name is None:
            continue
        path = aside / name
        if os.path.lexists(path):
            raise BadArchive(f"it holds {name!r} twice")
        if member.size > (free := disk.LOCAL.free(aside)):
            raise NotEnoughSpace(
                errno.ENOSPC, f"{name} has {member.size:,} bytes, and {free:,} are free"
            )
        with writing(path, disk.LOCAL) as stream:
            for piece in reader.content():
                stream.write(piece)


def _place(member: Member) -> tuple[str, str | None]:
    """The folder and the file that a member is; None in place of the file for the folder itself."""
    shown = repr(shortened(printable(member.name)))
    plain = member.name.removesuffix("/") if member.is_folder else member.name
    top, *names = plain.removeprefix("./").split("/")
    if not all(map(_is_name, (top, *names))):
        raise BadArchive(f"it holds {shown}, which is no path inside of a folder")
    if top.startswith("."):
        raise BadArchive(f"it holds {shown}: a package is in a folder, and not in a hidden one")
    if len(names) > 1 or (names and member.is_folder):
        raise UnsupportedFile(f"it holds {shown}: a package has no folders in it")
    if not names and not member.is_folder:
        raise BadArchive(f"it holds the file {shown}, which is in no folder: a package is one")
    return top, names[0] if names else None


def _is_name(name: str) -> bool:
    """Whether a file can have this name, and a terminal can show it."""
    is_plain = name not in ("", ".", "..") and "/" not in name and name.isprintable()
    return is_plain and len(name.encode()) <= _LONGEST_NAME

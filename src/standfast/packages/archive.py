"""Packages as one file: `.tar.gz` or `.tar.zst`, verified before it is written and after."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterable
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

from standfast.errors import (
    BadArchive,
    BadOption,
    ChangedFile,
    LimitExceeded,
    MissingData,
    MissingFile,
    NotEnoughSpace,
    NothingToVerify,
    NotVerified,
    RefusedPickle,
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
from standfast.packages.remote.places import check_are_here
from standfast.packages.retry import while_unchanged
from standfast.packages.tar import END, Member, TarReader, header, padding
from standfast.packages.verify import check_entries, verify_package

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
    return named(archive, lambda: _unpack(archive, Path(into), progress))


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

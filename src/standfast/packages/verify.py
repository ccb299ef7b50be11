"""Whether a package is what was saved, and holds nothing that leads out of it or would be run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from standfast.errors import (
    DamagedFile,
    DigestMismatch,
    FileError,
    IndexMismatch,
    MissingData,
    MissingFile,
    NothingToVerify,
    RefusedPickle,
    StandfastError,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
)
from standfast.files.reader import Progress
from standfast.packages.documents.manifest import FileDigest, Manifest, digest_of
from standfast.packages.documents.names import MANIFEST
from standfast.packages.remote.folder import RemotePath
from standfast.packages.remote.places import (
    Entry,
    File,
    Folder,
    as_tensors,
    entries_of,
    folder_at,
    opened,
    while_unchanged,
)
from standfast.packages.weights.weights import find_weights
from standfast.tensorfile.verify import verify

_PICKLES: Final = (".ckpt", ".dill", ".joblib", ".pickle", ".pkl", ".pt", ".pth")
_KNOWN: Final = re.compile(r"(adapter_model|optimizer|pytorch_model.*|training_args)\.bin")
"""Files of that suffix which are pickles; others may be anything."""


_OTHERS: Final = f"; if another program wrote it, remove {MANIFEST}"


@dataclass(frozen=True, slots=True)
class VerifiedPackage:
    """What was verified, every byte of it."""

    files: int
    tensors: int
    nbytes: int
    """The bytes of the tensors."""
    uncovered: tuple[str, ...]
    """Files in the folder that the manifest does not know."""


def check_entries(folder: Folder, ignore_pickles: bool = False) -> list[str]:
    """The names of the files in a folder, of which none leads out of it or is a pickle.

    Raises MissingFile, UnreadableFile, UnsupportedFile or RefusedPickle.
    """
    entries = sorted(entries_of(folder).values(), key=lambda entry: entry.name)
    check_links(folder, entries)
    files = [entry for entry in entries if _is_file(entry)]
    if not ignore_pickles:
        for entry in files:
            if _is_pickle(entry):
                raise RefusedPickle(
                    f"{entry.path} is a pickle, which could run code in programs that load it: "
                    "remove it, or pass ignore_pickles=True to leave it unread"
                )
    return [entry.name for entry in files]


def check_links(folder: Folder, entries: Iterable[Entry]) -> None:
    """Raise UnsupportedFile for a link that leads out of the folder."""
    links = [entry for entry in entries if entry.is_symlink()]
    home = os.path.realpath(folder) if links else ""
    for link in links:
        if os.path.commonpath((os.path.realpath(link.path), home)) != home:
            raise UnsupportedFile(
                f"{link.path} is a link that leads out of the folder: copy the package with "
                "`cp -RL`, which follows links"
            )


def _is_file(entry: Entry) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link in a circle
        return False


def _is_pickle(entry: Entry) -> bool:
    name = entry.name.lower()
    if name.endswith(_PICKLES) or _KNOWN.fullmatch(name):
        return True
    try:
        with closing(opened(entry.path)) as file:
            head = file.read(0, min(1024, file.size))
    except FileError:
        if isinstance(entry.path, RemotePath):
            raise  # the next time it may be read
        return False  # nobody can read it, and nobody does
    if head.startswith(b"PK\x03\x04"):  # what torch.save writes
        return b".pkl" in head
    return head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def verify_package(
    folder: str | os.PathLike[str], progress: Progress | None = None
) -> VerifiedPackage:
    """Read a whole package and check every byte; raises a DamagedFile that names what is wrong.

    Without a manifest, the weights are checked against the digests that they hold themselves, and
    NothingToVerify is raised if they hold none.
    """
    home = folder_at(folder)
    return while_unchanged(home, lambda: _verify(home, progress))


def _verify(home: Folder, progress: Progress | None) -> VerifiedPackage:
    names = check_entries(home, ignore_pickles=True)
    manifest = Manifest.read(home)
    if manifest is None:
        return _verify_bare(home, names, progress)
    problems: dict[str, StandfastError] = {}
    tensors = nbytes = 0
    for name, expected in manifest.files.items():
        try:
            check_file(home / name, expected)
            if expected.of_header:
                verified = verify(as_tensors(home / name), progress)
                tensors, nbytes = tensors + verified.tensors, nbytes + verified.nbytes
        except (DamagedFile, UnsupportedFile) as error:
            problems[name] = error
    if problems:
        raise _joined(problems)
    uncovered = tuple(name for name in names if name not in manifest.files and name != MANIFEST)
    return VerifiedPackage(len(manifest.files), tensors, nbytes, uncovered)


def check_file(path: File, expected: FileDigest) -> None:
    """Raise the DamagedFile that says how a file differs from what the manifest says of it."""
    try:
        with closing(opened(path)) as file:
            check_size(path, file.size, expected)
        found = digest_of(path)
    except MissingFile:
        raise MissingData(f"{path} is missing, which {MANIFEST} names") from None
    if found == expected:
        return
    if expected.of_header:
        verify(as_tensors(path))  # which may say more
        raise IndexMismatch(f"{path} is another file than the one that was saved: see its header")
    raise DigestMismatch(f"{path} is damaged: its bytes are not those that were saved{_OTHERS}", ())


def check_size(what: object, size: int, expected: FileDigest) -> None:
    """Raise TruncatedFile or TrailingBytes for a file of another size than was saved."""
    if size != expected.size:
        error = TruncatedFile if size < expected.size else TrailingBytes
        raise error(f"{what} has {size:,} bytes, and {expected.size:,} were saved{_OTHERS}")


def _verify_bare(home: Folder, names: list[str], progress: Progress | None) -> VerifiedPackage:
    paths, _ = find_weights(home)
    try:
        found = [verify(as_tensors(path), progress) for path in paths]
    except NothingToVerify as error:
        raise NothingToVerify(f"{home} has no {MANIFEST}, and {error}") from error
    return VerifiedPackage(
        len(found),
        sum(verified.tensors for verified in found),
        sum(verified.nbytes for verified in found),
        tuple(name for name in names if home / name not in paths),
    )


def _joined(problems: dict[str, StandfastError]) -> StandfastError:
    if len(problems) == 1:
        return next(iter(problems.values()))
    tensors = tuple(
        name
        for error in problems.values()
        if isinstance(error, DigestMismatch)
        for name in error.tensors
    )
    reasons = "; ".join(str(error) for error in problems.values())
    return DigestMismatch(f"{len(problems)} files are damaged: {reasons}", tensors)

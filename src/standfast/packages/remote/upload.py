"""A package goes to an object store, where its manifest decides whether it is there.

write it aside, on this machine → the manifest that says it is unfinished → the weights
→ the other files → delete what only the old package had → the manifest
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from standfast.errors import AlreadyExists, FileError
from standfast.packages.documents.names import MANIFEST, has_weights
from standfast.packages.ownership import own_files
from standfast.packages.remote.folder import RemoteFolder, forget
from standfast.packages.remote.places import folder_aside
from standfast.packages.remote.unfinished import unfinished_text


@contextmanager
def uploading(home: RemoteFolder, in_the_way: Callable[[str], bool]) -> Iterator[Path]:
    """Give a folder to write a package into; on leaving, upload it.

    Of what is there, the files of the old package go and all others stay. Raises AlreadyExists
    before a byte is written for a file that is not ours and is `in_the_way`.
    """
    home.look_again()
    old = own_files(home)
    for name in sorted(home.files):
        if name not in old and in_the_way(name):
            raise AlreadyExists(
                errno.EEXIST,
                f"{home / name} is there already, and of no package that was saved there: save to "
                "a new place",
            )
    if not old and home.folders:
        raise AlreadyExists(
            errno.EEXIST,
            f"{home} is a folder with others in it: a package there would hide them; save to a "
            "new place, such as one in it",
        )
    with folder_aside() as aside:
        yield aside
        _upload(home, aside, old)


def _upload(home: RemoteFolder, aside: Path, old: list[str]) -> None:
    names = sorted(path.name for path in aside.iterdir() if path.name != MANIFEST)
    names.sort(key=lambda name: not has_weights([name]))
    # Names out of a file become keys only if they are those of objects in the folder.
    gone = sorted((home.files.keys() & set(old)) - {*names, MANIFEST})
    before = home.files.get(MANIFEST)
    unfinished = unfinished_text({*names, *old} - {MANIFEST}, uuid.uuid4().hex)
    tag = _put_manifest(home, unfinished, before and before.tag)
    try:
        for name in names:
            _check_ours(home, tag)
            home.upload(name, aside / name)
        home.delete(gone)
        _put_manifest(home, (aside / MANIFEST).read_bytes(), tag)
    except BaseException:
        if not old and _is_ours(home, tag):  # nothing is lost: there was no package before
            forget(home, [*names, MANIFEST])
        raise


def _put_manifest(home: RemoteFolder, text: bytes, before: str | None) -> str:
    """Put a manifest into the place of the one with the tag `before`; returns its tag."""
    try:
        return home.put(MANIFEST, text, create=before is None, match=before)
    except AlreadyExists as error:
        raise _taken(home) from error


def _check_ours(home: RemoteFolder, tag: str) -> None:
    if home.tag(MANIFEST) != tag:
        raise _taken(home)


def _is_ours(home: RemoteFolder, tag: str) -> bool:
    try:
        return home.tag(MANIFEST) == tag
    except FileError:
        return False


def _taken(home: RemoteFolder) -> AlreadyExists:
    return AlreadyExists(
        errno.EEXIST, f"{home}: another program saves there now: save to another place, or again"
    )

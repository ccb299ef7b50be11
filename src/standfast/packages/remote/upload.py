"""A package goes to an object store, where its manifest decides which save is there.

write it aside, on this machine → upload it into a folder of its own → the manifest that names this
folder takes the place of the one before → delete what that one named, and what killed saves left

A process that read the manifest before this commit cannot replace it any more: the condition of its
put does not hold. So every folder that was there before the commit is of a save that is over.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from standfast.errors import AlreadyExists
from standfast.packages.documents.names import MANIFEST, has_weights
from standfast.packages.ownership import own_files
from standfast.packages.remote.folder import RemoteFolder, forget
from standfast.packages.remote.places import folder_aside
from standfast.packages.remote.pointer import SAVES, Pointer


@contextmanager
def uploading(package: RemoteFolder, in_the_way: Callable[[str], bool]) -> Iterator[Path]:
    """Give a folder to write a package into; on leaving, upload it.

    Of what is there, the files of the old package go and all others stay. Raises AlreadyExists
    before a byte is written for a file that is not ours and is `in_the_way`.
    """
    home = package.as_it_lies()
    home.check_conditions()
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
    names = sorted(path.name for path in aside.iterdir())
    names.sort(key=lambda name: not has_weights([name]))
    # Names out of a file become keys only if they are those of objects in the folder.
    replaced = sorted((home.files.keys() & set(old)) - {MANIFEST})
    folder, before = os.urandom(8).hex(), home.files.get(MANIFEST)
    uploaded = [f"{SAVES}/{folder}/{name}" for name in names]
    try:
        for name, target in zip(names, uploaded, strict=True):
            home.upload(target, aside / name)
        over = [*replaced, *(name for name in home.below(SAVES) if name not in uploaded)]
    except BaseException:
        forget(home, uploaded)
        raise
    text = Pointer(folder, tuple(replaced)).text()
    try:
        home.put(MANIFEST, text, create=before is None, match=before and before.tag)
    except AlreadyExists as error:
        forget(home, uploaded)
        raise AlreadyExists(
            errno.EEXIST,
            f"{home}: another program has saved there since: save to another place, or again",
        ) from error
    # The package is saved. What cannot be deleted now, the next save deletes.
    forget(home, over)

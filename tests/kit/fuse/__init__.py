"""Small file systems of other kinds, mounted for a while: FUSE, tmpfs, ext4 in a file.

with mounted(tmp_path / "disk", fallocate=False) as folder:
    Store(folder)
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from tests.kit.fuse.server import unmount

DEVICES = {"fuse": "/dev/fuse", "ext4": "/dev/loop-control", "tmpfs": "/"}


class CannotMount(Exception):
    """This machine does not let this user mount such a file system."""


@contextmanager
def mounted(
    place: Path,
    kind: str = "fuse",
    *,
    size: int = 0,
    links: bool = True,
    rename2: bool = True,
    fallocate: bool = True,
) -> Iterator[Path]:
    """Mount an empty file system of one `kind` at `place`, and unmount it at the end.

    It has `size` bytes; of FUSE it is optional. The switches are for FUSE, and take a call away:
    hard links, renames with flags, fallocate. What a FUSE file system holds lies in
    `place.backing` unless it has a size. Raises CannotMount where that is not allowed.
    """
    if reason := why_not(kind):
        raise CannotMount(reason)
    place.mkdir(parents=True, exist_ok=True)
    operations = {"link": links, "rename2": rename2, "fallocate": fallocate}
    missing = [name for name, has in operations.items() if not has]
    keeper = subprocess.Popen(
        [sys.executable, "-m", __name__, kind, str(place), str(size), *missing],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert keeper.stdout is not None
    try:
        if keeper.stdout.readline() != b"mounted\n":
            raise RuntimeError(f"the {kind} file system could not be mounted")
        yield place
    finally:
        keeper.terminate()
        if keeper.wait():  # it has failed, or was killed
            for left in (place, place.with_name(place.name + ".backing")):
                with suppress(OSError):
                    unmount(left)
        keeper.stdout.close()
    if keeper.returncode:
        raise RuntimeError(f"the server of the {kind} file system has failed")


@cache
def why_not(kind: str) -> str | None:
    """Why no such file system can be mounted here; None if one can."""
    try:
        os.close(os.open(DEVICES[kind], os.O_RDONLY))
    except OSError as error:
        return f"{DEVICES[kind]} cannot be opened: {error.strerror}"
    done = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    return "this user may not mount file systems" if done.returncode else None

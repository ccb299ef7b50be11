"""`standfast export`: a checkpoint as files that need no store."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.display.output import count_text, print_json, progress_bar, say, size_text
from standfast.errors import AlreadyExists

if TYPE_CHECKING:
    from standfast.store import Checkpoint


def export_checkpoint(
    checkpoint: Checkpoint,
    target: str,
    *,
    part: str | None = None,
    format: str | None = None,
    cast: bool = False,
    extras: bool = True,
    replace: bool = False,
    as_json: bool = False,
) -> None:
    """Export and print what was written."""
    from standfast.store.copies.export import export

    name = Path(target).name.removesuffix(".zst")
    if format == "sunc" or (format is None and name.endswith(".sunc")):
        _export_trees(checkpoint, Path(target), extras=extras, replace=replace, as_json=as_json)
        return
    if not replace and os.path.lexists(target):
        raise AlreadyExists(errno.EEXIST, f"{target} is there already: --yes replaces it")
    with progress_bar(f"reading {checkpoint.ref}", checkpoint.nbytes) as report:
        done = export(checkpoint, target, part, format, cast, extras=extras, progress=report)
    if as_json:
        print_json(
            {
                "ref": checkpoint.ref,
                "files": [str(file) for file in done.files],
                "tensors": done.tensors,
                "bytes": done.nbytes,
            }
        )
        return
    say(
        ("exported    ", "green"),
        f"{target}: {checkpoint.ref}, {count_text(done.tensors, 'tensor')}, "
        f"{size_text(done.nbytes)}, each verified when it was read",
    )
    if len(done.files) > 1:
        for file in done.files:
            say(f"            {file}")


def _export_trees(
    checkpoint: Checkpoint, target: Path, *, extras: bool, replace: bool, as_json: bool
) -> None:
    """The `.sunc` file of each rank; raises BadOption for a checkpoint that is no snapshot."""
    from standfast.amr.snapshot.snapshot import Snapshot

    snapshot = Snapshot(checkpoint)
    if not replace:
        for path in snapshot.exported_paths(target):
            if os.path.lexists(path):
                raise AlreadyExists(errno.EEXIST, f"{path} is there already: --yes replaces it")
    files = snapshot.export(target, extras=extras)
    if as_json:
        print_json({"ref": checkpoint.ref, "files": files})
        return
    for file in files:
        say(("exported    ", "green"), f"{file}: {checkpoint.ref}, verified when it was read")

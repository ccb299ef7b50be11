"""Snapshots as `.sunc` files, one for each rank."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from standfast.amr.snapshot.parts import SavedParts
from standfast.amr.snapshot.restore import load_rank
from standfast.amr.sunc.checkpoint import write
from standfast.amr.sunc.paths import format_path, format_ranked_path
from standfast.errors import BadOption, WriteFailed
from standfast.files import disk
from standfast.files.atomic import as_write_failed, real_target
from standfast.files.compression import SUFFIX, compressing

SUNC: Final = ".sunc"


def exported_paths(
    parts: SavedParts, path: str | os.PathLike[str], compress: str | None = None
) -> list[str]:
    """Where the file of each rank goes; a path that ends in `.zst` asks for compression too."""
    if compress not in (None, "zstd"):
        raise BadOption(f"compress={compress!r}: there are None and 'zstd'")
    ending = SUFFIX if compress or os.fspath(path).endswith(SUFFIX) else ""
    return [f"{_target(parts, Path(path), rank)}{ending}" for rank in range(parts.ranks)]


def export(
    parts: SavedParts, path: str | os.PathLike[str], compress: str | None, extras: bool
) -> list[str]:
    """Write the file of each rank; see `Snapshot.export`."""
    targets = exported_paths(parts, path, compress)
    folder = real_target(targets[0]).parent
    for target in targets:  # a rename that fails would leave the files of the ranks before it
        if os.path.isdir(target):
            raise WriteFailed(errno.EISDIR, f"cannot write {target}: it is a folder")
    # None has its name before all are written: some of them would be taken for a whole state.
    with TemporaryDirectory(prefix=".standfast-", dir=folder, ignore_cleanup_errors=True) as aside:
        for rank, target in enumerate(targets):
            state, new = load_rank(parts, rank), f"{aside}/{Path(target).name}"
            if target.endswith(SUFFIX):
                with compressing(new, disk.LOCAL) as stream:
                    write(state.tree, state.arena, stream, extras=extras)
            else:
                write(state.tree, state.arena, new, extras=extras)
        with as_write_failed(folder):
            for target in targets:
                disk.LOCAL.rename(Path(aside, Path(target).name), Path(target))
            disk.LOCAL.sync_folder(folder)
    return targets


def _target(parts: SavedParts, path: Path, rank: int) -> Path:
    """Where the file of a rank goes, but for what tells that it is compressed."""
    step, is_alone = parts.checkpoint.step, parts.ranks == 1
    if path.is_dir() or not path.name.removesuffix(SUFFIX).endswith(SUNC):
        run = parts.checkpoint.run
        prefix = run.name if run.name and run.name.isidentifier() else run.hash
        if is_alone:
            return Path(format_path(path, prefix, step))
        return Path(format_ranked_path(path, prefix, step, rank))
    stem = path.name.removesuffix(SUFFIX).removesuffix(SUNC)
    return path.with_name(f"{stem}{SUNC}" if is_alone else f"{stem}_rank{rank}{SUNC}")

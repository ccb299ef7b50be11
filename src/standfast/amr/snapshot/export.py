"""Snapshots as `.sunc` files, one for each rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from standfast.amr.snapshot.parts import SavedParts
from standfast.amr.snapshot.restore import load_rank
from standfast.amr.sunc.checkpoint import write
from standfast.amr.sunc.paths import format_path, format_ranked_path
from standfast.errors import BadOption
from standfast.files import disk
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
    for rank, target in enumerate(targets):
        state = load_rank(parts, rank)
        if target.endswith(SUFFIX):
            with compressing(target, disk.LOCAL) as stream:
                write(state.tree, state.arena, stream, extras=extras)
        else:
            write(state.tree, state.arena, target, extras=extras)
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

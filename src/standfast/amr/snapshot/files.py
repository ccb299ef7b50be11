"""Snapshots to and from `.sunc` files, one for each rank."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import msgspec
import numpy as np

from standfast.amr.ghosts.places import Places
from standfast.amr.mesh.frontends import Frontend
from standfast.amr.shard import ShardContext, manual_owners
from standfast.amr.snapshot.parts import SavedParts
from standfast.amr.snapshot.restore import load_rank
from standfast.amr.sunc.checkpoint import TreeState, read_whole_file, write
from standfast.amr.sunc.paths import format_path, format_ranked_path, parse_path
from standfast.errors import (
    BadOption,
    IncompatibleCheckpoint,
    RanksDisagree,
    WriteFailed,
    shortened,
)
from standfast.files import disk
from standfast.files.atomic import as_write_failed, real_target
from standfast.files.compression import SUFFIX, compressing
from standfast.files.paths import check_local
from standfast.formats.sunc.file import block_dtype
from standfast.parallel import Communicator, SingleRank, together

SUNC: Final = ".sunc"


def exported_paths(
    parts: SavedParts, path: str | os.PathLike[str], compress: str | None = None
) -> list[str]:
    """Where the file of each rank goes; a path that ends in `.zst` asks for compression too."""
    check_local(path)
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


# Import


def in_rank_order(paths: Any) -> tuple[list[str], int | None]:
    """The files in the order of their ranks, and their step, as far as their names say.

    Raises RanksDisagree for files of different steps, and BadOption if a rank is missing.
    """
    alone = isinstance(paths, str | os.PathLike)
    given = [paths] if alone else list(paths) if isinstance(paths, Iterable) else []
    if not given or not all(isinstance(path, str | os.PathLike) for path in given):
        raise BadOption(f"paths={paths!r:.80}: give the path of a .sunc file, or one of each rank")
    named = [(os.fspath(path), *parse_path(path)) for path in given]
    by_step: dict[int, list[str]] = {}
    for path, step, _ in named:
        if step is not None:
            by_step.setdefault(step, []).append(Path(path).name)
    if len(by_step) > 1:
        told = "; ".join(f"{step} in {shortened(', '.join(by_step[step]))}" for step in by_step)
        raise RanksDisagree(f"the ranks do not agree on the step: {told}; give files of one step")
    ranks = [-1 if rank is None else rank for _, _, rank in named]
    if any(rank >= 0 for rank in ranks):
        if sorted(ranks) != list(range(len(ranks))):
            raise BadOption(
                f"paths: expected a file of each of the ranks 0 to {len(ranks) - 1}, found "
                + shortened(", ".join(Path(path).name for path, _, _ in named))
            )
        named.sort(key=lambda each: each[2] or 0)
    return [path for path, _, _ in named], next(iter(by_step), None)


def read_files(
    paths: Sequence[str], frontend: Frontend, comm: Communicator, verify: bool | Literal["require"]
) -> dict[int, TreeState[Any]]:
    """Collective: the states in files, by the numbers of those that this rank has read.

    Of several files each tree has a shard that says which file has which block.
    """
    mine = range(comm.rank, len(paths), comm.size)
    states = together(comm, lambda: {n: read_whole_file(paths[n], frontend, verify) for n in mine})
    told = [
        (
            n,
            type(state.tree).__name__,
            [state.tree.base_spacing, state.tree.bits_per_dim, state.tree.max_level],
            state.tree.blocks[state.tree.live].tobytes(),
        )
        for n, state in states.items()
    ]
    gathered = comm.all_gather(msgspec.msgpack.encode(told))
    every = sorted(each for part in gathered for each in msgspec.msgpack.decode(part))
    for n, *head, _ in every:
        if head != every[0][1:3]:
            raise IncompatibleCheckpoint(
                f"{paths[n]}: kind of tree, spacing, bits and levels: expected {every[0][1:3]} as "
                f"in {paths[0]}, found {head}; give the files of one simulation"
            )
    if len(paths) > 1:
        shard = _shard_of(every, paths, frontend)
        for state in states.values():
            state.tree.attach_shard(shard)
    return states


def _shard_of(every: Sequence[Any], paths: Sequence[str], frontend: Frontend) -> ShardContext:
    """Each block is owned by the file that has it; raises RanksDisagree if two files do."""
    spacing, bits, _ = every[0][2]
    records: Any = np.frombuffer(b"".join(each[3] for each in every), block_dtype(frontend.nd))
    counts = [len(each[3]) // records.itemsize for each in every]
    places = Places(frontend, spacing, bits, records["origin"], records["level"])
    owned = manual_owners(places, np.repeat(np.arange(len(paths)), counts), paths)
    return ShardContext(SingleRank(), "manual", *owned)

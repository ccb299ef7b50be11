"""Snapshots as `.sunc` files: the bytes that the tree itself writes, a file for each rank."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from standfast import Store
from standfast.amr import (
    AMRTree,
    FieldArena,
    GaugeTree,
    OpenTopology,
    ScalarFrontend,
    Snapshot,
    TreeCheckpoint,
)
from standfast.errors import BadOption, DigestMismatch, WriteFailed
from tests.amr.meshes import random_mesh
from tests.amr.snapshot.snapshots import saved_by_threads
from tests.amr.tree_states import saved, worn
from tests.kit.seams import Seams
from tests.kit.stores import data_path, flip


@pytest.mark.parametrize("kind", ["scalar", "vector", "u1"])
def test_a_snapshot_is_exported_as_the_file_that_the_tree_writes(
    kind: str, run: Any, tmp_path: Path
) -> None:
    tree, arena = worn(kind)
    snapshot = Snapshot.save(run, 7, tree, arena)
    expected = saved(tree, arena)
    (bare,) = snapshot.export(tmp_path, extras=False)
    assert Path(bare) == tmp_path / "heat_step7.sunc"
    assert Path(bare).read_bytes() == expected
    (with_digests,) = snapshot.export(tmp_path / "mine.sunc")
    assert Path(with_digests).read_bytes().startswith(expected)
    (compressed,) = snapshot.export(tmp_path / "mine.sunc", compress="zstd")
    assert Path(compressed) == tmp_path / "mine.sunc.zst"
    assert snapshot.export(compressed, compress="zstd") == [compressed]
    assert _unpacked(compressed) == Path(with_digests).read_bytes()
    if isinstance(tree, GaugeTree):
        found: Any = GaugeTree.read_checkpoint_from_file(
            with_digests, frontend=tree.frontend, verify="require"
        )
    else:
        found = TreeCheckpoint(tree.frontend).read_from_file(with_digests, verify="require")
    assert saved(found.tree, found.arena) == expected


def test_a_long_export_is_compressed_whole(run: Any, tmp_path: Path) -> None:
    frontend = ScalarFrontend(2, 16, OpenTopology(2, (64.0, 64.0)))
    tree, arena = AMRTree(frontend, 1.0, 6, 2), FieldArena(frontend, 5000)
    arena.storage[:3000] = np.random.default_rng(0).random(arena.storage[:3000].shape)
    snapshot = Snapshot.save(run, 1, tree, arena)
    (compressed,) = snapshot.export(tmp_path, compress="zstd", extras=False)
    assert 4 << 20 < Path(compressed).stat().st_size < 7 << 20
    assert _unpacked(compressed) == saved(tree, arena)


def _unpacked(path: str) -> bytes:
    """What is in a zstd file, which is one frame, to its last byte."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    data = frame.decompress(Path(path).read_bytes())
    assert (frame.eof, frame.unused_data) == (True, b"")
    return data


def test_every_rank_is_exported_to_a_file_of_its_own(run: Any, tmp_path: Path) -> None:
    states = saved_by_threads(run, 3, lambda rank: random_mesh(rank, gauge=1))
    snapshot = Snapshot(run.checkpoint(1))
    paths = snapshot.export(tmp_path, extras=False)
    assert [Path(path).name for path in paths] == [f"heat_step1_rank{n}.sunc" for n in range(3)]
    assert [Path(path).read_bytes() for path in paths] == states
    names = [Path(path).name for path in snapshot.export(tmp_path / "x.sunc", compress="zstd")]
    assert names == [f"x_rank{n}.sunc.zst" for n in range(3)]


def test_an_export_that_fails_leaves_the_old_file(run: Any, tmp_path: Path, seams: Seams) -> None:
    snapshot = Snapshot.save(run, 1, *worn())
    target = tmp_path / "a.sunc.zst"
    target.write_bytes(b"old")

    def full(write: Any, fd: int, data: Any, *rest: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    seams.disk(write=full)
    with pytest.raises(WriteFailed, match=r"a\.sunc\.zst"):
        snapshot.export(target, compress="zstd")
    assert [path.name for path in tmp_path.iterdir()] == ["a.sunc.zst"]
    assert target.read_bytes() == b"old"


def test_an_export_over_a_folder_replaces_no_file_of_another_rank(run: Any, tmp_path: Path) -> None:
    saved_by_threads(run, 2, lambda rank: random_mesh(rank, gauge=1))
    snapshot = Snapshot(run.checkpoint(1))
    (tmp_path / "heat_rank0.sunc").write_bytes(b"old")
    (tmp_path / "heat_rank1.sunc").mkdir()
    with pytest.raises(WriteFailed, match="heat_rank1"):
        snapshot.export(tmp_path / "heat.sunc")
    assert (tmp_path / "heat_rank0.sunc").read_bytes() == b"old"


def test_of_several_ranks_all_files_appear_or_none(tmp_path: Path) -> None:
    run = Store(tmp_path / "store").run("heat")
    saved_by_threads(run, 3, lambda rank: random_mesh(rank, gauge=1))
    snapshot = Snapshot(run.checkpoint(1))
    flip(data_path(run, 1, "rank2"))
    (tmp_path / "out").mkdir()
    with pytest.raises(DigestMismatch):
        snapshot.export(tmp_path / "out")
    with pytest.raises(BadOption, match="compress='gzip'"):
        snapshot.export(tmp_path / "out", compress="gzip")  # type: ignore[arg-type]
    assert list((tmp_path / "out").iterdir()) == []

"""Snapshots of ranks that are threads: as `.sunc` files, and on other numbers of ranks."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from standfast import Run, Store, amr
from standfast.errors import BadOption, DigestMismatch, DuplicateKey, RanksDisagree, WriteFailed
from tests.amr.meshes import empty_mesh, fields_by_key, random_mesh
from tests.amr.tree_states import saved, worn
from tests.kit.rank_threads import on_threads
from tests.kit.stores import data_path, flip


@pytest.mark.parametrize("kind", ["scalar", "vector", "u1"])
def test_a_snapshot_is_exported_as_the_file_that_the_tree_writes(kind, run, tmp_path):
    tree, arena = worn(kind)
    snapshot = amr.Snapshot.save(run, 7, tree, arena)
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
    if isinstance(tree, amr.GaugeTree):
        found: Any = amr.GaugeTree.read_checkpoint_from_file(
            with_digests, frontend=tree.frontend, verify="require"
        )
    else:
        found = amr.TreeCheckpoint(tree.frontend).read_from_file(with_digests, verify="require")
    assert saved(found.tree, found.arena) == expected


def test_a_long_export_is_compressed_whole(run, tmp_path):
    frontend = amr.ScalarFrontend(2, 16, amr.OpenTopology(2, (64.0, 64.0)))
    tree, arena = amr.AMRTree(frontend, 1.0, 6, 2), amr.FieldArena(frontend, 5000)
    arena.storage[:3000] = np.random.default_rng(0).random(arena.storage[:3000].shape)
    snapshot = amr.Snapshot.save(run, 1, tree, arena)
    (compressed,) = snapshot.export(tmp_path, compress="zstd", extras=False)
    assert 4 << 20 < Path(compressed).stat().st_size < 7 << 20
    assert _unpacked(compressed) == saved(tree, arena)


def _unpacked(path: str) -> bytes:
    """What is in a zstd file, which is one frame, to its last byte."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    data = frame.decompress(Path(path).read_bytes())
    assert (frame.eof, frame.unused_data) == (True, b"")
    return data


def test_every_rank_is_exported_to_a_file_of_its_own(run, tmp_path):
    states = saved_by_threads(run, 3, lambda rank: random_mesh(rank, gauge=1))
    snapshot = amr.Snapshot(run.checkpoint(1))
    paths = snapshot.export(tmp_path, extras=False)
    assert [Path(path).name for path in paths] == [f"heat_step1_rank{n}.sunc" for n in range(3)]
    assert [Path(path).read_bytes() for path in paths] == states
    names = [Path(path).name for path in snapshot.export(tmp_path / "x.sunc", compress="zstd")]
    assert names == [f"x_rank{n}.sunc.zst" for n in range(3)]


def test_an_export_that_fails_leaves_the_old_file(run, tmp_path, seams):
    snapshot = amr.Snapshot.save(run, 1, *worn())
    target = tmp_path / "a.sunc.zst"
    target.write_bytes(b"old")

    def full(write: Any, fd: int, data: Any, *rest: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    seams.disk(write=full)
    with pytest.raises(WriteFailed, match=r"a\.sunc\.zst"):
        snapshot.export(target, compress="zstd")
    assert [path.name for path in tmp_path.iterdir()] == ["a.sunc.zst"]
    assert target.read_bytes() == b"old"


def test_an_export_over_a_folder_replaces_no_file_of_another_rank(run, tmp_path):
    saved_by_threads(run, 2, lambda rank: random_mesh(rank, gauge=1))
    snapshot = amr.Snapshot(run.checkpoint(1))
    (tmp_path / "heat_rank0.sunc").write_bytes(b"old")
    (tmp_path / "heat_rank1.sunc").mkdir()
    with pytest.raises(WriteFailed, match="heat_rank1"):
        snapshot.export(tmp_path / "heat.sunc")
    assert (tmp_path / "heat_rank0.sunc").read_bytes() == b"old"


def test_of_several_ranks_all_files_appear_or_none(tmp_path):
    run = Store(tmp_path / "store").run("heat")
    saved_by_threads(run, 3, lambda rank: random_mesh(rank, gauge=1))
    snapshot = amr.Snapshot(run.checkpoint(1))
    flip(data_path(run, 1, "rank2"))
    (tmp_path / "out").mkdir()
    with pytest.raises(DigestMismatch):
        snapshot.export(tmp_path / "out")
    with pytest.raises(BadOption, match="compress='gzip'"):
        snapshot.export(tmp_path / "out", compress="gzip")  # type: ignore[arg-type]
    assert list((tmp_path / "out").iterdir()) == []


def saved_by_threads(run: Run, size: int, made: Callable[[int], Any], shard: str = "") -> Any:
    """Save the trees of some ranks as step 1; returns the file of each."""

    def program(comm: Any) -> bytes:
        tree, arena = made(comm.rank)
        if shard:
            tree.attach_shard(amr.ShardContext.from_tree(tree, comm, shard))
        own = Store(run.store.backend).run("heat")
        amr.Snapshot.save(own, 1, tree, arena, comm=None if shard else comm)
        return saved(tree, arena)

    return on_threads(size, program)


def _loaded_by_threads(run: Any, size: int) -> Any:
    """What each of some ranks has of step 1: its blocks, their owners, and its free slots."""

    def program(comm: Any) -> Any:
        found = amr.Snapshot.load(Store(run.store.backend).run("heat"), 1, comm=comm, reshard=True)
        assert found.shard is not None
        fields = fields_by_key(found.tree, found.arena)
        return fields, found.shard.owners.tolist(), found.arena.free_count

    return on_threads(size, program)


def test_there_may_be_more_ranks_than_blocks(run):
    tree, arena = empty_mesh(gauge=1)
    tree.insert_block_with_field((0, 0), 0, arena)
    amr.Snapshot.save(run, 1, tree, arena)
    found = _loaded_by_threads(run, 3)
    assert [len(blocks) for blocks, _, _ in found] == [1, 0, 0]
    assert [free for _, _, free in found] == [1, 2, 2]


def test_of_copies_that_ranks_hold_the_owners_counts(run):
    def made(rank: int) -> Any:
        tree, arena = empty_mesh()
        for place in ((0, 0), (4, 0)):
            tree.insert_block_with_field(place, 0, arena)
        arena.storage[:] = rank
        return tree, arena

    saved_by_threads(run, 2, made, "morton_contiguous")  # and the blocks are not moved
    found = amr.Snapshot.load(run, 1, reshard=True)
    assert found.arena.storage[:2, 0].tolist() == [0.0, 1.0]
    assert found.shard is None


def of_one_key(rank: int) -> Any:
    tree, arena = empty_mesh()
    tree.insert_block_with_field((0, 0), 0, arena)
    if rank:
        tree.blocks["origin"][0] = (4 * 64, 0)  # too far out for a key of its own
    return tree, arena


@pytest.mark.parametrize(
    ("made", "error"), [(of_one_key, DuplicateKey), (lambda rank: random_mesh(rank), RanksDisagree)]
)
def test_meshes_of_their_own_are_not_shared_out_as_one(made, error, run):
    saved_by_threads(run, 2, made)
    with pytest.raises(error):
        amr.Snapshot.load(run, 1, reshard=True)

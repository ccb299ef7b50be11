"""Snapshots as `.sunc` files, of any number of ranks: exported, and imported into a run."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import standfast
from standfast import Run, Store, amr, errors
from standfast.errors import BadOption, DigestMismatch, DuplicateKey, RanksDisagree, WriteFailed
from tests import ROOT
from tests.amr.meshes import empty_mesh, fields_by_key, merged, random_mesh
from tests.amr.saved_states import GAUGE, SCALAR, VECTOR, State, divided, empty, refined
from tests.amr.tree_states import golden, golden_channel, golden_scalar, golden_u1, saved, worn
from tests.kit.rank_threads import on_threads
from tests.kit.stores import data_path, flip

FRONTENDS = pytest.mark.parametrize(
    "frontend", [SCALAR, VECTOR, GAUGE], ids=["scalar", "mixed vector", "gauge"]
)


def written(folder: Path, states: list[State], step: int = 100) -> list[str]:
    """A file of each rank, under the names of the original."""
    paths = [amr.format_ranked_path(folder, "run", step, rank) for rank in range(len(states))]
    for (tree, arena), path in zip(states, paths, strict=True):
        Path(path).write_bytes(saved(tree, arena))
    return paths


def imported(run: Any, size: int, paths: Any, **options: Any) -> list[Any]:
    """What an import gives on each of some ranks."""

    def program(comm: Any) -> Any:
        own = Store(run.store.backend).run("heat")
        return amr.Snapshot.import_files(own, paths, comm=comm, **options).step

    return on_threads(size, program)


ORIGINALS: dict[str, Callable[[], Any]] = {
    "sunc_scalar_2d": golden_scalar,
    "sunc_vector_2d": lambda: golden_channel(VECTOR, True),
    "sunc_u1_2d": golden_u1,
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_file_of_the_original_becomes_a_checkpoint_of_a_run(name, run, tmp_path):
    frontend = ORIGINALS[name]()[0].frontend
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff_step100.sunc")
    Path(path).write_bytes(golden(name))
    values = {"beta": 2.5}
    snapshot = amr.Snapshot.import_files(run, path, frontend=frontend, time=0.25, values=values)
    found = amr.Snapshot.load(run, frontend=frontend)
    assert (found.step, found.time, found.values, found.shard) == (100, 0.25, values, None)
    assert saved(found.tree, found.arena) == golden(name)
    assert isinstance(found.tree, amr.GaugeTree) == (name == "sunc_u1_2d")
    (exported,) = snapshot.export(tmp_path / "again.sunc", extras=False)
    assert Path(exported).read_bytes() == golden(name)


@FRONTENDS
@pytest.mark.parametrize(("files", "importing", "loading"), [(3, 2, 2), (2, 3, 1), (1, 2, 3)])
def test_files_of_some_ranks_go_on_on_others(frontend, files, importing, loading, run, tmp_path):
    whole = refined(frontend)
    paths = written(tmp_path, divided(whole, files))
    steps = imported(run, importing, paths[::-1], frontend=frontend)
    assert steps == [100] * importing

    def program(comm: Any) -> Any:
        own = Store(run.store.backend).run("heat")
        found = amr.Snapshot.load(own, frontend=frontend, comm=comm, reshard=True)
        return fields_by_key(found.tree, found.arena)

    assert merged(on_threads(loading, program)) == fields_by_key(*whole)
    assert amr.logical_digest(run.checkpoint(100)) == amr.logical_digest(whole)


@FRONTENDS
def test_on_as_many_ranks_as_files_each_has_its_own_bit_for_bit(frontend, run, tmp_path):
    paths = written(tmp_path, divided(refined(frontend), 3))
    imported(run, 1, paths, frontend=frontend, step=7)

    def program(comm: Any) -> Any:
        own = Store(run.store.backend).run("heat")
        found = amr.Snapshot.load(own, 7, frontend=frontend, comm=comm)
        assert found.shard is not None
        assert found.shard.kind == "manual"
        found.tree.fill_ghosts(found.arena)  # the shard is that of the blocks
        with pytest.raises(errors.StateMismatch):
            found.restore_random()
        return saved(found.tree, found.arena)

    assert on_threads(3, program) == [Path(path).read_bytes() for path in paths]


def test_files_of_different_steps_are_refused_with_the_step_of_each_rank(run, tmp_path):
    states = divided(refined(), 3)
    paths = [*written(tmp_path, states, 200)[:1], *written(tmp_path, states, 100)[1:]]
    told = r"200.*step200_rank0\.sunc.*100.*step100_rank1\.sunc.*step100_rank2\.sunc"
    for step in (None, 100):
        with pytest.raises(errors.RanksDisagree, match=told):
            amr.Snapshot.import_files(run, paths, frontend=SCALAR, step=step)
    assert run.checkpoints() == []


def test_files_that_are_not_one_of_each_rank_are_refused(run, tmp_path):
    paths = written(tmp_path, divided(refined(), 3))
    gone = amr.format_ranked_path(tmp_path, "run", 100, 3)
    for some in (paths[1:], [paths[0], paths[2]], [*paths, paths[1]]):
        with pytest.raises(errors.BadOption):
            amr.Snapshot.import_files(run, some, frontend=SCALAR)
    with pytest.raises(errors.MissingFile, match="rank3"):
        amr.Snapshot.import_files(run, [*paths, gone], frontend=SCALAR)
    both = written(tmp_path, [refined(), refined()])
    with pytest.raises(errors.RanksDisagree, match=r"rank0\.sunc.*rank1\.sunc"):
        imported(run, 2, both, frontend=SCALAR)
    tree, arena = amr.AMRTree(SCALAR, 0.5, 6, 4), amr.FieldArena(SCALAR, 4)
    tree.insert_block_with_field((8, 8), 0, arena)
    two_simulations = written(tmp_path, [refined(), (tree, arena)])
    with pytest.raises(errors.IncompatibleCheckpoint, match=r"rank1\.sunc.*rank0\.sunc"):
        imported(run, 2, two_simulations, frontend=SCALAR)
    assert run.checkpoints() == []


AS_COMPLEX = amr.ScalarFrontend(2, 4, GAUGE.topology, np.complex128, GAUGE.components)


@pytest.mark.parametrize(
    ("change", "error", "options"),
    [
        (lambda data: data[:700] + b"?" + data[701:], errors.DigestMismatch, {}),
        (lambda data: saved(*refined()), errors.NothingToVerify, {"verify": "require"}),
        (lambda data: saved(*refined())[:-1], errors.TruncatedFile, {}),
        (lambda data: b"PK" + data[2:], errors.StandfastError, {}),
        (lambda data: bytes(8) + data, errors.BadHeader, {}),
        (lambda data: saved(*refined()) + b"another's", errors.IncompatibleCheckpoint, {}),
        (
            lambda data: saved(*refined(GAUGE)),
            errors.IncompatibleCheckpoint,
            {"frontend": AS_COMPLEX},
        ),
        (lambda data: data, errors.IncompatibleCheckpoint, {"frontend": VECTOR}),
    ],
    ids="damaged bare cut zip other extension links frontend".split(),
)
def test_a_file_is_verified_and_checked_before_anything_is_saved(
    change, error, options, run, tmp_path
):
    path = tmp_path / "run_step1.sunc"
    amr.TreeCheckpoint(SCALAR).write_to_file(*refined(), path, extras=True)
    sound = path.read_bytes()
    path.write_bytes(change(sound))
    with pytest.raises(error, match=r"run_step1\.sunc"):
        amr.Snapshot.import_files(run, path, **{"frontend": SCALAR} | options)
    assert run.checkpoints() == []
    path.write_bytes(sound)
    assert amr.Snapshot.import_files(run, path, frontend=SCALAR, verify="require").step == 1


@pytest.mark.parametrize(
    ("given", "error"),
    [
        *(({"paths": paths}, errors.BadOption) for paths in ([], 3, [b"a.sunc"], "state.sunc")),
        *(({"frontend": None}, errors.BadOption), ({"time": float("nan")}, errors.BadOption)),
        *(({"values": [1]}, errors.BadOption), ({"step": -1}, errors.BadLabel)),
    ],
    ids=repr,
)
def test_other_arguments_are_refused(given, error, run, tmp_path):
    (path,) = written(tmp_path, [refined()])
    with pytest.raises(error):
        amr.Snapshot.import_files(run, **{"paths": path, "frontend": SCALAR, **given})
    assert run.checkpoints() == []


def test_ranks_that_import_different_files_or_steps_are_refused(run, tmp_path):
    paths = written(tmp_path, divided(refined(), 2))

    def program(comm: Any) -> None:
        own = Store(run.store.backend).run("heat")
        for given in ({"paths": paths[: 1 + comm.rank]}, {"paths": paths, "step": 1 + comm.rank}):
            with pytest.raises(errors.RanksDisagree):
                amr.Snapshot.import_files(own, **given, frontend=SCALAR, comm=comm)

    on_threads(2, program)
    assert run.checkpoints() == []


def test_a_step_is_imported_once_unless_it_is_replaced(run, tmp_path):
    (path,) = written(tmp_path, [refined()])
    amr.Snapshot.import_files(run, path, frontend=SCALAR, metrics={"energy": 1.0}, best=True)
    with pytest.raises(errors.StepExists):
        amr.Snapshot.import_files(run, path, frontend=SCALAR)
    tree, arena = empty()
    Path(path).write_bytes(saved(tree, arena))
    amr.Snapshot.import_files(run, path, frontend=SCALAR, replace=True)
    assert len(amr.Snapshot.load(run, "latest").tree) == 0


@pytest.mark.parametrize("page", ["snapshots.md", "coming-from/su_n.md"])
def test_the_example_of_an_import_runs_on_two_ranks(page, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.rename(written(tmp_path, [refined()])[0], "run_step100.sunc")
    lines = (ROOT / "docs" / page).read_text().splitlines()
    lines = [x for x in lines if x.startswith(("amr.Snapshot", "Snapshot", "state ="))]
    example = [x for x in lines if "import_files(" in x or "reshard=True" in x]
    assert len(example) == 2

    def program(comm: Any) -> int:
        names = {"amr": standfast.amr, "Snapshot": amr.Snapshot, "paths": ["run_step100.sunc"]}
        given = {"run": Store(run.store.backend).run("heat"), "frontend": SCALAR, "comm": comm}
        exec("\n".join(example), names | given, names)
        state: Any = names["state"]
        return len(state.tree.live)

    assert sum(on_threads(2, program)) == len(refined()[0].live)


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

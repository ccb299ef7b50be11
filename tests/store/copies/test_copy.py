"""Copies of checkpoints in other stores: the same bytes, verified, and all of one or nothing."""

import errno
import itertools
import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from standfast import Checkpoint, KeepAll, KeepLast, Run, Store, errors
from standfast.store.backends.memory import MemoryBackend
from standfast.store.retention import collection
from standfast.store.retention.pins import pinned_steps
from standfast.store.save.changing import change_of
from standfast.store.schema import names
from standfast.store.schema.marks import read_marks
from standfast.store.schema.run_file import encode, read_run
from tests import WEIGHTSLAB
from tests.kit.cases import kept
from tests.kit.disk_faults import raising
from tests.kit.fault_states import Faulty, UnsyncedDisk
from tests.kit.seams import Seams
from tests.kit.stores import (
    chunks,
    data_files,
    data_path,
    flip,
    folder,
    overwrite,
    random_bytes,
    record_path,
    same,
)

NewStore = Callable[[], Store]


@pytest.fixture(autouse=True)
def _files_of_their_own(seams: Seams) -> None:
    """Let each part of a small state have a file of its own, as those of large ones do."""
    seams.bound("part of its own file", 1024)


@pytest.fixture(params=["local", "memory", "bucket"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> NewStore:
    """Makes empty stores of one kind, which is the other side of a copy."""
    if request.param == "memory":
        return lambda: Store(MemoryBackend())
    place = request.getfixturevalue("bucket_url") if request.param == "bucket" else tmp_path
    return lambda: Store(f"{place}/{os.urandom(4).hex()}")


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(tmp_path / "target")


def state(step: int, seed: int = 0) -> dict[str, Any]:
    return {
        "model": {"weight": random_bytes(100_000, seed), "bias": torch.full((5,), float(step))},
        "optimizer": {"moment": random_bytes(70_000, seed + 50)},
        "step": step,
    }


def saved(store: Store, *steps: int, **options: Any) -> Run:
    run = store.run("gpt", hp={"lr": 0.1}, model={"layers": 2}, data={"uids": [1, 2]})
    for step in steps:
        run.save(step, state(step), metrics={"loss": 1 / step}, **options)
    return run


def files_of(store: Store, run: Run) -> dict[str, bytes]:
    """All files of a run that a copy should have, with their bytes."""
    folders = [
        names.run_folder(run.hash),
        f"{names.SETTINGS}/{run.hash}",
        f"{names.SAMPLES}/{run.hash}",
    ]
    return {
        name: store.backend.read(f"{folder}/{name}")
        for folder in folders
        for name, _ in store.backend.list(folder)
    }


def sizes(checkpoint: Checkpoint) -> int:
    return sum(file.size for file in checkpoint.head.files)


def test_a_copy_is_the_same_in_every_byte_and_so_is_a_copy_of_it(store, new_store, target):
    run = saved(store, 1)
    middle = new_store()
    copied = run.checkpoint().copy_to(middle)
    nbytes = sizes(run.checkpoint())
    assert (copied.run, copied.step, copied.nbytes, copied.shared) == (run.hash, 1, nbytes, 0)
    assert not copied.already
    assert files_of(middle, run) == files_of(store, run)
    assert same(middle.resolve("gpt").state(), state(1))
    assert middle.find_run("gpt").hyperparameters == {"lr": 0.1}
    with target:
        middle.resolve("latest").copy_to(target)
    assert files_of(target, run) == files_of(store, run)
    assert target.resolve("latest").head == run.checkpoint().head
    assert f"latest_hash: '{run.hash}'" in Path(target.url, names.MANIFEST).read_text()


def test_only_what_is_not_there_is_copied(store, new_store):
    run = saved(store, 1)
    target = new_store()
    run.checkpoint().copy_to(target)
    again = run.checkpoint().copy_to(target)
    assert (again.nbytes, again.shared, again.already) == (0, sizes(run.checkpoint()), True)
    new = run.save(2, {**state(1), "optimizer": {"moment": random_bytes(70_000, 9)}})
    told: list[int] = []
    copied = new.copy_to(target, told.append)
    before = {file.name for file in run.checkpoint(1).head.files}
    assert copied.nbytes == sum(file.size for file in new.head.files if file.name not in before)
    assert copied.shared == sizes(new) - copied.nbytes > 100_000
    assert sum(told) == sizes(new)
    assert same(target.resolve("gpt@2").state(), new.state())
    plain = store.run("plain").save(1, {"step": 1}).copy_to(target)
    assert (plain.nbytes, plain.shared) == (0, 0)
    assert target.resolve("plain").state() == {"step": 1}


def test_files_of_several_blocks_and_chunks_come_over(store, target, seams):
    seams.bound("blocks of a copy", 3 << 20)
    run = store.run("large")
    run.save(1, {"odd": random_bytes(12_345), "long": chunks(1, 2)[:-99], "w": np.zeros(7)})
    run.checkpoint().copy_to(target)
    assert files_of(target, run) == files_of(store, run)
    target.resolve("large").verify()


def test_a_whole_torch_file_has_a_second_name_where_there_are_links(store, new_store):
    run = saved(store, 1, format="torch")
    target = new_store()
    run.checkpoint().copy_to(target)
    second = names.whole_file(run.hash, 1).rpartition("/")[2]
    there, here = files_of(target, run), files_of(store, run)
    whole = here.pop(second)
    assert len(whole) == sizes(run.checkpoint())
    if target.backend.links:
        assert there.pop(second) == whole
    assert there == here
    target.resolve("gpt").verify()


def test_the_name_and_the_policy_of_a_run_are_those_of_its_store(store, target):
    run = saved(store, 1)
    run.retain(KeepLast(1))
    run.checkpoint().copy_to(target)
    assert target.find_run("gpt").retention is None
    target.find_run("gpt").rename("theirs")
    run.save(2, state(2)).copy_to(target)
    assert target.find_run("theirs").hash == run.hash
    assert run.retention is not None


def test_the_run_file_is_made_from_the_record_if_it_is_lost(store, target):
    checkpoint = saved(store, 1).checkpoint()
    store.backend.replace(names.run_file(checkpoint.head.run), b"nonsense")
    checkpoint.copy_to(target)
    assert read_run(target.backend, checkpoint.head.run).identity == checkpoint.head.identity


def test_another_run_of_the_same_short_hash_is_refused(store, target):
    run = saved(store, 1)
    other = msgspec.structs.replace(run.file, identity={**run.file.identity, "hp": "0" * 64})
    target.backend.create(names.run_file(run.hash), encode(other))
    with pytest.raises(errors.RunCollision, match=run.hash):
        run.checkpoint().copy_to(target)
    assert data_files(target.open_run(run.hash)) == {}
    assert read_run(target.backend, run.hash) == other


def test_a_root_of_another_program_is_neither_copied_nor_written_to(store, target, tmp_path):
    with pytest.raises(errors.NotAStore):
        Store(WEIGHTSLAB).resolve("latest").copy_to(target)
    assert not Path(target.url).exists()
    foreign = tmp_path / "theirs" / "checkpoints"
    (foreign / "models").mkdir(parents=True)
    (foreign / "manifest.yaml").write_text("experiments: {}\n")
    with pytest.raises(errors.NotAStore):
        saved(store, 1).checkpoint().copy_to(Store(tmp_path / "theirs"))
    assert sorted(path.name for path in foreign.rglob("*")) == ["manifest.yaml", "models"]


def test_a_file_that_another_run_of_the_target_has_is_linked_or_copied(
    store, target, tmp_path, seams
):
    weights, other = {"model": {"weight": random_bytes(100_000)}}, Store(tmp_path / "without links")
    first = store.run("first").save(1, weights)
    second = store.run("second").save(1, {**weights, "own": {"w": random_bytes(70_000, 5)}})
    (shared,) = {f.name for f in first.head.files} & {f.name for f in second.head.files}
    first.copy_to(target)
    copied = second.copy_to(target)
    paths = [folder(target.open_run(each.head.run)) / shared for each in (first, second)]
    assert os.path.samefile(*paths)
    assert copied.shared == paths[0].stat().st_size
    assert copied.nbytes == sizes(second) - copied.shared
    first.copy_to(other)
    seams.backend(link=lambda *_, **__: False)
    assert second.copy_to(other, check=True).nbytes == sizes(second)


def flip_tensor(path: Path, run: Run) -> None:
    record = run.checkpoint(1).record
    extent = record.first_extents[list(record.names).index("optimizer.moment")]
    flip(path, int(record.starts[extent]) + 7)


def swap(path: Path, run: Run) -> None:
    run.save(2, {"optimizer": {"moment": random_bytes(70_000, 7)}, "step": 2})
    other = data_path(run, 2, "optimizer")
    assert path.stat().st_size == other.stat().st_size
    overwrite(path, other.read_bytes())


Harm = Callable[[Path, Run], object]
DAMAGE: dict[str, tuple[str, Harm, type[errors.DamagedFile]]] = {
    "a tensor": ("safetensors", flip_tensor, errors.DigestMismatch),
    "a tensor of a torch file": ("torch", flip_tensor, errors.DigestMismatch),
    "a header": ("safetensors", lambda path, run: flip(path, 200), errors.DamagedFile),
    "the end of a torch file": ("torch", lambda path, run: flip(path), errors.DamagedFile),
    "another file": ("safetensors", swap, errors.IndexMismatch),
    "cut": (
        "safetensors",
        lambda path, _: overwrite(path, path.read_bytes()[:-1]),
        errors.TruncatedFile,
    ),
    "deleted": ("safetensors", lambda path, run: path.unlink(), errors.MissingData),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_never_copied_and_named(store, target, how):
    format, harm, kind = DAMAGE[how]
    run = saved(store, 1, format=format)
    checkpoint = run.checkpoint()
    (file,) = (each for each in checkpoint.head.files if "model" not in each.name)
    harm(folder(run) / file.name, run)
    with pytest.raises(kind, match=file.name) as damage:
        checkpoint.copy_to(target)
    if harm is flip_tensor:
        assert damage.value.tensors == (
            "moment" if format == "safetensors" else "optimizer.moment",
        )
        assert store.index.damaged_files() == {file.name}
    placed = {name for name, _ in target.backend.list(names.run_folder(run.hash))}
    assert placed <= {each.name for each in checkpoint.head.files} - {file.name}
    assert target.index.count() == 0


def test_a_damaged_record_is_never_copied_and_is_replaced_by_a_copy(store, target, tmp_path):
    run = saved(store, 1)
    checkpoint, path = run.checkpoint(), record_path(run, 1)
    checkpoint.copy_to(target)
    there = record_path(target.open_run(run.hash), 1)
    overwrite(there, there.read_bytes()[:-20])
    assert not checkpoint.copy_to(target).already
    assert there.read_bytes() == path.read_bytes()
    flip(path, -30)
    with pytest.raises(errors.DamagedFile, match=path.name):
        checkpoint.copy_to(Store(tmp_path / "other"))


def test_what_is_damaged_in_the_target_is_copied_again(store, target):
    run = saved(store, 1)
    run.checkpoint().copy_to(target)
    there = folder(target.open_run(run.hash)) / data_path(run, 1, "model").name
    overwrite(there, there.read_bytes()[:5000])
    copied = run.checkpoint().copy_to(target)
    assert copied.already
    assert copied.nbytes == there.stat().st_size
    flip(there)
    with pytest.raises(errors.DigestMismatch):
        run.checkpoint().copy_to(target, check=True)
    assert run.checkpoint().copy_to(target, check=True).nbytes == there.stat().st_size
    assert target.index.damaged_files() == set()
    assert target.resolve("gpt").verify().files == 2


def test_bytes_of_a_torch_file_that_the_record_does_not_refer_to_are_verified(store, target):
    run = store.run("whole")
    kept, dropped = random_bytes(100_000), random_bytes(100_000, 1)
    first = run.save(1, {"kept": kept, "dropped": dropped}, format="torch")
    second = run.save(2, {"kept": kept})
    assert [file.name for file in second.head.files] == [file.name for file in first.head.files]
    start = first.record.starts[list(first.record.names).index("dropped")]
    flip(folder(run) / first.head.files[0].name, int(start))
    with pytest.raises(errors.DigestMismatch):
        second.copy_to(target)


def test_another_checkpoint_of_the_step_stays(store, new_store):
    run, target = saved(store, 1), new_store()
    theirs = saved(target)
    theirs.save(1, {"step": "theirs"})
    with pytest.raises(errors.StepExists, match="1"):
        run.checkpoint().copy_to(target)
    assert theirs.load(1) == {"step": "theirs"}
    assert [n for n, _ in target.backend.list(names.run_folder(run.hash), ".safetensors")] == []


def test_the_same_one_with_fewer_parts_stays_too(store, target):
    run = saved(store, 1)
    run.checkpoint().copy_to(target)
    run.save(2, state(2))
    run.retain(KeepLast(1) | KeepAll(without="optimizer"))
    assert run.checkpoint(1).head.dropped == ["optimizer"]
    with pytest.raises(errors.StepExists):
        run.checkpoint(1).copy_to(target)
    assert same(target.resolve("gpt@1").state(), state(1))


@pytest.mark.parametrize("theirs", [b"theirs", None], ids=["another", "the same"])
def test_a_record_that_comes_in_between_stays(store, target, theirs, seams):
    run = saved(store, 1)
    name = names.record_file(run.hash, 1)

    def late(create: Callable[[str, bytes], None], given: str, data: bytes) -> None:
        if given == name:
            create(given, theirs or data)
        create(given, data)

    seams.backend(create=late)
    with pytest.raises(errors.StepExists) if theirs else nullcontext():
        run.checkpoint().copy_to(target)
    assert target.backend.read(name) == (theirs or record_path(run, 1).read_bytes())


def test_one_that_was_replaced_meanwhile_is_not_taken_for_the_other(store, target):
    run = saved(store, 1)
    old = run.checkpoint()
    run.save(1, {"new": 1}, replace=True)
    with pytest.raises(errors.RefNotFound, match=old.ref):
        old.copy_to(target)
    run.save(2, {})
    run.delete(1)
    with pytest.raises(errors.RefNotFound, match=old.ref):
        old.copy_to(target)


def test_a_copy_holds_the_locks_of_its_run_and_pins_its_source(store, new_store):
    run, target = saved(store, 1), new_store()
    seen = []

    def look(nbytes: int) -> None:
        with pytest.raises(errors.RunBusy), change_of(target.backend, run.hash, wait=0):
            pass
        seen.append(pinned_steps(store.backend, run.hash))

    run.checkpoint().copy_to(target, look)
    assert seen == [{1}] * 3  # at the beginning, and for each file
    assert pinned_steps(store.backend, run.hash) == set()
    with change_of(target.backend, run.hash, wait=0):
        pass


def test_tags_notes_and_late_metrics_go_along(store, new_store):
    run, target = saved(store, 1), new_store()
    checkpoint = run.checkpoint()
    checkpoint.tag("paper")
    checkpoint.note("the good one")
    checkpoint.add_metrics({"score": 2.5}, best=True)
    assert checkpoint.copy_to(target).left_out == ()
    copy = target.resolve("paper")
    assert copy.notes == checkpoint.notes
    assert copy.metrics == {"loss": 1.0, "score": 2.5}
    assert target.resolve("gpt@best") == copy
    place = checkpoint.head.place
    assert read_marks(target.backend, place) == read_marks(store.backend, place)


def test_a_tag_that_the_target_has_elsewhere_is_left_out(store, target):
    run = saved(store, 1)
    run.checkpoint().copy_to(target)
    target.resolve("gpt").verify()  # which says nothing about it
    run.checkpoint().tag("paper")
    run.checkpoint().tag("gold")
    run.checkpoint().tag("called")
    theirs = target.run("called").save(1, {})
    theirs.tag("paper")
    left_out = run.checkpoint().copy_to(target).left_out
    assert target.resolve(f"{run.hash}@1").tags == ["gold"]
    assert [*target.index.verified(run.hash)] == [1]
    assert target.resolve("paper") == theirs
    assert [theirs.ref in left_out[0], theirs.head.run in left_out[1]] == [True, True]
    target.resolve(f"{run.hash}@1").tag("ours")
    run.checkpoint().tag("again")
    run.checkpoint().copy_to(target)
    assert target.resolve(f"{run.hash}@1").tags == ["gold", "ours"]


def test_marks_that_cannot_be_read_are_left_out(store, target):
    run = saved(store, 1)
    run.checkpoint().tag("paper")
    store.backend.replace(names.marks_file(run.hash, 1), b"nonsense")
    assert len(run.checkpoint().copy_to(target).left_out) == 1
    assert same(target.resolve("gpt").state(), state(1))


def test_too_little_space_is_found_before_anything_is_written(store, target, seams):
    checkpoint = saved(store, 1).checkpoint()
    seams.backend(free=lambda _: 100_000)
    with pytest.raises(errors.NotEnoughSpace):
        checkpoint.copy_to(target)
    assert not Path(target.url, names.MODELS).exists()


def test_what_an_interrupted_copy_left_is_cleared_by_gc(store, target):
    run = saved(store, 1)
    flip(data_path(run, 1, "optimizer"))
    with pytest.raises(errors.DigestMismatch):
        run.checkpoint(1).copy_to(target)
    assert target.runs() == []
    (line,) = collection.plan(target).lines
    assert (line.kind, line.run) == ("leftovers", run.hash)
    assert line.nbytes == data_path(run, 1, "model").stat().st_size
    collection.carry_out(target, collection.plan(target))
    assert not list(Path(target.url, names.run_folder(run.hash)).glob("*.safetensors"))


@pytest.mark.parametrize("first", kept(range(1, 6), 1))
def test_whatever_fails_the_copy_is_whole_or_not_there(store, tmp_path, first, seams):
    run = saved(store, 1)
    run.checkpoint().tag("paper")
    checkpoint = run.checkpoint()
    seams.disk(UnsyncedDisk())
    outcomes = []
    for number in itertools.count(first, 5):
        with Seams.until_end() as inner:
            faulty = inner.disk(Faulty(number, raising(OSError(errno.EIO, "the disk went wrong"))))
            with suppress(errors.StandfastError):
                checkpoint.copy_to(Store(tmp_path / str(number)))
        if faulty.struck is None:
            break
        target = Store(tmp_path / str(number))
        target.index.refresh()
        outcomes.append(target.index.count())
        if outcomes[-1]:
            assert same(target.resolve(f"{run.hash}@1").state(), state(1))
        checkpoint.copy_to(target)
        assert same(target.resolve("paper").state(), state(1))
    assert {*outcomes} == {0, 1}

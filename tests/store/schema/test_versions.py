"""What a newer version wrote is neither damaged nor misread: it is refused, and left as it is."""

import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import KeepLast, Run, Store
from standfast.errors import FellBack, TooNew
from standfast.formats.zip.archive import Entry
from standfast.formats.zip.tensors import read_own
from standfast.policies import Retention
from standfast.store.maintenance.doctor import clean, examine
from standfast.store.maintenance.verify import verify_oldest, verify_store
from standfast.store.query.listing import checkpoints
from standfast.store.retention import trash_entry
from standfast.store.retention.collection import carry_out, plan
from standfast.store.retention.deleting import delete_empty
from standfast.store.retention.trash import Trash
from standfast.store.schema import marks, names, run_file, settings
from standfast.training.mirror.marks import CopiedMarks
from tests.kit.seams import Seams
from tests.kit.stores import data_path, flip, folder, overwrite, record_path
from tests.store.schema.edits import needing, of_version_2, resealed, rewritten

STATE = {"model": {"w": np.arange(20_000.0)}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    with store.run("a", hp={"lr": 1}) as run:
        for step in (1, 2, 3):
            run.save(step, {**STATE, "step": step}, best=step == 3)
    return store


@pytest.fixture
def run(store: Store) -> Run:
    return store.find_run("a")


def files_of(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder(run).iterdir()}


NEWER = pytest.mark.parametrize("newer", [needing, of_version_2])


@NEWER
@pytest.mark.guarantee("G14")
def test_a_too_new_record_is_not_damage(tmp_path, store, run, newer):
    checkpoint, path = run.checkpoint(3), record_path(run, 3)
    newer(path)
    before = files_of(run)
    for ask in (lambda: run.load("best"), lambda: checkpoint.copy_to(Store(tmp_path / "other"))):
        with pytest.raises(TooNew, match=path.name):
            ask()
    examine(store.backend, store.index)
    store.index.rebuild()
    assert [each.marks for each in checkpoints(store.index) if "latest" in each.marks] == []
    assert list(verify_oldest(store, None).unverified) == [f"{run.hash}@3"]
    assert files_of(run) == before
    assert store.index.spans()[run.hash].damaged == 0
    assert run.load(2)["step"] == 2


@NEWER
def test_the_program_that_resumes_is_told_and_saves_nothing(tmp_path, run, newer):
    newer(record_path(run, 3))
    before = files_of(run)
    state = standfast.TrainingState(w=np.zeros(3))
    with (
        pytest.raises(TooNew),
        standfast.Checkpointer(tmp_path, state, name="a", hp={"lr": 1}, quiet=True),
    ):
        pass
    assert files_of(run) == before


def test_a_record_that_is_written_again_keeps_what_is_unknown(run):
    line = b'{"origin":{"model.w":"elsewhere"}}'
    rewritten(record_path(run, 2), lambda lines: lines.append(line), colour="blue")
    run.retain(KeepLast(1) | standfast.KeepAll(without=["model"]))
    assert run.checkpoint(2).head.dropped == ["model"]
    assert line in record_path(run, 2).read_bytes().split(b"\n")
    assert run.checkpoint(2).head.others == {"colour": "blue"}


def test_a_run_that_is_too_new_or_damaged_hides_no_others(store, run):
    damaged = store.run("c", hp={"lr": 3})
    Path(store.url, names.run_file(damaged.hash)).write_bytes(b"damaged")
    Path(store.url, names.config_file(damaged.hash)).unlink()
    resealed(Path(run.store.url, names.run_file(run.hash)), run_file.FORMAT, needs=["x"])
    with store.run("b", hp={"lr": 2}) as other:
        other.save(1, STATE)
    with pytest.warns(FellBack) as warned:
        assert [each.name for each in store.runs()] == ["b"]
    said = " ".join(str(each.message) for each in warned)
    assert (len(warned), run.hash in said, damaged.hash in said) == (2, True, True)


@pytest.mark.guarantee("G10", "G12")
def test_none_is_the_best_and_none_gets_a_tag_if_hidden_marks_may_say_so(tmp_path, store, run):
    elsewhere = Store(tmp_path / "elsewhere")
    for step in (1, 2):
        run.checkpoint(step).copy_to(elsewhere)
    run.checkpoint(1).add_metrics({"loss": 0.5}, best=True)
    run.checkpoint(1).tag("paper")
    other = elsewhere.find_run("a").checkpoint(2)
    other.tag("paper")
    elsewhere.index.refresh()
    path = Path(store.url, names.marks_file(run.hash, 1))
    resealed(path, marks.FORMAT, needs=["groups"])
    for action in (
        lambda: run.load("best"),
        lambda: run.checkpoint("best"),
        lambda: store.run("b").save(1, STATE).tag("paper"),
        lambda: CopiedMarks(elsewhere, run.hash).copy(store),
    ):
        with pytest.raises(TooNew, match=path.name):
            action()
    assert path.name in other.copy_to(store).left_out[0]
    path.write_bytes(b"damaged")
    with pytest.warns(FellBack, match=path.name):
        assert run.checkpoint("best").step == 3


@pytest.mark.parametrize("suffix", ["safetensors", "tenzor", "oxck", "npz", "pt"])
def test_a_file_with_digests_of_another_kind_is_too_new(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    with Seams.until_end() as seams:
        seams.bound("tag of sealed JSON", "blake4:16777216:")
        standfast.save(path, {"w": np.ones(4, np.float32)})
    with pytest.raises(TooNew, match="blake4"):
        standfast.load(path)


@pytest.mark.parametrize("suffix", ["safetensors", "tenzor", "oxck"])
def test_a_file_that_needs_something_unknown_is_not_misread(tmp_path, suffix):
    """It may hold packed tensors, which would be read as others, though each byte is right."""
    path = tmp_path / f"a.{suffix}"
    standfast.save(path, {"w": np.ones(4, np.float32)}, {"standfast_needs": "packed"})
    path.write_bytes(path.read_bytes().replace(b"standfast_needs", b"standfast.needs"))
    with pytest.raises(TooNew, match="packed"):
        standfast.load(path, verify=False)
    standfast.save(path, {"w": np.ones(4, np.float32)}, {"standfast_colour": "blue"})
    path.write_bytes(path.read_bytes().replace(b"standfast_colour", b"standfast.colour"))
    assert standfast.load(path, verify=False)["w"].tolist() == [1, 1, 1, 1]


def test_a_data_file_that_is_too_new_is_not_marked_as_damaged(store, run):
    path = data_path(run, 1, "model")
    old, new = f'"checkpoint":"{run.hash[:5]}', '"standfast.needs":"'
    overwrite(path, path.read_bytes().replace(old.encode(), new.encode()))
    found = verify_store(store)
    assert found.damaged == {}
    assert f"{run.hash}@1" in found.unverified
    assert examine(store.backend, store.index).damaged == {}
    assert store.index.damaged_files() == set()


def test_the_entry_of_a_zip_file_may_have_more_members():
    members = {"standfast.chunks": "blake3:16777216:", "metadata": {"a": 1}, "colour": "blue"}

    def entry(**more: str) -> dict[str, Any]:
        data = json.dumps(members | {f"standfast.{key}": each for key, each in more.items()})
        text = data.encode()
        found = Entry("standfast.json", 0, 0, len(text), len(text), zlib.crc32(text), False)
        return read_own(lambda start, length: text[start : start + length], found)

    assert entry()["metadata"] == {"a": 1}
    with pytest.raises(TooNew, match="packed"):
        entry(needs="packed")


TOO_NEW: dict[str, Callable[[Run], None]] = {
    "record": lambda run: needing(record_path(run, 2)),
    "run file": lambda run: resealed(
        Path(run.store.url, names.run_file(run.hash)), run_file.FORMAT, "standfast run 2"
    ),
    "store.json": lambda run: resealed(
        Path(run.store.url, settings.NAME), settings.FORMAT, needs=["x"]
    ),
}
CHANGES: dict[str, Callable[[Run, Run], Any]] = {
    "take": lambda run, other: run.take(),
    "save": lambda run, other: run.save(9, STATE),
    "replace": lambda run, other: run.save(3, STATE, replace=True),
    "delete": lambda run, other: run.delete(1),
    "rm": lambda run, other: run.delete(1, trash="rm"),
    "delete all": lambda run, other: run.delete_all(),
    "delete if empty": lambda run, other: delete_empty(run.store, run.hash),
    "rm all": lambda run, other: run.delete_all(trash="rm"),
    "restore": lambda run, other: run.store.restore(run.hash, 4),
    "copy": lambda run, other: other.checkpoint(5).copy_to(run.store),
    "copy of tags": lambda run, other: other.checkpoint(1).copy_to(run.store),
    "tag": lambda run, other: run.checkpoint(1).tag("paper"),
    "rename": lambda run, other: run.rename("b"),
    "retention": lambda run, other: run.set_retention(Retention((KeepLast(1),))),
    "copy of notes": lambda run, other: CopiedMarks(other.store, run.hash).copy(run.store),
}


def all_files(store: Store) -> dict[str, bytes]:
    root = Path(store.url)
    found = (path for path in root.rglob("*") if path.is_file())
    files = {str(path.relative_to(root)): path.read_bytes() for path in found}
    return {name: data for name, data in files.items() if not re.search(r"/locks/|index-", name)}


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("newer", TOO_NEW.values(), ids=TOO_NEW)
def test_what_becomes_too_new_under_an_open_run_stays(tmp_path, store, run, newer, change):
    store.budget = 10**12
    run.save(4, STATE)
    run.delete(4, trash="rm")
    run.close()
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    shutil.copytree(tmp_path, elsewhere)
    other = Store(elsewhere).find_run("a")
    other.save(5, STATE)
    other.checkpoint(1).tag("theirs")
    newer(run)
    before = all_files(store)
    with pytest.raises(TooNew):
        change(run, other)
    store.checkpoint(run.hash, 1).mark_verified()
    run.close()
    assert all_files(store) == before


def test_no_run_is_made_in_a_store_that_is_too_new(store, run):
    store.budget = 10**12
    TOO_NEW["store.json"](run)
    Path(run.store.url, names.run_file(run.hash)).unlink()
    before = all_files(store)
    with pytest.raises(TooNew):
        store.run("new")
    with pytest.raises(TooNew):
        store.budget = None
    with pytest.warns(FellBack):
        assert store.run("a", hp={"lr": 1}).hash == run.hash  # to be read
    assert all_files(store) == before


def test_retention_and_gc_delete_nothing_of_a_run_that_is_too_new(store, run):
    run.set_retention(Retention((KeepLast(1),)))
    made = plan(store)
    assert [line.step for line in made.lines] == [1, 2]
    needing(record_path(run, 2))
    before = files_of(run)
    assert "packed" in run.retain().problems[0]
    assert list(carry_out(store, made).problems) == [run.hash]
    assert (plan(store).lines, list(plan(store).problems)) == ([], [run.hash])
    assert files_of(run) == before


def test_doctor_cleans_up_all_runs_but_those_that_are_too_new(store, run):
    runs = [run, store.run("b"), store.run("c")]
    left = [folder(each) / f"{each.hash}_step_000008.0123abcd.model.safetensors" for each in runs]
    for path in left:
        path.write_bytes(b"left")
    TOO_NEW["run file"](runs[1])
    clean(store.backend, store.index)
    assert [path.exists() for path in left] == [False, True, False]


def test_doctor_restores_nothing_in_a_run_that_is_too_new(store, run):
    for step in (4, 5):
        run.save(step, {"small": np.ones(3), "step": step})
    run.close()
    flip(data_path(run, 4))
    needing(record_path(run, 3))
    Path(run.store.url, names.run_file(run.hash)).unlink()
    before = files_of(run)
    found = examine(store.backend, store.index)
    assert files_of(run) == before
    assert {names.run_file(run.hash), f"{run.hash}@4"} <= found.damaged.keys()


@pytest.mark.guarantee("G15")
def test_a_too_new_entry_of_the_trash_stays(store, run, tmp_path):
    run.delete(1, trash="rm")
    (path,) = tmp_path.rglob(trash_entry.FILE)
    resealed(path, trash_entry.FORMAT, needs=["packed"])
    before = all_files(store)
    for steps in ((), (1,)):
        with pytest.raises(TooNew):
            store.restore(run.hash, *steps)
    assert Trash(store.backend).empty() == 0
    assert all_files(store) == before


def test_a_step_comes_back_beside_a_too_new_one(store, run, tmp_path):
    run.delete(1, 2, trash="rm")
    (path,) = tmp_path.rglob(f"trash/*/{record_path(run, 2).name}")
    needing(path)
    resealed(path.with_name(trash_entry.FILE), trash_entry.FORMAT, colour="blue")
    assert store.restore(run.hash, 1).steps == [1]
    (entry,) = Trash(store.backend).entries()
    assert (entry.steps, entry.others) == ([2], {"colour": "blue"})
    with pytest.raises(TooNew, match=path.name):
        store.restore(run.hash, 2)

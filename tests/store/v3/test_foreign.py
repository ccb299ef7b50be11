"""Roots that weightslab wrote: which are that, and how they are taken over."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import standfast
from standfast.errors import BadOption, NotEnoughSpace, UnsupportedFile
from standfast.identity import identify
from standfast.store.copies.imports import ImportedRoot, import_root
from standfast.store.run import Run
from standfast.store.v3.foreign import is_foreign
from tests import WEIGHTSLAB
from tests.tensorfile.importers.weightslab_roots import (
    FIRST,
    LAYOUTS,
    SECOND,
    WRITTEN,
    Writer,
    everything_in,
    weights,
)

STATE = {"uids": ["a", "b"], "discarded": ["b"], "tags": {"a": ["cat"]}}


@pytest.fixture
def store(tmp_path: Path) -> standfast.Store:
    return standfast.Store(tmp_path / "store")


def _hashes(done: ImportedRoot) -> dict[str | None, str]:
    return {each.experiment: each.run.hash for each in done.runs}


def _steps(run: Run) -> list[int]:
    return sorted(checkpoint.step for checkpoint in run.checkpoints())


@LAYOUTS
def test_weights_or_a_manifest_of_weightslab_make_a_root_foreign(tmp_path, short):
    assert is_foreign(WEIGHTSLAB)
    writer = Writer(tmp_path, short)
    assert not is_foreign(tmp_path)
    writer.write_manifest(None)
    assert is_foreign(tmp_path)
    writer.manifest.unlink()
    writer.experiment(FIRST, 100)
    writer.manifest.unlink()
    assert is_foreign(tmp_path)


OURS = [
    *(f"models/{FIRST}/{FIRST}_run.json", f"models/{FIRST}/{FIRST}_step_000100.json"),
    *(f"models/{SECOND}/{SECOND}_run.json", ".standfast", None),
]


@pytest.mark.parametrize("ours", OURS)
def test_one_file_of_ours_or_our_manifest_makes_a_root_ours(tmp_path, ours):
    writer = Writer(tmp_path, short=False)
    writer.experiment(FIRST, 100)
    if ours is None:
        text = writer.manifest.read_text()
        writer.manifest.write_text("# Written by Standfast: a view.\n" + text)
    else:
        path = writer.checkpoints / ours
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    assert not is_foreign(tmp_path)


def test_stores_other_folders_and_pipes_are_not_foreign(store, tmp_path):
    assert not is_foreign(tmp_path / "store")
    with store.run("gpt", hp={"lr": 0.1}) as run:
        run.save(1, {"weight": torch.ones(3)})
    assert not is_foreign(tmp_path / "store")
    other = tmp_path / "checkpoints" / "models" / "bert"
    other.mkdir(parents=True)
    (other / f"{FIRST}_step_000100.pt").write_bytes(b"")
    assert not is_foreign(tmp_path)
    writer = Writer(tmp_path / "piped", short=False)
    os.mkfifo(writer.manifest)
    assert not is_foreign(tmp_path / "piped")


def test_the_root_that_weightslab_wrote_becomes_a_run(store):
    before = everything_in(WEIGHTSLAB)
    (done,) = import_root(store, WEIGHTSLAB).runs
    assert done.experiment == WRITTEN
    assert done.ignored == []
    assert [taken.checkpoint.step for taken in done.taken] == [100, 200]
    run = store.find_run("wl-jade-tide")
    assert run.hyperparameters == {"batch": 8, "lr": 0.001}
    for checkpoint in run.checkpoints():
        path = WEIGHTSLAB / f"checkpoints/models/b5a79a78/{WRITTEN}_step_{checkpoint.step:06d}.pt"
        written, state = torch.load(path, weights_only=True), checkpoint.load()
        assert state["step"] == written["step"] == checkpoint.step
        assert state["exp_hash"] == WRITTEN
        for name, tensor in written["model_state_dict"].items():
            assert torch.equal(torch.as_tensor(state["model_state_dict"][name]), tensor)
        for index, slots in written["optimizer_state_dict"]["state"].items():
            for slot, tensor in slots.items():
                assert torch.equal(state["optimizer_state_dict"]["state"][index][slot], tensor)
        assert checkpoint.head.time == written["timestamp"] + "Z"  # when it was written
        assert [note.text for note in checkpoint.notes] == [
            f"imported from weightslab experiment {WRITTEN}"
        ]
    assert everything_in(WEIGHTSLAB) == before


def test_the_identity_is_that_of_the_parts(store, tmp_path):
    writer = Writer(tmp_path / "root", short=False)
    writer.experiment(FIRST, 100)
    writer.config(FIRST, {"lr": 0.1, "experiment_name": "any"})
    writer.data_state(FIRST, STATE)
    (done,) = import_root(store, writer.path).runs
    model = weights(100)["model_state_dict"]
    assert done.run.hash == identify(hp={"lr": 0.1}, model=model, data=STATE).hash
    assert "00000000" not in done.run.hash
    known = store.known_run(hp={"lr": 0.1}, model=model, data=STATE)
    assert known.hash == done.run.hash


def test_an_import_can_be_repeated_when_the_root_has_grown(store, tmp_path):
    writer = Writer(tmp_path / "root", short=True)
    writer.experiment(FIRST, 100, created="2026-01-21T08:00:00")
    writer.config(FIRST, {"lr": 0.1})
    first = import_root(store, writer.path)
    writer.experiment(FIRST, 100, 200, created="2026-01-21T08:00:00")
    writer.experiment(SECOND, 100, created="2026-01-21T09:00:00")
    writer.config(SECOND, {"lr": 0.1})
    second = import_root(store, writer.path)
    assert _hashes(second)[FIRST] == _hashes(first)[FIRST]
    assert len({*_hashes(second).values()}) == 2
    assert [(each.skipped, len(each.taken)) for each in second.runs] == [([100], 1), ([], 1)]
    third = import_root(store, writer.path)
    assert _hashes(third) == _hashes(second)
    assert [(each.skipped, each.taken) for each in third.runs] == [([100, 200], []), ([100], [])]


def test_experiments_that_come_to_the_same_are_runs_of_their_own(store, tmp_path):
    writer = Writer(tmp_path / "root", short=False)
    writer.experiment(FIRST, 100, 200, created="2026-01-21T09:00:00")
    writer.experiment(SECOND, 100, created="2026-01-21T08:00:00")
    done = import_root(store, writer.path)
    runs = {each.experiment: each.run for each in done.runs}
    older, younger = runs[SECOND], runs[FIRST]
    assert _steps(older) == [100]
    assert _steps(younger) == [100, 200]
    model = weights(100)["model_state_dict"]
    assert older.hash == identify(model=model).hash
    assert younger.hash == identify(model=model, trial=FIRST).hash


@pytest.mark.parametrize("name", [None, "a/b", "latest", "two\nlines", "x" * 500])
def test_without_a_name_that_a_run_may_have_it_is_called_by_the_hash(store, tmp_path, name):
    writer = Writer(tmp_path / "root", short=True)
    writer.experiment(FIRST, 100, experiment_name=name)
    (done,) = import_root(store, writer.path).runs
    assert done.run.name == FIRST
    assert store.resolve(FIRST).step == 100


def test_one_experiment_may_be_given_a_name(store, tmp_path):
    writer = Writer(tmp_path / "root", short=True)
    writer.experiment(FIRST, 100, experiment_name="theirs")
    assert import_root(store, writer.path, "mine").runs[0].run.name == "mine"
    writer.experiment(SECOND, 100)
    with pytest.raises(BadOption, match="2"):
        import_root(store, writer.path, "mine")


def test_what_is_damaged_is_listed_and_the_rest_taken(store, tmp_path):
    writer = Writer(tmp_path / "root", short=False)
    writer.experiment(FIRST, 100, 200, 300, 400)
    torn = writer.weights(FIRST, 100)
    torn.write_bytes(torn.read_bytes()[:500])
    writer.weights(FIRST, 200).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    writer.weights(FIRST, 300).write_bytes(b"")
    config = writer.config(FIRST, {})
    config.write_bytes(b"hyperparameters: {lr")
    writer.experiment(SECOND, 100)
    writer.weights(SECOND, 100).write_bytes(b"")
    done = import_root(store, writer.path)
    (imported,) = done.runs
    assert _steps(imported.run) == [400]
    assert imported.run.hyperparameters is None
    paths = [path for path, _ in imported.ignored]
    assert paths == [writer.path, *(writer.weights(FIRST, step) for step in (100, 200, 300))]
    assert config.name in imported.ignored[0][1]
    assert [path for path, _ in done.problems] == [writer.weights(SECOND, 100)]


def test_samples_that_cannot_be_read_here_stop_it_at_once(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    writer = Writer(tmp_path / "root", short=True)
    writer.experiment(FIRST, 100)
    writer.snapshot(FIRST, {"data_file": f"{FIRST[16:]}_data_snapshot.parquet"})
    with pytest.raises(UnsupportedFile, match="pyarrow"):
        import_root(store, writer.path)
    assert not (tmp_path / "store").exists()


def test_a_pickle_that_would_run_code_is_not_run(store, tmp_path):
    writer = Writer(tmp_path / "root", short=True)
    writer.experiment(FIRST, 100, 200)
    harmed = tmp_path / "harmed"
    torch.save({**weights(100), "metadata": _Harm(harmed)}, writer.weights(FIRST, 100))
    pickled = writer.weights(FIRST, 100).with_name("e5f6g7h8_architecture.pkl")
    pickled.write_bytes(b"cos\nsystem\n(S'touch harmed'\ntR.")
    (done,) = import_root(store, writer.path).runs
    assert not harmed.exists()
    assert 200 in _steps(done.run)


class _Harm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_disk_that_is_full_is_no_fault_of_the_root(store, seams):
    seams.backend(free=lambda _: 100)
    with pytest.raises(NotEnoughSpace):
        import_root(store, WEIGHTSLAB)

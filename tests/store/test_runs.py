"""A run is made once and found again: by its identity, by its name, by another process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from standfast import Run, Store, errors
from standfast.identity import identify
from standfast.store.maintenance.verify import verify_store
from standfast.store.schema import names, run_file
from tests.kit.stores import before_lock, record_path, same
from tests.store.meanwhile import again, meanwhile
from tests.store.schema.edits import resealed, rewritten


def run_file_of(run: Run) -> Path:
    return Path(run.store.url, names.run_file(run.hash))


def test_another_identity_is_another_run(store):
    identities: list[dict[str, Any]] = [
        *({"hp": {"lr": 1}}, {"hp": {"lr": 2}}, {"hp": {"lr": 1}, "trial": 1}),
        *({"hp": {"lr": 1}, "name": "a"}, {"hp": {"lr": 1}, "data": "train"}),
        *({"hp": {"lr": 1}, "model": torch.nn.Linear(2, 3)}, {"model": torch.nn.Linear(2, 2)}),
    ]
    assert len({store.run(**identity).hash for identity in identities}) == len(identities)


def test_a_run_can_be_looked_for_without_being_made(store):
    with pytest.raises(errors.NotAStore):
        store.known_run("gpt", hp={"lr": 1})
    assert not Path(store.url).exists()
    store.run("other")
    assert store.known_run("gpt", hp={"lr": 1}) is None
    made = store.run("gpt", hp={"lr": 1})
    found = store.known_run("gpt", hp={"lr": 1})
    assert found.hash == made.hash
    assert store.known_run("gpt", hp={"lr": 2}) is None


def test_a_new_run_knows_the_checkpoint_that_it_goes_on_from(store):
    first = store.run("first")
    origin, later = first.save(1, {}), first.save(2, {})
    branch = store.run("branch", hp={"lr": 2}, parent=origin)
    assert branch.save(2, {}).parent == origin
    assert branch.parent == origin.head.place
    assert again(store).run("branch", hp={"lr": 2}, parent=later).parent == branch.parent


def test_trials_tell_equal_runs_apart(store):
    runs = {trial: store.run("a", hp={"lr": 1}, trial=trial) for trial in (None, 0, 1, "x")}
    assert len({run.hash for run in runs.values()}) == 4
    assert store.run("a", hp={"lr": 1}, trial=1).hash == runs[1].hash
    assert [run.file.trial for run in runs.values()] == ["a", 0, 1, "x"]
    assert store.run("alone").hash != store.run("alone", trial=1).hash


def test_volatile_keys_do_not_count(store):
    run = store.run(hp={"lr": 1, "max_steps": 10}, volatile=["max_steps"])
    longer = store.run(hp={"lr": 1, "max_steps": 20}, volatile=["max_steps"])
    assert longer.hash == run.hash
    assert run.hyperparameters == {"lr": 1, "max_steps": 10}
    assert store.run(hp={"lr": 1, "max_steps": 10}).hash != run.hash


def test_a_name_alone_is_an_identity(store):
    run = store.run("gpt")
    assert store.run("gpt").hash == again(store).run("gpt").hash == run.hash
    assert store.run("gpt2").hash != run.hash
    with pytest.raises(errors.BadLabel):
        store.run()
    named = store.run("llama", hp={"lr": 1})
    assert store.run("llama").hash == named.hash
    other = store.run("bert")
    other.rename("roberta")
    assert store.run("roberta").hash == other.hash
    assert store.run("bert").hash == other.hash, "by what it was made of"


def test_a_new_run_names_those_like_it(store, caplog):
    caplog.set_level("INFO", "standfast")
    runs = [store.run(name, hp={"lr": 1}, trial=trial) for name, trial in (("a", None), (None, 2))]
    store.run("c", hp={"lr": 2})
    assert [len(caplog.records), runs[0].hash in caplog.text] == [1, True]
    store.run("b", hp={"lr": 1})
    assert all(run.hash in caplog.records[-1].getMessage() for run in runs)


def test_a_name_of_two_runs_is_not_enough(store):
    runs = [store.run("gpt", hp={"lr": lr}).hash for lr in (1, 2)]
    with pytest.raises(errors.AmbiguousRef) as caught:
        store.run("gpt")
    assert all(run in str(caught.value) for run in runs)


def test_a_run_is_found_by_what_it_is(store):
    hp = {"class_weight": {0: 1.0}, "clip": float("inf"), "betas": (0.9, 0.999)}
    run = store.run("gpt", hp=hp)
    assert len(run.hash) == 24
    for name in ("gpt", None):
        found = again(store).run(name, hp=dict(reversed(hp.items())), trial=None if name else "gpt")
        assert (found.hash, found.name) == (run.hash, "gpt")
    assert store.run("gpt", hp=hp | {"clip": 1.0}).hash != run.hash
    found = again(store).find_run(run.hash).hyperparameters
    assert (found, type(found["betas"])) == (hp, tuple)
    assert store.run("gpt", hp=found).hash == run.hash


def test_a_name_that_is_none_makes_no_run(store, run):
    for name in ("", "latest", "a@b", "x" * 201):
        for make in (store.run, lambda name: store.run(name, hp={"lr": 1}), run.rename):
            with pytest.raises(errors.BadLabel):
                make(name)
    assert [each.name for each in store.runs()] == ["a"]


def test_renaming_changes_the_label_alone(store):
    run = store.run("old", hp={"lr": 1})
    run.save(1, {"x": np.ones(1)})
    before = run.file
    run.rename("new")
    found = again(store).find_run("new")
    assert (run.name, found.name, found.hash) == ("new", "new", run.hash)
    assert (found.file.created, found.file.identity) == (before.created, before.identity)
    for find in (
        lambda: store.find_run("old"),
        lambda: store.find_run("b"),
        lambda: store.open_run("f" * 24),
    ):
        with pytest.raises(errors.RefNotFound):
            find()
    assert same(found.load(), {"x": np.ones(1)})


OTHER = {"hp": "0" * 64, "model": None, "data": None}


@pytest.mark.parametrize("member", OTHER)
def test_a_collision_of_hashes_is_refused(store, member):
    run = store.run(hp={"lr": 1})
    run.save(1, {})
    identity = {**run.file.identity, member: "0" * 64}
    resealed(run_file_of(run), run_file.FORMAT, identity=identity)
    with pytest.raises(errors.RunCollision, match="trial"):
        store.run(hp={"lr": 1})
    for path in (run_file_of(run), Path(store.url, names.config_file(run.hash))):
        path.unlink()
    rewritten(record_path(run, 1), identity=identity)
    with pytest.raises(errors.RunCollision):
        store.run(hp={"lr": 1})


@pytest.mark.parametrize("collides", [False, True])
def test_a_faster_process_wins(store, monkeypatch, collides):
    def faster() -> None:
        theirs = again(store).run("theirs", {"lr": 1}, trial=1)
        if collides:
            resealed(run_file_of(theirs), run_file.FORMAT, identity=OTHER)

    before_lock(store, monkeypatch, identify(hp={"lr": 1}, trial=1).hash, faster)
    if collides:
        with pytest.raises(errors.RunCollision):
            store.run("mine", hp={"lr": 1}, trial=1)
    else:
        assert store.run("mine", hp={"lr": 1}, trial=1).name == "theirs"


def test_a_run_deleted_while_all_are_listed_is_not_listed(store, seams):
    kept, gone = store.run("kept"), store.run("gone")
    store.index.refresh()
    delete = again(store).open_run(gone.hash).delete_all
    meanwhile(seams, store, "read", names.run_file(gone.hash), delete)
    assert [run.hash for run in store.runs()] == [kept.hash]


def test_a_run_is_made_with_all_its_files_or_not_at_all(store, seams):
    held = []

    def checked(create: Any, name: str, data: bytes) -> None:
        run = name.rpartition("/")[2].removesuffix("_run.json")
        held.append(again(store).backend.lock(f"{run}.change") is None)
        create(name, data)

    seams.backend(create=checked)
    store.run("a", model={"w": 1}, data=[1])
    assert held == [True]


def test_a_run_deleted_right_before_a_save_has_its_file_again(store, seams):
    run = store.run("mine")
    meanwhile(seams, store, "lock", run.hash, run_file_of(run).unlink)
    run.save(1, {"x": np.ones(1)})
    assert run_file_of(run).exists()


WHOLE = {"model": {"w": 1}, "data": {"uids": [1]}}
MADE_OF = pytest.mark.parametrize("made_of", [{}, WHOLE], ids=["name", "model and data"])


@pytest.mark.guarantee("G9")
@MADE_OF
def test_a_run_deleted_while_it_is_looked_for_is_made_with_all_its_files(made_of, store, seams):
    with store.run("a", **made_of) as run:
        run.save(1, {})
    delete = again(store).open_run(run.hash).delete_all
    meanwhile(seams, store, "read", names.run_file(run.hash), delete, after=True)
    store.run("a", **made_of).save(2, {})
    assert verify_store(store).damaged == {}
    assert not store.run("a", **made_of).file.incomplete


@pytest.mark.guarantee("G9")
@MADE_OF
@pytest.mark.parametrize("act", [lambda run: run.save(2, {}), lambda run: run.rename("b")])
def test_a_run_that_is_made_again_by_who_has_it_open_is_not_damaged(act, made_of, store):
    run = store.run("a", **made_of)
    again(store).open_run(run.hash).delete_all()
    act(run)
    assert verify_store(store).damaged == {}
    assert again(store).open_run(run.hash).file.incomplete == (made_of is WHOLE)
    config = names.config_file(run.hash)
    Path(store.url, config).unlink()
    assert list(verify_store(store).damaged) == [config]


def test_a_damaged_run_file_is_said_to_be_damaged(store):
    run = store.run("a", hp={"lr": 1})
    run.save(1, {"x": np.ones(1)})
    for name in (names.run_file(run.hash), names.config_file(run.hash)):
        Path(store.url, name).write_bytes(b"garbage")
    with pytest.raises(errors.DamagedFile, match=names.run_file(run.hash)):
        again(store).run("a", hp={"lr": 1})
    assert same(run.load(), {"x": np.ones(1)})


def test_a_run_is_written_by_one_until_it_is_closed(store, run):
    other = store.run("a")
    for step, each in enumerate((run, other)):
        each.save(step, {})
    other.close()
    assert store.backend.lock(run.hash) is None
    run.close()
    with store.backend.lock(run.hash), pytest.raises(errors.RunBusy):
        run.save(2, {})
    with run:
        run.save(2, {})
    assert store.backend.lock(run.hash) is not None


def test_a_store_says_where_it_is(tmp_path):
    store = Store(str(tmp_path))
    run = store.run("a")
    checkpoint = run.save(1, {})
    assert store.url == str(tmp_path / "checkpoints")
    assert str(tmp_path) in repr(store)
    assert all(text in repr(run) for text in (run.hash, "'a'"))
    assert checkpoint.ref in repr(checkpoint)
    assert run.parent is None


def test_a_program_that_ends_with_runs_open_says_nothing(tmp_path):
    code = (
        "import sys, standfast\n"
        "run = standfast.Store(sys.argv[1]).run('a')\n"
        "run.save(1, {'x': 1})\n"
        "keep = [run, standfast.Store(sys.argv[1]).run('a')]\n"
    )
    program = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "latest_hash" in (tmp_path / "checkpoints" / "manifest.yaml").read_text()

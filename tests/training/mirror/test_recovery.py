"""A run whose machine is gone goes on from its mirror."""

import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Store
from standfast.errors import BadOption, DamagedFile, FellBack, RefNotFound, RunExists, TooNew
from standfast.store.schema import names
from tests.kit.cases import kept
from tests.kit.seams import Seams
from tests.kit.stores import flip
from tests.kit.walk import Walk, checkpointer, walk
from tests.store.schema.test_versions import needing, of_version_2
from tests.training.mirror.test_mirror import wait_for

NAMED: dict[str, Any] = {"name": "walk", "every": 1}


def train(store: Any, steps: int, place: Any, **options: Any) -> tuple[Walk, Any]:
    np.random.seed(0)
    program = Walk()
    with checkpointer(store, program.state, mirror=place, **{**NAMED, **options}) as ckpt:
        for step in ckpt.steps(steps):
            ckpt.step(step, value=program.train())
    return program, ckpt


@pytest.fixture(params=kept(["folder", "object store"], "folder"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "mirror")
    return str(request.getfixturevalue("bucket_url"))


def test_another_machine_goes_on_where_the_first_was(place, tmp_path):
    train(tmp_path / "first", 5, place)
    shutil.rmtree(tmp_path / "first")
    program, ckpt = train(tmp_path / "second", 9, place)
    assert ckpt.resume_report.step == 5
    whole = walk(tmp_path / "whole", 9, **NAMED)
    assert program.weights.tobytes() == whole.weights.tobytes()
    run = Store(tmp_path / "second").find_run("walk")
    assert [each.step for each in run.checkpoints()] == [5, 6, 7, 8, 9]
    assert [each.step for each in Store(place).find_run("walk").checkpoints()] == [*range(1, 10)]


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """The mirror of a program of three steps whose machine is gone."""
    train(tmp_path / "mirror", 3, None)
    return tmp_path / "mirror"


def test_what_is_here_is_newer_and_nothing_is_brought(tmp_path):
    store, place = tmp_path / "store", tmp_path / "mirror"
    train(store, 3, None)
    shutil.copytree(store, place)
    train(store, 4, None)
    assert train(store, 5, place)[1].resume_report.step == 4
    assert steps_in(place) == [1, 2, 3, 4, 5]


def test_an_older_store_goes_on_from_the_newer_mirror(mirror, tmp_path):
    shutil.copytree(mirror, tmp_path / "older")
    train(mirror, 6, None)
    assert train(tmp_path / "older", 7, mirror, mirror_wait=0)[1].resume_report.step == 6


def step_3(place: Path, suffix: str) -> Path:
    (found,) = place.glob(f"checkpoints/models/*/*_step_000003{suffix}")
    return found


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("suffix", [".*.safetensors", ".json"], ids=["data file", "record"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(mirror, tmp_path, suffix):
    flip(step_3(mirror, suffix), 20)
    with pytest.warns(FellBack, match="3"):
        _, ckpt = train(tmp_path / "second", 4, mirror, mirror_wait=0)
    assert ckpt.resume_report.step == 2


def test_no_run_begins_anew_where_nothing_in_its_mirror_is_intact(mirror, tmp_path):
    Store(mirror).find_run("walk").delete(1, 2)
    flip(step_3(mirror, ".json"), 20)
    with pytest.raises(DamagedFile):
        train(tmp_path / "second", 4, mirror, mirror_wait=0)


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("newer", [needing, of_version_2])
def test_a_checkpoint_that_is_too_new_is_not_passed_over(mirror, tmp_path, newer):
    shutil.copytree(mirror, tmp_path / "first")
    newer(step_3(mirror, ".json"))
    for store in ("first", "second"):
        with pytest.raises(TooNew, match=r"_step_000003\.json"):
            train(tmp_path / store, 4, mirror, mirror_wait=0)


def test_never_takes_a_trial_that_neither_the_store_nor_the_mirror_has(mirror, tmp_path):
    before = contents(mirror)
    _, ckpt = train(tmp_path / "second", 4, mirror, resume="never")
    assert ckpt.resume_report.step == 0
    assert ckpt.run.file.trial == 2
    assert {key: value for key, value in contents(mirror).items() if key in before} == before
    assert steps_in(mirror, ckpt.run.hash) == [1, 2, 3, 4]
    with pytest.raises(RunExists):
        train(tmp_path / "third", 4, mirror, resume="never", trial=2)


def contents(place: Any) -> dict[tuple[str, int], bytes]:
    """The weights of all checkpoints, and that they can be read."""
    return {
        (run.hash, each.step): each.state()["walk"]["weights"].tobytes()
        for run in Store(place).runs()
        for each in run.checkpoints()
    }


def steps_in(place: Any, run: str = "walk") -> list[int]:
    return [each.step for each in Store(place).find_run(run).checkpoints()]


@pytest.mark.long
def test_never_without_its_mirror_overwrites_nothing_of_it(
    own_server, tmp_path, monkeypatch, seams, capsys
):
    place = f"{own_server.bucket('mirror')}/runs"
    train(Store(place), 3, None)
    before = contents(place)
    own_server.kill()
    monkeypatch.setenv("STANDFAST_TIMEOUT", "0.5")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))  # another machine knows nothing
    warned: list[str] = []
    seams.system(warnings, warn=lambda warn, text, *_, **__: warned.append(str(text)))
    program = Walk()
    options = {"mirror": place, "resume": "never", "quiet": False, **NAMED}
    with checkpointer(tmp_path / "second", program.state, **options) as ckpt:
        assert place in capsys.readouterr().err
        own_server.start()
        for _ in ckpt.steps(5):
            program.train()
        wait_for(lambda: ckpt.run.hash in str(ckpt.mirrored.problem))
    assert ckpt.run.file.trial is None
    assert contents(place) == before
    assert place in warned[-1]


@pytest.mark.parametrize("is_parent_here", [True, False], ids=["with", "without"])
def test_a_branch_goes_on_from_the_mirror_too(mirror, is_parent_here, tmp_path):
    new, branch = tmp_path / "new", {"hp": {"lr": 2}, "resume": "walk@3"}
    if is_parent_here:
        shutil.copytree(mirror, new)
    _, first = train(mirror, 6, None, **branch)
    _, ckpt = train(new, 8, mirror, **branch)
    assert (ckpt.resume_report.step, ckpt.run.hash) == (6, first.run.hash)
    assert ckpt.mirrored.problem is None
    assert steps_in(mirror, first.run.hash) == [4, 5, 6, 7, 8]


def test_a_branch_from_elsewhere_takes_another_trial_than_the_mirror_has(mirror, tmp_path):
    train(tmp_path / "second", 2, None, hp={"lr": 1})
    _, ckpt = train(tmp_path / "second", 4, mirror, resume="walk@2")
    assert (ckpt.resume_report.step, ckpt.run.file.trial) == (2, 2)
    assert steps_in(mirror, ckpt.run.hash) == [3, 4]


def test_a_run_that_was_made_here_for_nothing_is_that_of_the_mirror_from_then_on(mirror, tmp_path):
    first = Store(mirror).find_run("walk")
    store = Store(tmp_path / "second")
    assert store.run("walk").hash == first.hash  # by a program that was killed
    _, ckpt = train(tmp_path / "second", 5, mirror)
    assert ckpt.resume_report.step == 3
    assert ckpt.mirrored.problem is None
    assert steps_in(mirror) == [1, 2, 3, 4, 5]
    assert store.open_run(first.hash).file.created == first.file.created


@pytest.mark.parametrize("kept", [[1, 2, 3, 4, 5, 6], [6]], ids=["all", "last"])
def test_a_clock_that_runs_ahead_hides_no_checkpoint_of_the_mirror(tmp_path, kept):
    store, place = tmp_path / "ahead", tmp_path / "mirror"
    with Seams.until_end() as seams:
        seams.system(time, time=lambda real: real() + 600)
        train(store, 3, None)
    shutil.copytree(store, place)
    train(place, 6, None)
    for step in {*range(1, 7)} - {*kept}:
        Store(place).find_run("walk").delete(step)
    _, ckpt = train(store, 7, place, mirror_wait=0)
    # Where one is left, nothing shows that it goes on from the one here.
    assert ckpt.resume_report.step == (6 if len(kept) > 1 else 3)


@pytest.mark.long
def test_without_its_mirror_a_run_begins_only_if_it_loses_nothing(
    own_server, tmp_path, monkeypatch, capsys
):
    place = f"{own_server.bucket('mirror')}/runs"
    train(tmp_path / "first", 3, place)
    own_server.kill()
    monkeypatch.setenv("STANDFAST_TIMEOUT", "0.5")
    _, ckpt = train(tmp_path / "first", 4, place, mirror_wait=0, quiet=False)
    assert ckpt.resume_report.step == 3
    assert place in capsys.readouterr().err
    with pytest.raises(RefNotFound):
        train(tmp_path / "second", 4, place, mirror_wait=0)
    assert not (tmp_path / "second").exists() or not Store(tmp_path / "second").backend.exists(
        names.MODELS
    )


def test_two_histories_are_not_mixed(mirror, tmp_path, capsys):
    shutil.copytree(mirror, tmp_path / "other")
    train(tmp_path / "other", 4, None)
    train(mirror, 7, None)
    before = contents(mirror)
    _, ckpt = train(tmp_path / "other", 5, mirror, mirror_wait=0, quiet=False)
    assert ckpt.resume_report.step == 4
    assert str(mirror) in capsys.readouterr().err
    assert contents(mirror) == before


def test_two_runs_are_not_mixed(tmp_path, capsys):
    place = tmp_path / "mirror"
    train(tmp_path / "other", 1, None)
    train(place, 6, None, every=2)
    _, ckpt = train(tmp_path / "other", 4, place, mirror_wait=0, quiet=False)
    assert ckpt.resume_report.step == 1
    assert str(place) in capsys.readouterr().err
    assert steps_in(place) == [2, 4, 6]


def test_a_mirror_is_never_the_store_by_another_name(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    for place in ("alias/x", "real/x/checkpoints/inner"):
        with pytest.raises(BadOption):
            checkpointer(tmp_path / "real" / "x", Walk().state, mirror=tmp_path / place)

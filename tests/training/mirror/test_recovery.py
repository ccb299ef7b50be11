"""A run whose machine is gone goes on from its mirror."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import KeepLast
from standfast.errors import BadOption, DamagedFile, FellBack, RefNotFound, RunExists, TooNew
from standfast.store.save import saving
from standfast.store.schema import names
from tests.kit.object_store.server import Server
from tests.kit.stores import flip
from tests.kit.walk import Walk, checkpointer, walk
from tests.store.schema.test_versions import needing, of_version_2
from tests.training.mirror.test_mirror import wait_for

NAMED: dict[str, Any] = {"name": "walk", "every": 1}


def train(store: Path, steps: int, place: Any, **options: Any) -> tuple[Walk, Any]:
    np.random.seed(0)
    program = Walk()
    with checkpointer(store, program.state, mirror=place, **{**NAMED, **options}) as ckpt:
        for step in ckpt.steps(steps):
            ckpt.step(step, value=program.train())
    return program, ckpt


@pytest.fixture(params=["folder", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "mirror")
    return str(request.getfixturevalue("bucket_url"))


def test_another_machine_goes_on_where_the_first_was(place: str, tmp_path: Path) -> None:
    train(tmp_path / "first", 5, place)
    shutil.rmtree(tmp_path / "first")
    program, ckpt = train(tmp_path / "second", 9, place)
    assert ckpt.resume_report.step == 5
    whole = walk(tmp_path / "whole", 9, **NAMED)
    assert program.weights.tobytes() == whole.weights.tobytes()
    run = standfast.Store(tmp_path / "second").find_run("walk")
    assert [each.step for each in run.checkpoints()] == [5, 6, 7, 8, 9]
    assert [each.step for each in standfast.Store(place).find_run("walk").checkpoints()] == [
        *range(1, 10)
    ]


def test_what_is_here_is_newer_and_nothing_is_brought(tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    train(tmp_path / "store", 3, place)
    shutil.rmtree(place)
    train(tmp_path / "store", 4, None)
    _, ckpt = train(tmp_path / "store", 5, place)
    assert ckpt.resume_report.step == 4


def test_an_older_store_goes_on_from_the_newer_mirror(tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    train(tmp_path / "one", 2, place)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    train(tmp_path / "one", 6, place)
    _, ckpt = train(tmp_path / "other", 7, place)
    assert ckpt.resume_report.step == 6


def step_3(place: Path, suffix: str) -> Path:
    (found,) = place.glob(f"checkpoints/models/*/*_step_000003{suffix}")
    return found


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("suffix", [".*.safetensors", ".json"], ids=["data file", "record"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, suffix: str) -> None:
    place = tmp_path / "mirror"
    train(tmp_path / "first", 3, place)
    flip(step_3(place, suffix), 20)
    with pytest.warns(FellBack, match="step 3: "):
        _, ckpt = train(tmp_path / "second", 4, place, mirror_wait=0)
    assert ckpt.resume_report.step == 2


def test_no_run_begins_anew_where_nothing_in_its_mirror_is_intact(tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    train(tmp_path / "first", 3, place, mirror_keep=KeepLast(1))
    flip(step_3(place, ".json"), 20)
    with pytest.raises(DamagedFile, match="no checkpoint there is intact"):
        train(tmp_path / "second", 4, place, mirror_wait=0)


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("newer", [needing, of_version_2])
def test_a_checkpoint_that_is_too_new_is_not_passed_over(tmp_path: Path, newer: Any) -> None:
    place = tmp_path / "mirror"
    train(tmp_path / "first", 3, place)
    newer(step_3(place, ".json"))
    for store in ("first", "second"):
        with pytest.raises(TooNew, match=r"_step_000003\.json: "):
            train(tmp_path / store, 4, place, mirror_wait=0)


def test_never_takes_a_trial_that_neither_the_store_nor_the_mirror_has(
    place: str, tmp_path: Path
) -> None:
    train(tmp_path / "first", 3, place)
    before = contents(place)
    _, ckpt = train(tmp_path / "second", 4, place, resume="never")
    assert ckpt.resume_report.step == 0
    assert ckpt.run.file.trial == 2
    assert {key: value for key, value in contents(place).items() if key in before} == before
    assert steps_in(place, ckpt.run.hash) == [1, 2, 3, 4]
    with pytest.raises(RunExists, match="here or in the mirror"):
        train(tmp_path / "third", 4, place, resume="never", trial=2)


def contents(place: str) -> dict[tuple[str, int], bytes]:
    """The weights of all checkpoints, and that they can be read."""
    return {
        (run.hash, each.step): each.state()["walk"]["weights"].tobytes()
        for run in standfast.Store(place).runs()
        for each in run.checkpoints()
    }


def steps_in(place: Any, run: str) -> list[int]:
    return [each.step for each in standfast.Store(place).open_run(run).checkpoints()]


def test_never_without_its_mirror_overwrites_nothing_of_it(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    place = f"{own_server.bucket('mirror')}/runs"
    train(tmp_path / "first", 3, place)
    before = contents(place)
    own_server.kill()
    monkeypatch.setenv("STANDFAST_TIMEOUT", "0.5")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))  # another machine knows nothing
    warned: list[str] = []
    monkeypatch.setattr("warnings.warn", lambda text, *_, **__: warned.append(str(text)))
    program = Walk()
    options = {"mirror": place, "resume": "never", "quiet": False, **NAMED}
    with checkpointer(tmp_path / "second", program.state, **options) as ckpt:
        assert "nothing of this one is copied there" in capsys.readouterr().err
        own_server.start()
        for _ in ckpt.steps(5):
            program.train()
        wait_for(lambda: "has another run" in str(ckpt.mirrored.problem))
    assert ckpt.run.file.trial is None
    assert contents(place) == before
    assert "gets no checkpoints" in warned[-1]


@pytest.mark.parametrize("is_parent_here", [True, False], ids=["with", "without"])
def test_a_branch_goes_on_from_the_mirror_too(is_parent_here: bool, tmp_path: Path) -> None:
    place, new = tmp_path / "mirror", tmp_path / "new"
    train(tmp_path / "first", 3, None, hp={"lr": 1})
    if is_parent_here:
        shutil.copytree(tmp_path / "first", new)
    branch = {"hp": {"lr": 2}, "resume": "walk@3"}
    _, first = train(tmp_path / "first", 6, place, **branch)
    for steps in (8, 9):
        _, ckpt = train(new, steps, place, **branch)
        assert ckpt.resume_report.step == {8: 6, 9: 8}[steps]
        assert ckpt.run.hash == first.run.hash
        assert ckpt.mirrored.problem is None
    assert steps_in(place, first.run.hash) == [4, 5, 6, 7, 8, 9]


def test_a_branch_from_elsewhere_takes_another_trial_than_the_mirror_has(tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    train(tmp_path / "first", 3, place)
    train(tmp_path / "second", 2, None, hp={"lr": 1})
    _, ckpt = train(tmp_path / "second", 4, place, resume="walk@2")
    assert (ckpt.resume_report.step, ckpt.run.file.trial) == (2, 2)
    assert steps_in(place, ckpt.run.hash) == [3, 4]


def test_a_run_that_was_made_here_for_nothing_is_that_of_the_mirror_from_then_on(
    tmp_path: Path,
) -> None:
    place = tmp_path / "mirror"
    _, first = train(tmp_path / "first", 3, place)
    store = standfast.Store(tmp_path / "second")
    assert store.run("walk").hash == first.run.hash  # by a program that was killed
    _, ckpt = train(tmp_path / "second", 5, place)
    assert ckpt.resume_report.step == 3
    assert ckpt.mirrored.problem is None
    assert steps_in(place, first.run.hash) == [1, 2, 3, 4, 5]
    assert store.open_run(first.run.hash).file.created == first.run.file.created


@pytest.mark.parametrize("keep", [None, KeepLast(1)], ids=["all", "last"])
def test_a_clock_that_runs_ahead_hides_no_checkpoint_of_the_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, keep: Any
) -> None:
    place = tmp_path / "mirror"

    def ahead() -> str:
        return f"{datetime.now(UTC) + timedelta(minutes=10):%Y-%m-%dT%H:%M:%S.%fZ}"

    with monkeypatch.context() as patch:
        patch.setattr(saving, "now", ahead)
        train(tmp_path / "ahead", 3, place)
    train(tmp_path / "other", 6, place, mirror_keep=keep)
    _, ckpt = train(tmp_path / "ahead", 7, place, mirror_wait=0, quiet=False)
    said = capsys.readouterr().err
    if keep is None:
        assert ckpt.resume_report.step == 6
    else:  # nothing shows that one goes on from the other
        assert ckpt.resume_report.step == 3
        assert "is later, but by its number alone: a clock may have been wrong" in said


@pytest.mark.long
def test_without_its_mirror_a_run_begins_only_if_it_loses_nothing(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    place = f"{own_server.bucket('mirror')}/runs"
    train(tmp_path / "first", 3, place)
    own_server.kill()
    monkeypatch.setenv("STANDFAST_TIMEOUT", "0.5")
    _, ckpt = train(tmp_path / "first", 4, place, mirror_wait=0, quiet=False)
    assert ckpt.resume_report.step == 3
    assert "cannot be reached" in capsys.readouterr().err
    with pytest.raises(RefNotFound, match="start it again when it can be reached"):
        train(tmp_path / "second", 4, place, mirror_wait=0)
    assert not (tmp_path / "second").exists() or not standfast.Store(
        tmp_path / "second"
    ).backend.exists(names.MODELS)


def test_two_histories_are_not_mixed(tmp_path: Path, capsys: Any) -> None:
    """Numbers count the commits of one store: many in the mirror make nothing later."""
    place = tmp_path / "mirror"
    train(tmp_path / "one", 2, place)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    train(tmp_path / "other", 3, None)
    train(tmp_path / "one", 7, place)
    _, ckpt = train(tmp_path / "other", 4, place, mirror_wait=0, quiet=False)
    assert ckpt.resume_report.step == 3
    assert "of another history: step 3 is another there than here" in capsys.readouterr().err
    mirrored = standfast.Store(place).find_run("walk")
    assert [each.step for each in mirrored.checkpoints()] == [*range(1, 8)]
    assert mirrored.load(4)["walk"] is not None


def test_two_runs_are_not_mixed(tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "mirror"
    train(tmp_path / "other", 1, None)
    train(tmp_path / "one", 6, place, every=2)
    _, ckpt = train(tmp_path / "other", 4, place, mirror_wait=0, quiet=False)
    assert ckpt.resume_report.step == 1
    assert "is later, but of another run, made on " in capsys.readouterr().err
    assert steps_in(place, ckpt.run.hash) == [2, 4, 6]


def test_a_mirror_is_never_the_store_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    for place in ("alias/x", "real/x/checkpoints/inner"):
        with pytest.raises(BadOption, match=r"is the store itself|lie in each other"):
            checkpointer(tmp_path / "real" / "x", Walk().state, mirror=tmp_path / place)

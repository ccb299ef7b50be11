"""A run whose machine is gone goes on from its mirror."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast
from holdfast.errors import BadOption, RefNotFound
from holdfast.store import names
from tests.object_store.server import Server
from tests.training.walk import Walk, checkpointer, walk

NAMED = {"name": "walk", "every": 1}


def train(store: Path, steps: int, place: Any, **options: Any) -> tuple[Walk, Any]:
    np.random.seed(0)
    program = Walk()
    with checkpointer(store, program.state, mirror=place, **NAMED, **options) as ckpt:
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
    run = holdfast.Store(tmp_path / "second").find_run("walk")
    assert [each.step for each in run.checkpoints()] == [5, 6, 7, 8, 9]
    assert [each.step for each in holdfast.Store(place).find_run("walk").checkpoints()] == [
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


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    train(tmp_path / "first", 3, place)
    (data,) = place.glob("checkpoints/models/*/*_step_000003.*.safetensors")
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    _, ckpt = train(tmp_path / "second", 4, place, mirror_wait=0)
    assert ckpt.resume_report.step == 2


def test_never_means_never_and_a_branch_is_a_branch(tmp_path: Path) -> None:
    train(tmp_path / "first", 3, tmp_path / "mirror")
    _, ckpt = train(tmp_path / "second", 2, tmp_path / "mirror", resume="never", mirror_wait=0)
    assert ckpt.resume_report.step == 0


def test_without_its_mirror_a_run_begins_only_if_it_loses_nothing(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    place = f"{own_server.bucket('mirror')}/runs"
    train(tmp_path / "first", 3, place)
    own_server.kill()
    monkeypatch.setenv("HOLDFAST_TIMEOUT", "0.5")
    _, ckpt = train(tmp_path / "first", 4, place, mirror_wait=0, quiet=False)
    assert ckpt.resume_report.step == 3
    assert "cannot be reached" in capsys.readouterr().err
    with pytest.raises(RefNotFound, match="start it again when it can be reached"):
        train(tmp_path / "second", 4, place, mirror_wait=0)
    assert not (tmp_path / "second").exists() or not holdfast.Store(
        tmp_path / "second"
    ).backend.exists(names.MODELS)


def test_two_histories_are_not_mixed(tmp_path: Path, capsys: Any) -> None:
    """Numbers count the commits of one store: many in the mirror make nothing later."""
    place = tmp_path / "mirror"
    train(tmp_path / "one", 6, place)
    train(tmp_path / "other", 3, None)
    _, ckpt = train(tmp_path / "other", 4, place, mirror_wait=0, quiet=False)
    assert ckpt.resume_report.step == 3
    train(tmp_path / "one", 7, place)
    _, ckpt = train(tmp_path / "other", 5, place, mirror_wait=0, quiet=False)
    assert ckpt.resume_report.step == 4
    assert "of another history: step" in capsys.readouterr().err
    mirrored = holdfast.Store(place).find_run("walk")
    assert [each.step for each in mirrored.checkpoints()] == [*range(1, 8)]
    assert mirrored.load(4)["walk"] is not None


def test_a_mirror_is_never_the_store_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    for place in ("alias/x", "real/x/checkpoints/inner"):
        with pytest.raises(BadOption, match=r"is the store itself|lie in each other"):
            checkpointer(tmp_path / "real" / "x", Walk().state, mirror=tmp_path / place)

"""Which store a command works in, and what is a file and what a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast import Store
from tests.kit.cli import call, make_store


@pytest.fixture(autouse=True)
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finding") / "store"
    make_store(path)
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    with Store(tmp_path / "other").run("only here") as run:
        run.save(1, {"w": np.ones(2)})
    return tmp_path / "other"


def test_a_store_is_named_by_an_option_or_by_the_environment(
    store: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "bert" in call("ls", "--store", store).out
    monkeypatch.setenv("STANDFAST_STORE", str(store))
    assert "bert" in call("ls").out
    assert "only here" in call("ls", "--store", other).out


def test_else_it_is_the_nearest_folder_above(
    store: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = store / "notes" / "inner"
    inner.mkdir(parents=True, exist_ok=True)
    run = next((store / "checkpoints" / "models").iterdir())
    for folder in (store, inner, store / "checkpoints", run):
        monkeypatch.chdir(folder)
        assert "bert" in call("ls").out, folder
    nested = shutil.copytree(other, store / "nested")
    monkeypatch.chdir(nested / "checkpoints")
    assert "only here" in call("ls").out


def test_no_store_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = call("ls")
    assert (done.code, done.out) == (2, "")
    assert str(tmp_path) in done.err
    assert "--store or $STANDFAST_STORE" in done.err
    done = call("ls", "--store", tmp_path / "none")
    assert done.code == 2
    assert done.err == f"standfast: --store: {tmp_path}/none is no store: it has no folder " + (
        "checkpoints/models\n"
    )
    monkeypatch.setenv("STANDFAST_STORE", "/nowhere")
    assert "$STANDFAST_STORE: /nowhere is no store" in call("du").err


def test_every_command_wants_a_store(tmp_path: Path) -> None:
    for command in (
        "show gpt, verify gpt, verify --all, diff gpt bert, ls, export gpt folder, tag gpt name, "
        "tag --delete name, note gpt text, rename gpt name, rm gpt, du, doctor, import ., "
        "push gpt elsewhere"
    ).split(", "):
        done = call(*command.split(), "--json")
        assert done.code == 2, command
        assert "$STANDFAST_STORE" in done.err + done.out


def test_a_slash_or_a_known_suffix_makes_a_file(store: Path, tmp_path: Path) -> None:
    standfast.save(tmp_path / "model.safetensors", {"w": np.ones(2)})
    shutil.copy("model.safetensors", "gpt")
    assert call("show", "model.safetensors").lines[0] == "model.safetensors"
    assert call("show", "./gpt").lines[0] == "gpt"
    assert call("show", "gpt", "--store", store).lines[0] == "gpt@300"
    missing = call("show", "gpt.safetensors", "--store", store)
    assert (missing.code, missing.err) == (2, "standfast: there is no file gpt.safetensors\n")


def test_a_file_that_was_taken_for_a_checkpoint_is_pointed_at(store: Path, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"")
    for arguments in (["show", "weights"], ["show", "weights", "--store", str(store)]):
        done = call(*arguments)
        assert done.code == 2
        assert "write ./weights" in done.err


def test_a_reference_to_nothing_is_an_error(store: Path) -> None:
    for ref in ("nothing", "gpt@999", "gpt@nothing", "best"):
        done = call("show", ref, "--store", store)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("standfast: ")

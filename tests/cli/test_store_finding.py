"""Which store a command works in, and what is a file and what a checkpoint."""

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
    Store(tmp_path / "other").run("only here").save(1, {"w": np.ones(2)})
    return tmp_path / "other"


def test_a_store_is_named_or_is_the_nearest_folder_above(store, other, monkeypatch):
    assert "bert" in call("ls", "--store", store).out
    with monkeypatch.context() as patch:
        patch.setenv("STANDFAST_STORE", str(store))
        assert "bert" in call("ls").out
        assert "only here" in call("ls", "--store", other).out
    inner = store / "notes" / "inner"
    inner.mkdir(parents=True)
    run = next((store / "checkpoints" / "models").iterdir())
    for folder in (store, inner, store / "checkpoints", run):
        monkeypatch.chdir(folder)
        assert "bert" in call("ls").out, folder
    nested = shutil.copytree(other, store / "nested")
    monkeypatch.chdir(nested / "checkpoints")
    assert "only here" in call("ls").out


def test_every_command_wants_a_store(tmp_path, monkeypatch):
    for command in (
        "show gpt, verify gpt, verify --all, diff gpt bert, ls, export gpt folder, tag gpt name, "
        "tag --delete name, note gpt text, rename gpt name, rm gpt, du, doctor, import ., "
        "push gpt elsewhere"
    ).split(", "):
        done = call(*command.split(), "--json")
        assert done.code == 2, command
        assert "$STANDFAST_STORE" in done.err + done.out
    assert str(tmp_path) in call("ls").err
    call("ls", "--store", tmp_path / "none").fails(2, f"--store: {tmp_path}/none")
    monkeypatch.setenv("STANDFAST_STORE", "/nowhere")
    assert "$STANDFAST_STORE: /nowhere" in call("du").err


def test_a_slash_or_a_known_suffix_makes_a_file(store, tmp_path):
    standfast.save(tmp_path / "model.safetensors", {"w": np.ones(2)})
    shutil.copy("model.safetensors", "gpt")
    assert call("show", "model.safetensors").lines[0] == "model.safetensors"
    assert call("show", "./gpt").lines[0] == "gpt"
    assert call("show", "gpt", "--store", store).lines[0] == "gpt@300"
    for name, told in (("gpt.safetensors", "gpt.safetensors"), ("model", ""), ("gpt@999", "999")):
        call("show", name, "--store", store).fails(2, told)
    (tmp_path / "weights").write_bytes(b"")
    for arguments in (["weights"], ["weights", "--store", store]):
        done = call("show", *arguments)
        assert done.code == 2
        assert "./weights" in done.err, "a file that was taken for a checkpoint is named"

"""`export`, `tag`, `note`, `rename` and `import`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast import Store
from tests.kit.cli import at, call, make_store, weights


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


# export


def test_export_to_a_file(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "whole.safetensors"
    done = call("export", "gpt@200", target, *at(store))
    ref = store.resolve("gpt@200").ref
    assert done.code == 0
    assert done.out == (
        f"exported    {target}: {ref}, 3 tensors, 262 kB, each verified when it was read\n"
    )
    assert call("verify", target).code == 0
    assert call("diff", target, "gpt@200", *at(store)).code == 0


def test_export_replaces_nothing_unasked(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "model.npz"
    target.write_bytes(b"precious")
    done = call("export", "gpt@200", target, "--part", "model", *at(store))
    assert done.code == 2
    assert "--yes replaces it" in done.err
    assert target.read_bytes() == b"precious"
    done = call("export", "gpt@200", target, "--part", "model", "--yes", "--json", *at(store))
    assert done.json == {
        "ref": store.resolve("gpt@200").ref,
        "files": [str(target)],
        "tensors": 2,
        "bytes": 131_088,
    }
    assert list(standfast.load(target)) == ["weight", "bias"]


def test_export_to_a_folder_whose_name_has_a_dot(store: Store, tmp_path: Path) -> None:
    for name in ("model.onnx", "run.v2"):
        assert call("export", "gpt@200", tmp_path / name, *at(store)).code == 2
    assert list(tmp_path.glob("*.*")) == []
    done = call("export", "gpt@200", f"{tmp_path / 'run.v2'}/", *at(store))
    assert [Path(line.strip()).name for line in done.lines[1:]] == [
        *("model.safetensors", "optimizer.safetensors", "checkpoint.json")
    ]
    assert call("export", "gpt@100", tmp_path / "run.v2", *at(store)).code == 2
    assert call("export", "gpt@100", tmp_path / "run.v2", "--yes", *at(store)).code == 0
    assert json.loads((tmp_path / "run.v2" / "checkpoint.json").read_text())["step"] == 100


@pytest.mark.guarantee("G1")
def test_an_export_that_fails_leaves_the_folder_as_it_was(store: Store, tmp_path: Path) -> None:
    with store.run("lattice") as run:
        run.save(1, {"links": {"z": np.ones(3, complex)}, "a": {"w": np.ones(3)}})
    folder = tmp_path / "folder"
    assert call("export", "lattice@1", folder, *at(store)).code == 2
    assert not folder.exists()
    assert call("export", "gpt@200", folder, *at(store)).code == 0
    (folder / "mine.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert call("export", "lattice@1", folder, "--yes", *at(store)).code == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert call("export", "gpt@200", folder, "--part", "model", "--yes", *at(store)).code == 0
    names = {"model.safetensors", "checkpoint.json", "mine.txt"}
    assert {path.name for path in folder.iterdir()} == names


def test_convert_replaces_nothing_unasked_and_leaves_checkpoints_to_export(
    store: Store, tmp_path: Path
) -> None:
    standfast.save(tmp_path / "a.npz", {"w": np.ones(3)})
    target = tmp_path / "b.safetensors"
    target.write_bytes(b"precious")
    assert call("convert", tmp_path / "a.npz", target).code == 2
    assert target.read_bytes() == b"precious"
    assert call("convert", tmp_path / "a.npz", target, "--yes").code == 0
    done = call("convert", "gpt@200", tmp_path / "c.pt", *at(store))
    assert done.code == 2
    assert f"standfast export gpt@200 {tmp_path / 'c.pt'}" in done.err
    assert not (tmp_path / "c.pt").exists()


def test_export_errors(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "model.oxck"
    unknown = call("export", "gpt@200", target, "--part", "nothing", *at(store))
    assert unknown.code == 2
    assert "it has model, optimizer" in unknown.err
    assert call("export", "gpt@200", target, "--format", "nothing", *at(store)).code == 2
    assert call("export", "gpt@200", tmp_path / "no" / "folder", *at(store)).code == 2
    assert not target.exists()


# tag, note, rename


def test_tags_are_given_and_taken_away(store: Store) -> None:
    ref = store.resolve("gpt@100").ref
    assert call("tag", "gpt@100", "paper", *at(store)).out == f"tagged      {ref}: paper\n"
    assert store.resolve("paper").step == 100
    refused = call("tag", "gpt@200", "paper", *at(store))
    assert refused.code == 2
    assert f"'paper' is on {ref}" in refused.err
    assert "`standfast tag --delete paper`" in refused.err
    assert call("tag", "--delete", "paper", *at(store)).out == "untagged    paper\n"
    assert store.resolve("gpt@100").tags == []
    assert call("tag", "gpt@200", "other", "--json", *at(store)).json["tag"] == "other"
    assert call("tag", "--delete", "other", "--json", *at(store)).json == {"deleted": "other"}


def test_tag_errors(store: Store) -> None:
    for arguments in (
        ["gpt"],
        [],
        ["gpt", "latest"],
        ["gpt", "a/b"],
        ["nobody", "name"],
        ["--delete", "nothing"],
        ["gpt", "name", "--delete", "name"],
    ):
        done = call("tag", *arguments, *at(store))
        assert (done.code, done.out) == (2, ""), arguments


def test_notes_are_written(store: Store) -> None:
    done = call("note", "gpt@100", "diverged here", *at(store))
    assert done.out == f"noted       {store.resolve('gpt@100').ref}\n"
    done = call("note", "gpt@100", "or not", "--json", *at(store))
    assert done.json["note"] == "or not"
    assert [note.text for note in store.resolve("gpt@100").notes] == ["diverged here", "or not"]
    assert call("note", "gpt@100", " ", *at(store)).code == 2


def test_runs_are_renamed(store: Store) -> None:
    run = store.find_run("gpt").hash
    done = call("rename", "gpt", "gpt small", *at(store))
    assert done.out == f"renamed     {run}: gpt → gpt small\n"
    assert store.find_run("gpt small").hash == run
    done = call("rename", run[:8], "gpt", "--json", *at(store))
    assert done.json == {"run": run, "before": "gpt small", "name": "gpt"}
    for arguments in (["gpt", "a@b"], ["nobody", "name"], ["gpt"]):
        assert call("rename", *arguments, *at(store)).code == 2


# import


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import torch

    folder = tmp_path / "old run"
    folder.mkdir()
    for step in (10, 20):
        content = {
            "model": {"weight": torch.from_numpy(weights(step))},
            "step": step,
            "loss": 1 / step,
            "arguments": argparse.Namespace(lr=1),
        }
        torch.save(content, folder / f"step_{step}.pt")
    (folder / "junk.pt").write_bytes(b"nothing")
    return folder


def test_import_makes_a_run_of_a_folder_and_can_be_repeated(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new store"
    (folder / "junk.pt").unlink()
    done = call("import", folder, "--store", new)
    assert done.code == 0, done.err
    store = Store(new)
    run = store.find_run("old run")
    assert done.lines == [
        "imported    step 10: step_10.pt, 131 kB",
        "            left out    arguments: a argparse.Namespace",
        "imported    step 20: step_20.pt, 131 kB",
        "            left out    arguments: a argparse.Namespace",
        f"torch: 2 checkpoints into run {run.hash} (old run)",
    ]
    assert np.array_equal(np.asarray(run.load(10)["model"]["weight"]), weights(10))
    assert store.resolve("latest").metrics == {"loss": 0.05}
    again = call("import", folder, *at(store))
    assert "skipped     step 10: the run has it already" in again.lines
    assert again.lines[-1].startswith("torch: 0 checkpoints")
    first = call("import", folder, "--name", "taken", "--json", *at(store)).json
    assert [each["step"] for each in first["taken"]] == [10, 20]
    assert first["taken"][0]["left_out"] == {"arguments": "argparse.Namespace"}
    assert (first["name"], first["kind"], first["skipped"]) == ("taken", "torch", [])
    again = call("import", folder, "--name", "taken", "--json", *at(store)).json
    assert (again["taken"], again["skipped"]) == ([], [10, 20])


def test_import_says_what_it_ignored(folder: Path, store: Store) -> None:
    (folder / "junk.pt").unlink()
    (folder / "model.safetensors").symlink_to(folder / "gone")
    done = call("import", folder, *at(store))
    assert done.code == 0, done.err
    (ignored,) = (line for line in done.lines if line.startswith("ignored"))
    assert "model.safetensors: a link to nothing" in ignored


def test_import_errors(folder: Path, store: Store, tmp_path: Path) -> None:
    damaged = call("import", folder, *at(store))
    assert damaged.code == 1
    assert "junk.pt" in damaged.err
    (tmp_path / "empty").mkdir()
    assert call("import", tmp_path / "empty", *at(store)).code == 2
    assert call("import", tmp_path / "none", *at(store)).code == 2
    bad = tmp_path / "a@b"
    folder.rename(bad)
    (bad / "junk.pt").unlink()
    done = call("import", bad, *at(store))
    assert done.code == 2
    assert "--name" in done.err
    assert {run.name for run in store.runs()} == {"gpt", "bert"}

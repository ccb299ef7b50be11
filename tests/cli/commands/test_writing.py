"""`export`, `convert`, `tag`, `note`, `rename` and `import`."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import standfast
from standfast import Store
from tests.kit.cli import call, weights


def test_export_to_a_file(store, cli, tmp_path):
    target = tmp_path / "whole.safetensors"
    done = cli("export", "gpt@200", target)
    assert done.code == 0
    ref = store.resolve("gpt@200").ref
    assert done.out.startswith(f"exported    {target}: {ref}, 3 tensors, 262 kB, ")
    assert call("verify", target).code == 0
    assert cli("diff", target, "gpt@200").code == 0
    export = ("export", "gpt@200", tmp_path / "model.npz", "--part", "model")
    Path(export[2]).write_bytes(b"precious")
    cli(*export).fails(2, "--yes")
    assert Path(export[2]).read_bytes() == b"precious"
    done = cli(*export, "--yes", "--json")
    assert done.json == {"ref": ref, "files": [str(export[2])], "tensors": 2, "bytes": 131_088}
    assert list(standfast.load(export[2])) == ["weight", "bias"]


def test_export_to_a_folder_whose_name_has_a_dot(cli, tmp_path):
    for name in ("model.onnx", "run.v2"):
        assert cli("export", "gpt@200", tmp_path / name).code == 2
    assert list(tmp_path.glob("*.*")) == []
    done = cli("export", "gpt@200", f"{tmp_path / 'run.v2'}/")
    assert [Path(line.strip()).name for line in done.lines[1:]] == [
        *("model.safetensors", "optimizer.safetensors", "checkpoint.json")
    ]
    assert cli("export", "gpt@100", tmp_path / "run.v2").code == 2
    assert cli("export", "gpt@100", tmp_path / "run.v2", "--yes").code == 0
    assert json.loads((tmp_path / "run.v2" / "checkpoint.json").read_text())["step"] == 100


@pytest.mark.guarantee("G1")
def test_an_export_that_fails_leaves_the_folder_as_it_was(store, cli, tmp_path):
    state = {"links": {"z": np.ones(3, complex)}, "a": {"w": np.ones(3)}}
    store.run("lattice").save(1, state)
    folder = tmp_path / "folder"
    assert cli("export", "lattice@1", folder).code == 2
    assert not folder.exists()
    assert cli("export", "gpt@200", folder).code == 0
    (folder / "mine.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert cli("export", "lattice@1", folder, "--yes").code == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert cli("export", "gpt@200", folder, "--part", "model", "--yes").code == 0
    names = {"model.safetensors", "checkpoint.json", "mine.txt"}
    assert {path.name for path in folder.iterdir()} == names


def test_convert_replaces_only_with_yes_and_leaves_checkpoints_to_export(cli, tmp_path):
    source, target = tmp_path / "a.npz", tmp_path / "b.safetensors"
    standfast.save(source, {"w": np.ones(3)})
    target.write_bytes(b"precious")
    assert call("convert", source, target).code == 2
    assert target.read_bytes() == b"precious"
    assert call("convert", source, target, "--yes").code == 0
    cli("convert", "gpt@200", tmp_path / "c.pt").fails(
        2, f"standfast export gpt@200 {tmp_path / 'c.pt'}"
    )
    assert not (tmp_path / "c.pt").exists()


def test_tags_are_given_and_taken_away(store, cli):
    ref = store.resolve("gpt@100").ref
    assert cli("tag", "gpt@100", "paper").out == f"tagged      {ref}: paper\n"
    assert store.resolve("paper").step == 100
    cli("tag", "gpt@200", "paper").fails(2, ref, "`standfast tag --delete paper`")
    assert cli("tag", "--delete", "paper").out == "untagged    paper\n"
    assert store.resolve("gpt@100").tags == []
    assert cli("tag", "gpt@200", "other", "--json").json["tag"] == "other"
    assert cli("tag", "--delete", "other", "--json").json == {"deleted": "other"}


def test_a_note_is_added_and_a_run_is_renamed(store, cli):
    assert cli("note", "gpt@100", "one").out == f"noted       {store.resolve('gpt@100').ref}\n"
    assert cli("note", "gpt@100", "two", "--json").json["note"] == "two"
    assert [note.text for note in store.resolve("gpt@100").notes] == ["one", "two"]
    run = store.find_run("gpt").hash
    assert cli("rename", "gpt", "gpt small").out == f"renamed     {run}: gpt → gpt small\n"
    done = cli("rename", run[:8], "gpt", "--json")
    assert done.json == {"run": run, "before": "gpt small", "name": "gpt"}


@pytest.mark.parametrize(
    "command",
    [
        *("tag gpt", "tag", "tag gpt latest", "tag gpt a/b", "tag nobody name"),
        *("tag --delete nothing", "tag gpt name --delete name", "note gpt", "note gpt \xa0"),
        *("note nobody text", "rename gpt a@b", "rename nobody name", "rename gpt"),
        *("export gpt@200 model.oxck --part nothing", "export gpt@200 model.oxck --format nothing"),
        "export gpt@200 no/folder/model.oxck",
    ],
)
def test_wrong_use_is_refused(cli, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli(*command.split())
    assert (done.code, done.out) == (2, "")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What another program left: two checkpoints, with an object of its own in each."""
    folder = tmp_path / "old run"
    folder.mkdir()
    for step in (10, 20):
        weight = torch.from_numpy(weights(step))
        options = argparse.Namespace(lr=1)
        content = {"model": {"weight": weight}, "step": step, "loss": 1 / step, "args": options}
        torch.save(content, folder / f"step_{step}.pt")
    return folder


def test_import_makes_a_run_of_a_folder_and_can_be_repeated(folder, tmp_path):
    new = tmp_path / "new store"
    done = call("import", folder, "--store", new)
    assert done.code == 0, done.err
    store = Store(new)
    run = store.find_run("old run")
    assert done.lines == [
        "imported    step 10: step_10.pt, 131 kB",
        "            left out    args: a argparse.Namespace",
        "imported    step 20: step_20.pt, 131 kB",
        "            left out    args: a argparse.Namespace",
        f"torch: 2 checkpoints into run {run.hash} (old run)",
    ]
    assert np.array_equal(np.asarray(run.load(10)["model"]["weight"]), weights(10))
    assert store.resolve("latest").metrics == {"loss": 0.05}
    again = call("import", folder, "--store", new)
    assert again.lines[0].startswith("skipped     step 10: ")
    assert again.lines[-1].startswith("torch: 0 checkpoints")
    import_named = ("import", folder, "--name", "taken", "--json", "--store", new)
    first = call(*import_named).json
    assert [each["step"] for each in first["taken"]] == [10, 20]
    assert first["taken"][0]["left_out"] == {"args": "argparse.Namespace"}
    assert (first["name"], first["kind"], first["skipped"]) == ("taken", "torch", [])
    again = call(*import_named).json
    assert (again["taken"], again["skipped"]) == ([], [10, 20])


def test_import_says_what_it_ignored_or_refused(folder, store, cli, tmp_path):
    (tmp_path / "empty").mkdir()
    assert cli("import", tmp_path / "empty").code == 2
    assert cli("import", tmp_path / "none").code == 2
    (folder / "junk.pt").write_bytes(b"nothing")
    cli("import", folder).fails(1, "junk.pt")
    (folder / "junk.pt").unlink()
    bad = folder.rename(tmp_path / "a@b")
    cli("import", bad).fails(2, "--name")
    assert {run.name for run in store.runs()} == {"gpt", "bert"}
    (bad / "model.safetensors").symlink_to(bad / "gone")
    done = cli("import", bad, "--name", "old")
    assert done.code == 0, done.err
    (ignored,) = (line for line in done.lines if line.startswith("ignored"))
    assert "model.safetensors" in ignored

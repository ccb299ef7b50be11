"""Roots that weightslab wrote: what reads a store reads them, and what would write refuses."""

from pathlib import Path

import pytest

from standfast import Store
from standfast.errors import FellBack
from tests import WEIGHTSLAB
from tests.kit.cli import call
from tests.tensorfile.importers import weightslab_roots
from tests.tensorfile.importers.weightslab_roots import FIRST, SECOND, WRITTEN, everything_in


@pytest.fixture
def root(tmp_path: Path) -> weightslab_roots.Writer:
    writer = weightslab_roots.Writer(tmp_path / "their root", short=False)
    writer.experiment(SECOND, 7, created="2026-01-21T08:00:00", experiment_name="bert")
    writer.experiment(FIRST, 100, 1_000_000, created="2026-01-21T09:00:00")
    writer.config(FIRST, {"lr": 0.1})
    return writer


def test_ls_of_what_weightslab_wrote():
    before = everything_in(WEIGHTSLAB)
    first, _, *rows = call("ls", "--store", WEIGHTSLAB).lines
    assert f"`standfast import {WEIGHTSLAB} --store STORE`" in first
    for row, step in zip(rows, ("200", "100"), strict=True):
        assert row.split()[:3] == ["wl-jade-tide", WRITTEN[:8], step]
        assert row.endswith("latest") == (step == "200")
    assert everything_in(WEIGHTSLAB) == before


def test_ls_of_experiments(root):
    listed = call("ls", "--json", "--store", root.path).json
    refs = [f"{FIRST}@1000000", f"{FIRST}@100", f"{SECOND}@7"]
    assert [entry["ref"] for entry in listed] == refs
    assert [entry["marks"] for entry in listed] == [["latest"], [], []]
    entry = listed[2]
    assert entry["written"] == root.weights(SECOND, 7).stat().st_size
    assert (entry["run"], entry["name"], entry["step"]) == (SECOND, "bert", 7)
    assert (entry["time"], entry["tensors"]) == ("2026-01-21T10:30:00.000000Z", 2)
    for arguments, steps in {
        (FIRST[:8],): [1_000_000, 100],
        (f"{FIRST[:8]}_{FIRST[8:]}",): [1_000_000, 100],
        ("bert",): [7],
        ("-n", "1"): [1_000_000],
        ("--all",): [1_000_000, 100, 7],
        ("--hp", "lr=0.1"): [1_000_000, 100],
    }.items():
        found = call("ls", *arguments, "--json", "--store", root.path).json
        assert [entry["step"] for entry in found] == steps
    assert call("ls", "nothing", "--store", root.path).code == 2
    root.manifest.write_bytes(b"\x1b[2J: [")
    done = call("ls", "--store", root.path)
    assert (done.code, len(done.lines)) == (0, 6)
    assert done.lines[0].startswith("problem     ")
    assert "manifest.yaml" in done.lines[0]
    assert "\x1b" not in done.out


def test_show_has_the_tensors_of_the_file_and_the_configuration():
    before = everything_in(WEIGHTSLAB)
    file = WEIGHTSLAB / "checkpoints" / "models" / "b5a79a78" / f"{WRITTEN}_step_000200.pt"
    done = call("show", "latest", "--store", WEIGHTSLAB)
    assert done.code == 0
    assert done.lines[0] == "wl-jade-tide@200"
    assert '  hyperparameters: {"batch": 8, "lr": 0.001}' in done.lines
    assert "  software: weightslab unknown" in done.lines
    json = call("show", "latest", "--json", "--store", WEIGHTSLAB).json
    assert json["hyperparameters"] == {"batch": 8, "lr": 0.001}
    assert json["ref"] == f"{WRITTEN}@200"
    assert json["tensors"] == call("show", file, "--json").json["tensors"]
    assert everything_in(WEIGHTSLAB) == before


def test_diff_compares_tensors_and_settings(root):
    before, here = everything_in(root.path), ("--json", "--store", root.path)
    assert [run["run"] for run in call("log", *here).json] == [FIRST, SECOND]
    (history,) = call("log", "bert", *here).json
    assert [entry["step"] for entry in history["checkpoints"]] == [7]
    done = call("diff", f"{FIRST}@100", f"{FIRST}@1000000", *here)
    assert done.code == 3
    assert "model_state_dict.0.weight" in str(done.json)
    assert "model_state_dict.0.bias" not in str(done.json)
    assert "lr" in str(call("diff", SECOND, FIRST, *here).json["hyperparameters"])
    assert everything_in(root.path) == before


def test_show_of_an_experiment(root, monkeypatch):
    monkeypatch.delenv("STANDFAST_STORE", raising=False)
    monkeypatch.chdir(root.checkpoints)
    assert len(call("ls", "--json").json) == 3
    assert call("du").code == 2
    root.experiment(f"dead1{FIRST[5:]}", last_used="2026-02-01T00:00:00")
    root.experiment(f"dead2{FIRST[5:]}")
    for ref, told in (
        ("bert@8", "8"),
        ("nothing", "'nothing'"),
        ("dead", "'dead'"),
        ("dead1", "dead1"),
    ):
        call("show", ref).fails(2, told)
    for ref in ("latest", f"{FIRST[:4]}@latest"):
        assert call("show", ref, "--json").json["ref"] == f"{FIRST}@1000000"
    root.config(FIRST, {}).write_bytes(b"{")
    with pytest.warns(FellBack, match=r"config\.yaml"):
        done = call("show", FIRST)
    assert done.code == 0
    assert "model_state_dict.0.weight" in done.out


def test_every_other_command_leaves_a_root_alone(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = everything_in(root.path)
    for command in (
        "verify --all, verify {}, export {} out.npz, tag {} paper, tag --delete paper, "
        "note {} text, rename {} name, rm {} --yes, gc --yes, gc --to 1KB --yes, restore {}, du, "
        "doctor --yes, import anything"
    ).split(", "):
        done = call(*command.format(FIRST).split(), "--store", root.path)
        assert done.code == 2, command
        assert f"`standfast import '{root.path}' --store STORE`" in done.err + done.out, command
        assert everything_in(root.path) == before, command


def test_import_takes_a_root_over(root, tmp_path):
    before = everything_in(root.path)
    target = tmp_path / "store"
    done = call("import", root.path, "--store", target)
    store = Store(target)
    first, second = store.find_run(FIRST), store.find_run("bert")
    assert done.code == 0
    assert done.lines[1].endswith(f"{SECOND}: 1 checkpoint into run {second.hash} (bert)")
    assert done.lines[4].endswith(f"{FIRST}: 2 checkpoints into run {first.hash} ({FIRST})")
    assert everything_in(root.path) == before
    again = call("import", root.path, "--json", "--store", target)
    assert again.code == 0
    runs = again.json["runs"]
    assert [run["experiment"] for run in runs] == [SECOND, FIRST]
    assert [run["run"] for run in runs] == [second.hash, first.hash]
    assert [run["skipped"] for run in runs] == [[7], [100, 1_000_000]]
    assert again.json["ignored"] == []
    assert f"experiment {FIRST}" in call("show", FIRST, "--store", target).out


def test_import_of_a_damaged_root_takes_the_rest(root, tmp_path):
    damaged, target = root.weights(FIRST, 100), tmp_path / "store"
    damaged.write_bytes(b"")
    done = call("import", root.path, "--store", target)
    assert done.code == 1
    assert f"ignored     {damaged}: " in done.out
    again = call("import", root.path, "--json", "--store", target)
    assert again.code == 1
    assert [entry["path"] for entry in again.json["runs"][1]["ignored"]] == [str(damaged)]

"""Roots that weightslab wrote: what reads a store reads them, and what would write refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast import Store
from standfast.errors import FellBack
from tests import WEIGHTSLAB
from tests.kit.cli import call
from tests.tensorfile.importers.weightslab_roots import (
    FIRST,
    SECOND,
    WRITTEN,
    Writer,
    everything_in,
)


@pytest.fixture
def root(tmp_path: Path) -> Writer:
    writer = Writer(tmp_path / "their root", short=False)
    writer.experiment(SECOND, 7, created="2026-01-21T08:00:00", experiment_name="bert")
    writer.experiment(FIRST, 100, 1_000_000, created="2026-01-21T09:00:00")
    writer.config(FIRST, {"lr": 0.1})
    return writer


def test_ls_of_what_weightslab_wrote() -> None:
    before = everything_in(WEIGHTSLAB)
    done = call("ls", "--store", WEIGHTSLAB)
    assert done.code == 0
    assert done.lines[0] == (
        f"{WEIGHTSLAB} was written by weightslab and is read-only: `standfast import {WEIGHTSLAB} "
        "--store STORE` imports it"
    )
    assert [line.split()[:3] for line in done.lines[2:]] == [
        ["wl-jade-tide", WRITTEN[:8], "200"],
        ["wl-jade-tide", WRITTEN[:8], "100"],
    ]
    assert [line.endswith("latest") for line in done.lines[2:]] == [True, False]
    assert everything_in(WEIGHTSLAB) == before


def test_ls_for_scripts(root: Writer) -> None:
    done = call("ls", "--json", "--store", root.path)
    assert [entry["ref"] for entry in done.json] == [
        f"{FIRST}@1000000",
        f"{FIRST}@100",
        f"{SECOND}@7",
    ]
    assert [entry["marks"] for entry in done.json] == [["latest"], [], []]
    entry = done.json[2]
    assert entry["written"] == root.weights(SECOND, 7).stat().st_size
    assert (entry["run"], entry["name"], entry["step"]) == (SECOND, "bert", 7)
    assert (entry["time"], entry["tensors"]) == ("2026-01-21T10:30:00.000000Z", 2)


def test_ls_of_one_experiment_or_of_a_few_checkpoints(root: Writer) -> None:
    refs = {
        (FIRST[:8],): [1_000_000, 100],
        (f"{FIRST[:8]}_{FIRST[8:]}",): [1_000_000, 100],
        ("bert",): [7],
        ("-n", "1"): [1_000_000],
        ("--all",): [1_000_000, 100, 7],
    }
    for arguments, steps in refs.items():
        done = call("ls", *arguments, "--json", "--store", root.path)
        assert [entry["step"] for entry in done.json] == steps
    assert call("ls", "nothing", "--store", root.path).code == 2
    chosen = call("ls", "--hp", "lr=0.1", "--json", "--store", root.path)
    assert [entry["step"] for entry in chosen.json] == [1_000_000, 100]


def test_ls_says_what_it_could_not_read(root: Writer) -> None:
    root.manifest.write_bytes(b"\x1b[2J: [")
    done = call("ls", "--store", root.path)
    assert done.code == 0
    assert done.lines[0].startswith("problem     ")
    assert "manifest.yaml" in done.lines[0]
    assert "\x1b" not in done.out
    assert len(done.lines) == 6


def test_show_has_the_tensors_of_the_file_and_the_configuration() -> None:
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


def test_diff_compares_tensors_and_settings(root: Writer) -> None:
    before = everything_in(root.path)
    assert [run["run"] for run in call("log", "--json", "--store", root.path).json] == [
        *(FIRST, SECOND)
    ]
    history = call("log", "bert", "--json", "--store", root.path).json
    assert [entry["step"] for entry in history[0]["checkpoints"]] == [7]
    done = call("diff", f"{FIRST}@100", f"{FIRST}@1000000", "--json", "--store", root.path)
    assert done.code == 3
    assert "model_state_dict.0.weight" in str(done.json)
    assert "model_state_dict.0.bias" not in str(done.json)
    other = call("diff", SECOND, FIRST, "--json", "--store", root.path)
    assert "lr" in str(other.json["hyperparameters"])
    assert everything_in(root.path) == before


def test_show_of_what_is_not_there(root: Writer) -> None:
    root.experiment(f"dead1{FIRST[5:]}", last_used="2026-02-01T00:00:00")
    root.experiment(f"dead2{FIRST[5:]}")
    for ref, words in (
        ("bert@8", "no checkpoint of step 8; it has 7"),
        ("nothing", "no run goes by 'nothing'"),
        ("dead", "2 runs go by 'dead'"),
        ("dead1", "has no checkpoint"),
    ):
        done = call("show", ref, "--store", root.path)
        assert done.code == 2
        assert words in done.err
    for ref in ("latest", f"{FIRST[:4]}@latest"):
        done = call("show", ref, "--json", "--store", root.path)
        assert done.json["ref"] == f"{FIRST}@1000000"


def test_show_of_weights_whose_configuration_is_damaged(root: Writer) -> None:
    root.config(FIRST, {}).write_bytes(b"{")
    with pytest.warns(FellBack, match=r"config\.yaml"):
        done = call("show", FIRST, "--store", root.path)
    assert done.code == 0
    assert "model_state_dict.0.weight" in done.out


def test_a_root_around_the_current_folder(root: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_STORE", raising=False)
    monkeypatch.chdir(root.checkpoints)
    assert len(call("ls", "--json").json) == 3
    assert call("du").code == 2


COMMANDS = [
    ["verify", "--all"],
    ["verify", FIRST],
    ["export", FIRST, "out.npz"],
    ["tag", FIRST, "paper"],
    ["tag", "--delete", "paper"],
    ["note", FIRST, "text"],
    ["rename", FIRST, "name"],
    ["rm", FIRST, "--yes"],
    ["gc", "--yes"],
    ["gc", "--to", "1KB", "--yes"],
    ["restore", FIRST],
    ["du"],
    ["doctor", "--yes"],
    ["import", "anything"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_other_command_leaves_a_root_alone(
    root: Writer, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = everything_in(root.path)
    done = call(*command, "--store", root.path)
    assert done.code == 2
    said = done.err + done.out
    assert "was written by weightslab" in said
    assert f"`standfast import '{root.path}' --store STORE` imports it" in said
    assert everything_in(root.path) == before


def test_import_takes_a_root_over(root: Writer, tmp_path: Path) -> None:
    before = everything_in(root.path)
    target = tmp_path / "store"
    done = call("import", root.path, "--store", target)
    store = Store(target)
    first, second = store.find_run(FIRST), store.find_run("bert")
    assert done.code == 0
    assert done.lines[1] == (
        f"weightslab, experiment {SECOND}: 1 checkpoint into run {second.hash} (bert)"
    )
    assert done.lines[4] == (
        f"weightslab, experiment {FIRST}: 2 checkpoints into run {first.hash} ({FIRST})"
    )
    assert everything_in(root.path) == before
    again = call("import", root.path, "--json", "--store", target)
    assert again.code == 0
    assert [run["experiment"] for run in again.json["runs"]] == [SECOND, FIRST]
    assert [run["run"] for run in again.json["runs"]] == [second.hash, first.hash]
    assert [run["skipped"] for run in again.json["runs"]] == [[7], [100, 1_000_000]]
    assert again.json["ignored"] == []
    assert f"experiment {FIRST}" in call("show", FIRST, "--store", target).out


def test_import_of_a_damaged_root_takes_the_rest(root: Writer, tmp_path: Path) -> None:
    root.weights(FIRST, 100).write_bytes(b"")
    done = call("import", root.path, "--store", tmp_path / "store")
    assert done.code == 1
    assert f"ignored     {root.weights(FIRST, 100)}: " in done.out
    again = call("import", root.path, "--json", "--store", tmp_path / "store")
    assert again.code == 1
    ignored = again.json["runs"][1]["ignored"]
    assert [entry["path"] for entry in ignored] == [str(root.weights(FIRST, 100))]

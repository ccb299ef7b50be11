"""The command line as a person and a script see it."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import standfast
from standfast.display import output
from standfast.tenzor import Checkpoint
from tests import GOLDEN
from tests.kit.cli import ON_TERMINAL, Terminal, call, flip, open_terminal

STANDFAST = str(Path(sys.executable).with_name("standfast"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    tensors = {"layer.weight": np.ones((300, 20), np.float32), "scalar": np.array(1)}
    standfast.save(path, tensors, {"step": 3, "note": "first try"})
    return path


@pytest.fixture
def damaged(path: Path) -> Path:
    damaged = Path(shutil.copy(path, path.with_name("damaged.safetensors")))
    flip(damaged, -1)
    return damaged


def test_show_prints_plain_columns_into_a_pipe(path: Path) -> None:
    done = call("show", path)
    assert done.code == 0
    assert done.lines == [
        str(path),
        "safetensors, 28.1 kB, 2 tensors, 6,001 elements, with digests",
        "  step: 3",
        "  note: first try",
        "",
        "tensor        dtype    shape    size",
        "layer.weight  float32  300×20  24 kB",
        "scalar        int64    scalar    8 B",
    ]
    shown = call("show", path, "--json").json
    assert shown["metadata"] == {"step": 3, "note": "first try"}
    assert shown["digests"] is True
    assert shown["tensors"][0] == {
        "name": "layer.weight",
        "dtype": "float32",
        "shape": [300, 20],
        "bytes": 24_000,
    }


def test_a_terminal_shows_the_first_tensors_unless_asked_for_all(
    tmp_path: Path, terminal: Terminal
) -> None:
    path = tmp_path / "many.safetensors"
    standfast.save(path, {f"tensor.{i}": np.ones(1) for i in range(45)})
    shown = terminal("show", path)
    assert "tensor.39" in shown
    assert "tensor.40" not in shown
    assert "and 5 more; --all lists them" in shown
    assert "\x1b[1m" in shown  # a bold heading
    assert "tensor.44" in terminal("show", path, "--all")
    assert "tensor.44" in call("show", path).out


def test_a_name_out_of_a_file_cannot_steer_the_terminal(tmp_path: Path, terminal: Terminal) -> None:
    path = tmp_path / "hostile.safetensors"
    standfast.save(path, {"\x1b[2Jgone": np.ones(1)}, {"key\x1b[31m": "\x07bell"})
    for shown in (terminal("show", path), call("show", path).out):
        assert "\x1b[2J" not in shown
        assert "\x07" not in shown
        assert r"\x1b[2Jgone" in shown


def test_verify_says_what_is_intact_and_what_is_damaged(
    path: Path, damaged: Path, tmp_path: Path
) -> None:
    done = call("verify", path)
    assert (done.code, done.out) == (0, f"intact      {path}: 2 tensors, 24 kB, every byte\n")
    done = call("verify", path, damaged)
    assert done.code == 1
    assert "tensor 'layer.weight' is damaged" in done.out
    done = call("verify", "--json", path, damaged, tmp_path / "none")
    intact, broken, missing = done.json
    assert done.code == 1
    assert (intact["status"], intact["verified_bytes"]) == ("intact", 24_008)
    assert (broken["status"], broken["error"]) == ("damaged", "DigestMismatch")
    assert broken["tensors"] == ["layer.weight"]
    assert (missing["status"], missing["error"]) == ("unverified", "MissingFile")
    done = call("convert", damaged, damaged.with_suffix(".pt"))
    assert done.code == 1
    assert not damaged.with_suffix(".pt").exists()


def test_exit_codes_tell_damage_from_wrong_use(path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(path.read_bytes()[:1000])
    text = tmp_path / "notes.txt"
    text.write_text("nothing to see")
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes((2).to_bytes(8, "little") + b"{}")
    codes = {
        ("verify", path): 0,
        ("show", path): 0,
        ("show", foreign): 0,
        ("verify", broken): 1,
        ("show", broken): 1,
        ("verify", foreign): 2,
        ("verify", text): 2,
        ("show", text): 2,
        ("show", tmp_path): 2,
        ("show", tmp_path / "none"): 2,
        ("verify", "x" * 300): 2,
        ("verify",): 2,
        ("show",): 2,
        ("frobnicate",): 2,
        ("show", path, "--frobnicate"): 2,
    }
    assert {args: call(*args).code for args in codes} == codes
    assert _started("verify", broken).returncode == 1


def test_errors_are_one_line_without_a_traceback(tmp_path: Path) -> None:
    done = _started("show", tmp_path / "none.safetensors")
    assert done.stdout == ""
    assert done.stderr == f"standfast: there is no file {tmp_path}/none.safetensors\n"


def _started(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [STANDFAST, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


SLOW = """
import itertools, types
from standfast.display import output
output.time = types.SimpleNamespace(monotonic=itertools.count(0, 2).__next__)
"""


def test_a_slow_verify_shows_a_progress_bar_on_a_terminal_only(
    path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_terminal(SLOW + ON_TERMINAL) as slow:
        assert "━" in slow("verify", path)
    assert "━" not in terminal("verify", path)
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=itertools.count(0, 2).__next__))
    done = call("verify", path)
    assert done.out.startswith("intact")
    assert done.err == ""


def test_convert_says_what_was_proven_and_what_was_cast(path: Path) -> None:
    new = path.with_suffix(".oxck")
    refused = call("convert", path, new)
    assert refused.code == 2
    assert "'scalar': oxck has no dtype int64" in refused.err
    assert not new.exists()
    done = call("convert", "--cast", path, new)
    assert done.code == 0
    assert done.lines == [
        f"converted   {new}: safetensors to oxck, 2 tensors, 24 kB, "
        "each digest equal on both sides",
        "cast        scalar: int64 to float32, not exact",
    ]
    assert call("verify", new).code == 0
    new = path.with_name("weights.bin")
    report = call("convert", "--bare", "--cast", "--format", "npz", path, new, "--json").json
    assert (report["from"], report["to"], report["source_verified"]) == ("safetensors", "npz", True)
    assert list(report["digests"]) == ["layer.weight", "scalar"]
    assert report["metadata"] == ["step: left out", "note: left out"]
    assert call("verify", new).code == 2


def test_names_are_given_to_a_file_that_has_only_their_hashes(tmp_path: Path) -> None:
    """The original's `tensorNames`: "We can't recover original names from hashes"."""
    names = tmp_path / "names.txt"
    names.write_text("conv1_weight\nconv1_bias\nnone_of_them\n", "utf-8-sig")  # as editors do
    original, new = GOLDEN / "tenzor_checkpoint.tenzor", tmp_path / "new.safetensors"
    slots = ["optim/conv1_weight/v", "optim/conv1_bias/v"]
    shown = call("show", original, "--names", names, "--json").json
    assert [each["name"] for each in shown["tensors"]] == ["conv1_weight", "conv1_bias", *slots]
    assert call("convert", original, new, "--names", names).code == 0
    assert list(standfast.open(new)) == ["conv1_weight", "conv1_bias", *slots]
    assert "0xc0713d87c613c5c3" in call("show", original).out


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_names_that_cannot_be_read_are_refused(content: bytes | None, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    if content is not None:
        names.write_bytes(content)
    done = call("show", GOLDEN / "tenzor_checkpoint.tenzor", "--names", names)
    assert done.code == 2
    assert str(names) in done.err
    assert "Traceback" not in done.err


def test_show_leaves_out_what_a_checkpoint_keeps_for_itself(tmp_path: Path) -> None:
    """Seed: `{ "epoch": 5, "best_val_acc": ... }` is the metadata of a checkpoint."""
    path = tmp_path / "epoch_5.tenzor"
    extra = {"long": list(range(2000))}
    Checkpoint.save(path, {"w": np.ones(2)}, None, {"epoch": 5}, extra=extra)
    shown = call("show", path).out
    assert "  epoch: 5" in shown.splitlines()
    assert "1999" not in shown
    assert len(shown) < 800
    assert "1999" in call("show", path, "--json").out


def test_diff_prints_the_worst_first_and_exits_by_it(path: Path) -> None:
    new = path.with_suffix(".npz")
    weight = np.ones((300, 20), np.float32)
    weight[7, 3] = 1.5
    standfast.save(
        new, {"layer.weight": weight, "new": np.zeros(2)}, {"step": 4, "note": "first try"}
    )
    done = call("diff", path, new)
    assert done.code == 3
    assert done.lines == [
        "metadata step: 3 → 4",
        "tensor        what     dtype and shape  max      mean  elements",
        "layer.weight  changed  float32 300×20   0.5  8.33e-05     <0.1%",
        "new           new      float64 2",
        "scalar        gone     int64 scalar",
        "0 tensors are the same, bit for bit",
    ]
    report = call("diff", path, new, "--json").json
    assert report["changed"][0]["max"] == 0.5
    assert report["metadata"] == {"step": {"before": 3, "after": 4}}
    assert call("diff", path, path).code == 0


def test_show_and_tensors_only_for_files_with_foreign_objects(tmp_path: Path) -> None:
    import argparse

    import torch

    path = tmp_path / "lightning.ckpt"
    torch.save({"state_dict": {"w": torch.ones(2)}, "hparams": argparse.Namespace(lr=1)}, path)
    refused = call("show", path)
    assert refused.code == 2
    assert "argparse.Namespace" in refused.err
    torch.save(
        {"w": torch.ones(2), "best": float("inf"), "key": b"x", "z": 1j}, tmp_path / "odd.pt"
    )
    odd = call("show", tmp_path / "odd.pt", "--json").json
    assert odd["metadata"] == {"best": "inf", "key": "b'x'", "z": "1j"}
    assert "best: Infinity" in call("show", tmp_path / "odd.pt").out
    shown = call("show", path, "--tensors-only")
    assert shown.code == 0
    assert "state_dict.w" in shown.out

"""The command line as a person and a script see it."""

import argparse
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import standfast
from standfast.tenzor import Checkpoint
from tests import GOLDEN
from tests.kit.cli import ON_TERMINAL, call, flip, open_terminal

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


def test_show_prints_plain_columns_into_a_pipe(path):
    assert call("show", path).lines == [
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
    assert (shown["metadata"], shown["digests"]) == ({"step": 3, "note": "first try"}, True)
    weight = {"name": "layer.weight", "dtype": "float32", "shape": [300, 20], "bytes": 24_000}
    assert shown["tensors"][0] == weight


def test_a_terminal_shows_the_first_tensors_unless_asked_for_all(tmp_path, terminal):
    path = tmp_path / "many.safetensors"
    standfast.save(path, {f"tensor.{i}": np.ones(1) for i in range(45)})
    shown = terminal("show", path)
    assert "tensor.39" in shown
    assert "tensor.40" not in shown
    assert "5 more; --all" in shown
    assert "\x1b[1m" in shown  # a bold heading
    assert "tensor.44" in terminal("show", path, "--all")
    assert "tensor.44" in call("show", path).out


def test_names_in_a_file_cannot_steer_the_terminal(tmp_path, terminal):
    path = tmp_path / "hostile.safetensors"
    standfast.save(path, {"\x1b[2Jgone": np.ones(1)}, {"key\x1b[31m": "\x07bell"})
    for shown in (terminal("show", path), call("show", path).out):
        assert "\x1b[2J" not in shown
        assert "\x07" not in shown
        assert r"\x1b[2Jgone" in shown


def test_verify_says_what_is_intact_and_what_is_damaged(path, damaged, tmp_path):
    done = call("verify", path)
    assert (done.code, done.out) == (0, f"intact      {path}: 2 tensors, 24 kB, every byte\n")
    done = call("verify", path, damaged)
    assert done.code == 1
    assert "'layer.weight'" in done.out
    done = call("verify", "--json", path, damaged, tmp_path / "none")
    intact, broken, missing = done.json
    assert done.code == 1
    assert (intact["status"], intact["verified_bytes"]) == ("intact", 24_008)
    assert (broken["status"], broken["error"]) == ("damaged", "DigestMismatch")
    assert broken["tensors"] == ["layer.weight"]
    assert (missing["status"], missing["error"]) == ("unverified", "MissingFile")
    assert call("convert", damaged, damaged.with_suffix(".pt")).code == 1
    assert not damaged.with_suffix(".pt").exists()


def test_exit_codes_tell_damage_from_wrong_use(path, tmp_path):
    broken, text = tmp_path / "broken.safetensors", tmp_path / "notes.txt"
    broken.write_bytes(path.read_bytes()[:1000])
    text.write_text("nothing to see")
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes((2).to_bytes(8, "little") + b"{}")
    codes = {
        0: [("verify", path), ("show", path), ("show", foreign)],
        1: [("verify", broken), ("show", broken)],
        2: [
            *(("verify", foreign), ("verify", text), ("show", text), ("show", tmp_path)),
            *(("show", tmp_path / "none"), ("verify", "x" * 300), ("verify",), ("show",)),
            *(("frobnicate",), ("show", path, "--frobnicate")),
        ],
    }
    for code, commands in codes.items():
        assert {args: call(*args).code for args in commands} == dict.fromkeys(commands, code)


def test_the_installed_program_ends_with_a_line_and_an_exit_code(path):
    path.write_bytes(path.read_bytes()[:1000])
    done = subprocess.run([STANDFAST, "verify", path], capture_output=True, text=True)
    (line,) = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 1
    assert str(path) in line


SLOW = """
import itertools, types
from standfast.display import output
output.time = types.SimpleNamespace(monotonic=itertools.count(0, 2).__next__)
"""


def test_a_slow_verify_shows_a_progress_bar_on_a_terminal_only(path, terminal, seams):
    with open_terminal(SLOW + ON_TERMINAL) as slow:
        assert "━" in slow("verify", path)
    assert "━" not in terminal("verify", path)
    seams.clock().monotonic = itertools.count(0, 2).__next__  # type: ignore[method-assign]
    done = call("verify", path)
    assert (done.out[:6], done.err) == ("intact", "")


def test_convert_says_what_was_proven_and_what_was_cast(path):
    new = path.with_suffix(".oxck")
    call("convert", path, new).fails(2, "'scalar'")
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
    assert call("verify", new).code == 2


def test_names_are_given_to_a_file_that_has_only_their_hashes(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("conv1_weight\nconv1_bias\nnone_of_them\n", "utf-8-sig")  # as editors do
    original, new = GOLDEN / "tenzor_checkpoint.tenzor", tmp_path / "new.safetensors"
    wanted = ["conv1_weight", "conv1_bias", "optim/conv1_weight/v", "optim/conv1_bias/v"]
    shown = call("show", original, "--names", names, "--json").json
    assert [each["name"] for each in shown["tensors"]] == wanted
    assert call("convert", original, new, "--names", names).code == 0
    assert list(standfast.open(new)) == wanted
    assert "0xc0713d87c613c5c3" in call("show", original).out
    names.write_bytes(b"\xff")
    for unreadable in (names, tmp_path / "none.txt"):
        call("show", original, "--names", unreadable).fails(2, str(unreadable))


def test_show_leaves_out_what_a_checkpoint_keeps_for_itself(tmp_path):
    path = tmp_path / "epoch_5.tenzor"
    extra = {"long": list(range(2000))}
    Checkpoint.save(path, {"w": np.ones(2)}, None, {"epoch": 5}, extra=extra)
    shown = call("show", path)
    assert "  epoch: 5" in shown.lines
    assert "1999" not in shown.out
    assert "1999" in call("show", path, "--json").out


def test_diff_prints_the_worst_first_and_exits_by_it(path):
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


def test_show_of_files_with_foreign_objects(tmp_path):
    path, odd = tmp_path / "lightning.ckpt", tmp_path / "odd.pt"
    torch.save({"state_dict": {"w": torch.ones(2)}, "hparams": argparse.Namespace(lr=1)}, path)
    call("show", path).fails(2, "argparse.Namespace")
    assert "state_dict.w" in call("show", path, "--tensors-only").out
    torch.save({"w": torch.ones(2), "best": float("inf"), "key": b"x", "z": 1j}, odd)
    shown = call("show", odd, "--json").json
    assert shown["metadata"] == {"best": "inf", "key": "b'x'", "z": "1j"}
    assert "best: Infinity" in call("show", odd).out

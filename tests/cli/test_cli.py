"""The command line as a person and a script see it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast.tenzor import Checkpoint
from tests import GOLDEN
from tests.kit.cli import call

STANDFAST = str(Path(sys.executable).with_name("standfast"))


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([STANDFAST, *map(str, args)], check=False, capture_output=True, text=True)


def run_in_terminal(*args: str | Path, command: tuple[str, ...] = (STANDFAST,)) -> str:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "50"}
    with subprocess.Popen(
        [*command, *map(str, args)], stdout=theirs, stderr=theirs, env=environment
    ):
        os.close(theirs)
        output = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            output += piece
    os.close(ours)
    return output.decode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    tensors = {"layer.weight": np.ones((300, 20), np.float32), "scalar": np.array(1)}
    standfast.save(path, tensors, {"step": 3, "note": "first try"})
    return path


@pytest.fixture
def damaged(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    damaged = path.with_name("damaged.safetensors")
    damaged.write_bytes(data)
    return damaged


def _foreign(path: Path) -> Path:
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    return path


def test_show_prints_plain_columns_into_a_pipe(path: Path) -> None:
    done = run("show", path)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        str(path),
        "safetensors, 28.1 kB, 2 tensors, 6,001 elements, with digests",
        "  step: 3",
        "  note: first try",
        "",
        "tensor        dtype    shape    size",
        "layer.weight  float32  300×20  24 kB",
        "scalar        int64    scalar    8 B",
    ]


def test_show_prints_json_for_scripts(path: Path) -> None:
    shown = json.loads(run("show", path, "--json").stdout)
    assert shown["metadata"] == {"step": 3, "note": "first try"}
    assert shown["digests"] is True
    assert shown["tensors"][0] == {
        "name": "layer.weight",
        "dtype": "float32",
        "shape": [300, 20],
        "bytes": 24_000,
    }


def test_a_terminal_shows_the_first_tensors_unless_asked_for_all(tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    standfast.save(path, {f"tensor.{i}": np.ones(1) for i in range(45)})
    shown = run_in_terminal("show", path)
    assert "tensor.39" in shown
    assert "tensor.40" not in shown
    assert "and 5 more; --all lists them" in shown
    assert "\x1b[1m" in shown  # a bold heading
    assert "tensor.44" in run_in_terminal("show", path, "--all")
    assert "tensor.44" in run("show", path).stdout


def test_a_name_out_of_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "hostile.safetensors"
    standfast.save(path, {"\x1b[2Jgone": np.ones(1)}, {"key\x1b[31m": "\x07bell"})
    for shown in (run_in_terminal("show", path), run("show", path).stdout):
        assert "\x1b[2J" not in shown
        assert "\x07" not in shown
        assert r"\x1b[2Jgone" in shown


def test_verify_says_what_is_intact_and_what_is_damaged(path: Path, damaged: Path) -> None:
    done = run("verify", path)
    assert done.returncode == 0
    assert done.stdout == f"intact      {path}: 2 tensors, 24 kB, every byte\n"
    done = run("verify", path, damaged)
    assert done.returncode == 1
    assert "tensor 'layer.weight' is damaged" in done.stdout


def test_verify_prints_json_for_scripts(path: Path, damaged: Path, tmp_path: Path) -> None:
    done = run("verify", "--json", path, damaged, tmp_path / "none")
    intact, broken, missing = json.loads(done.stdout)
    assert done.returncode == 1
    assert intact["status"] == "intact"
    assert intact["verified_bytes"] == 24_008
    assert (broken["status"], broken["error"]) == ("damaged", "DigestMismatch")
    assert broken["tensors"] == ["layer.weight"]
    assert (missing["status"], missing["error"]) == ("unverified", "MissingFile")


def test_exit_codes_tell_damage_from_wrong_use(path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(path.read_bytes()[:1000])
    text = tmp_path / "notes.txt"
    text.write_text("nothing to see")
    foreign = _foreign(tmp_path / "foreign.safetensors")
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
    assert [run("verify", each).returncode for each in (path, broken, text)] == [0, 1, 2]


def test_errors_are_one_line_without_a_traceback(tmp_path: Path) -> None:
    done = run("show", tmp_path / "none.safetensors")
    assert done.stdout == ""
    assert done.stderr == f"standfast: there is no file {tmp_path}/none.safetensors\n"


SLOW = """
import sys, time
from standfast.cli.commands import verify
real = verify.verify
def slow(path, progress):
    for _ in range(6):
        time.sleep(0.25)
        progress(1000)
    return real(path)
verify.verify = slow
from standfast.cli import main
sys.argv = ["standfast", "verify", sys.argv[1]]
main()
"""


def test_a_slow_verify_shows_a_progress_bar_on_a_terminal_only(path: Path) -> None:
    command = (sys.executable, "-c", SLOW, str(path))
    assert "━" in run_in_terminal(command=command)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("intact")
    assert done.stderr == ""
    assert "━" not in run_in_terminal("verify", path)


def test_convert_says_what_was_proven_and_what_was_cast(path: Path) -> None:
    new = path.with_suffix(".oxck")
    refused = run("convert", path, new)
    assert refused.returncode == 2
    assert "'scalar': oxck has no dtype int64" in refused.stderr
    assert not new.exists()
    done = run("convert", "--cast", path, new)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"converted   {new}: safetensors to oxck, 2 tensors, 24 kB, "
        "each digest equal on both sides",
        "cast        scalar: int64 to float32, not exact",
    ]
    assert run("verify", new).returncode == 0


def test_convert_to_bare_bytes_and_to_a_named_format(path: Path) -> None:
    new = path.with_name("weights.bin")
    done = run("convert", "--bare", "--cast", "--format", "npz", path, new, "--json")
    report = json.loads(done.stdout)
    assert (report["from"], report["to"], report["source_verified"]) == ("safetensors", "npz", True)
    assert list(report["digests"]) == ["layer.weight", "scalar"]
    assert report["metadata"] == ["step: left out", "note: left out"]
    assert run("verify", new).returncode == 2


def test_names_are_given_to_a_file_that_has_only_their_hashes(tmp_path: Path) -> None:
    """The original's `tensorNames`: "We can't recover original names from hashes"."""
    names = tmp_path / "names.txt"
    names.write_text("conv1_weight\nconv1_bias\nnone_of_them\n", "utf-8-sig")  # as editors do
    original, new = GOLDEN / "tenzor_checkpoint.tenzor", tmp_path / "new.safetensors"
    slots = ["optim/conv1_weight/v", "optim/conv1_bias/v"]
    shown = json.loads(run("show", original, "--names", names, "--json").stdout)
    assert [each["name"] for each in shown["tensors"]] == ["conv1_weight", "conv1_bias", *slots]
    assert run("convert", original, new, "--names", names).returncode == 0
    assert list(standfast.open(new)) == ["conv1_weight", "conv1_bias", *slots]
    assert "0xc0713d87c613c5c3" in run("show", original).stdout


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_names_that_cannot_be_read_are_refused(content: bytes | None, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    if content is not None:
        names.write_bytes(content)
    done = run("show", GOLDEN / "tenzor_checkpoint.tenzor", "--names", names)
    assert done.returncode == 2
    assert str(names) in done.stderr
    assert "Traceback" not in done.stderr


def test_show_leaves_out_what_a_checkpoint_keeps_for_itself(tmp_path: Path) -> None:
    """Seed: `{ "epoch": 5, "best_val_acc": ... }` is the metadata of a checkpoint."""
    path = tmp_path / "epoch_5.tenzor"
    extra = {"long": list(range(2000))}
    Checkpoint.save(path, {"w": np.ones(2)}, None, {"epoch": 5}, extra=extra)
    shown = run("show", path).stdout
    assert "  epoch: 5" in shown.splitlines()
    assert "1999" not in shown
    assert len(shown) < 800
    assert "1999" in run("show", path, "--json").stdout


def test_convert_of_a_damaged_file_is_damage(damaged: Path) -> None:
    new = damaged.with_suffix(".pt")
    done = run("convert", damaged, new)
    assert done.returncode == 1
    assert "nothing was converted" in done.stderr
    assert not new.exists()


def test_diff_prints_the_worst_first_and_exits_by_it(path: Path) -> None:
    new = path.with_suffix(".npz")
    weight = np.ones((300, 20), np.float32)
    weight[7, 3] = 1.5
    standfast.save(
        new, {"layer.weight": weight, "new": np.zeros(2)}, {"step": 4, "note": "first try"}
    )
    done = run("diff", path, new)
    assert done.returncode == 3
    assert done.stdout.splitlines() == [
        "metadata step: 3 → 4",
        "tensor        what     dtype and shape  max      mean  elements",
        "layer.weight  changed  float32 300×20   0.5  8.33e-05     <0.1%",
        "new           new      float64 2",
        "scalar        gone     int64 scalar",
        "0 tensors are the same, bit for bit",
    ]
    report = json.loads(run("diff", path, new, "--json").stdout)
    assert report["changed"][0]["max"] == 0.5
    assert report["metadata"] == {"step": {"before": 3, "after": 4}}
    assert run("diff", path, path).returncode == 0


def test_show_and_tensors_only_for_files_with_foreign_objects(tmp_path: Path) -> None:
    import argparse

    import torch

    path = tmp_path / "lightning.ckpt"
    torch.save({"state_dict": {"w": torch.ones(2)}, "hparams": argparse.Namespace(lr=1)}, path)
    refused = run("show", path)
    assert refused.returncode == 2
    assert "argparse.Namespace" in refused.stderr
    torch.save(
        {"w": torch.ones(2), "best": float("inf"), "key": b"x", "z": 1j}, tmp_path / "odd.pt"
    )
    odd = json.loads(run("show", tmp_path / "odd.pt", "--json").stdout)
    assert odd["metadata"] == {"best": "inf", "key": "b'x'", "z": "1j"}
    assert "best: Infinity" in run("show", tmp_path / "odd.pt").stdout
    shown = run("show", path, "--tensors-only")
    assert shown.returncode == 0
    assert "state_dict.w" in shown.stdout

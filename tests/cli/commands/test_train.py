"""`standfast train`: it saves, is killed, and goes on with the same bits."""

import io
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import standfast
from standfast.cli.commands.train.terminal import LiveDisplay
from standfast.tensors import randomness
from standfast.tenzor import Checkpoint, CheckpointMetadata
from standfast.tenzor.program import Program
from tests.cli.test_cli import STANDFAST
from tests.kit.cases import kept
from tests.kit.cli import Done, call, flip
from tests.tenzor.digits_files import write_digits


@pytest.fixture(autouse=True, scope="module")
def _torch_as_it_was() -> Iterator[None]:
    """Before all that is made for this module: a run that is trained for it leaves torch so."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    states = randomness.capture()
    yield
    randomness.restore(states)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("mnist"))


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of a training that was never stopped."""
    folder = tmp_path_factory.mktemp("trained")
    done = train("--checkpoint", folder, "-d", data, "-e", 4, "-b", 8)
    assert done.code == 0, done.err
    return folder


def train(*arguments: object) -> Done:
    return call("train", *map(str, arguments))


def content(path: Path) -> dict[str, Any]:
    """Dtype, shape and bytes of every tensor of a checkpoint."""
    tensors = standfast.load(path)
    return {name: (a.dtype, a.shape, a.tobytes()) for name, a in tensors.items()}


def copied(trained: Path, name: str, folder: Path) -> Path:
    folder.mkdir()
    return Path(shutil.copy(trained / name, folder))


def test_a_training_writes_its_epochs_and_the_best(trained):
    names = sorted(path.name for path in trained.iterdir())
    assert names == ["best.tenzor", *(f"epoch_{n}.tenzor" for n in range(1, 5))]
    for path in trained.iterdir():
        assert standfast.verify(path).tensors == len(standfast.load(path))
    with Checkpoint.load(trained / "epoch_4.tenzor") as last:
        assert (last.metadata.epoch, last.metadata.global_step) == (4, 48)
        assert last.metadata.model_name == "lenet"
        best = last.metadata.best_epoch
    with Checkpoint.load(trained / "best.tenzor") as checkpoint:
        assert checkpoint.metadata.epoch == best
    weights = standfast.load(trained / "epoch_1.tenzor")
    assert "optim/conv1.weight/v" in weights
    assert weights["fc3.bias"].shape == (10,)


def test_a_resumed_training_ends_with_the_same_bits(trained, tmp_path):
    path = copied(trained, "epoch_2.tenzor", tmp_path / "again")
    torch.rand(5)
    done = train("--resume", path)
    assert (done.code, done.err) == (0, "")
    for name in ("epoch_3.tenzor", "epoch_4.tenzor"):
        assert content(path.parent / name) == content(trained / name)


@pytest.mark.long
def test_a_training_killed_in_the_middle_ends_with_the_same_bits(data, trained, tmp_path):
    command = [STANDFAST, "train", "--checkpoint", tmp_path, "-d", data, "-e", "4", "-b", "8"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 2/4"):
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait() == -signal.SIGKILL
    newest = max(tmp_path.glob("epoch_*.tenzor"))
    assert newest.name in ("epoch_2.tenzor", "epoch_3.tenzor")
    # In a process of its own, which knows nothing but the file.
    resumed = [STANDFAST, "train", "--resume", str(newest)]
    done = subprocess.run(resumed, check=True, capture_output=True, text=True)
    assert f"resumed from {newest}" in done.stdout
    assert content(tmp_path / "epoch_4.tenzor") == content(trained / "epoch_4.tenzor")
    assert content(tmp_path / "best.tenzor") == content(trained / "best.tenzor")


def test_without_a_folder_nothing_is_saved(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = train("-d", data, "-e", 1, "--no-tui")
    assert done.code == 0
    assert done.lines[0] == f"LeNet-5 on MNIST in {data}: 96 samples, 32 more to validate"
    assert done.lines[1].startswith("epoch 1/1  loss ")
    train("-d", tmp_path / "typo", "-e", 2, "--checkpoint", tmp_path / "checkpoints").fails(
        2, f"{tmp_path}/typo"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_without_mnist_the_small_digits_are_learnt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = train("-e", 2)
    assert "scikit-learn: 1,437 samples" in done.lines[0]
    accuracy = float(done.lines[-1].split("accuracy ")[1].split(" %")[0])
    assert accuracy > 70


def test_a_longer_training_says_what_becomes_of_the_cosine(trained, tmp_path):
    folders = tmp_path / "again", tmp_path / "once more"
    for folder in folders:
        path = copied(trained, "epoch_4.tenzor", folder)
        done = train("--resume", path, "-e", 6)
        assert done.code == 0
        assert "note: --epochs was 4 and is now 6" in done.lines
        assert any("cosine" in line for line in done.lines)
    assert content(folders[0] / "epoch_6.tenzor") == content(folders[1] / "epoch_6.tenzor")


@pytest.mark.parametrize("scheduler", kept(["constant", "step"], "step"))
def test_without_a_cosine_a_longer_training_is_one_that_was_never_short(scheduler, data, tmp_path):
    flags = ("-d", data, "-b", 16, "--scheduler", scheduler, "--warmup", 8)
    train("--checkpoint", tmp_path / "whole", "-e", 3, *flags)
    train("--checkpoint", tmp_path / "parts", "-e", 1, *flags)
    train("--resume", tmp_path / "parts" / "epoch_1.tenzor", "-e", 3)
    parts, whole = (tmp_path / each / "epoch_3.tenzor" for each in ("parts", "whole"))
    assert content(parts) == content(whole)


def test_a_training_that_is_done_says_so_and_what_has_changed(trained, tmp_path, seams):
    path = copied(trained, "epoch_4.tenzor", tmp_path / "again")
    seams.system(torch, __version__="99.0")
    done = train("--resume", path)
    assert done.code == 0
    assert any("99.0" in line for line in done.lines)
    assert any("epoch 4 of 4" in line for line in done.lines)
    assert [each.name for each in path.parent.iterdir()] == ["epoch_4.tenzor"]


def test_patience_stops_and_more_of_it_goes_on(data, tmp_path):
    flags = ("-d", data, "-e", 9, "-b", 96, "-l", 1e-12, "--patience", 1)
    done = train("--checkpoint", tmp_path, *flags)
    assert any("stopped after epoch 2" in line for line in done.lines)
    done = train("--resume", tmp_path / "epoch_2.tenzor", "--patience", 2)
    assert any("stopped after epoch 3" in line for line in done.lines)


def test_an_interrupt_leaves_the_last_checkpoint(data, tmp_path, seams):
    def interrupted(rename: Any, source: Path, target: Path) -> None:
        if target.name == "epoch_3.tenzor":
            raise KeyboardInterrupt
        rename(source, target)

    seams.disk(rename=interrupted)
    done = train("--checkpoint", tmp_path, "-d", data, "-e", 4)
    last = tmp_path / "epoch_2.tenzor"
    assert done.code == 130
    assert f"`standfast train --resume {last}`" in done.err
    assert standfast.verify(last).tensors > 0


def test_a_folder_with_checkpoints_is_refused_untouched(data, trained, tmp_path):
    before = {path: path.read_bytes() for path in trained.iterdir()}
    train("--checkpoint", trained, "-d", data).fails(2, str(trained / "epoch_4.tenzor"))
    other = copied(trained, "epoch_1.tenzor", tmp_path / "other")
    assert train("--resume", other, "--checkpoint", trained).code == 2
    assert {path: path.read_bytes() for path in trained.iterdir()} == before


def test_checkpoints_go_to_another_folder_and_data_may_lie_elsewhere(trained, tmp_path):
    old, new, name = trained / "epoch_3.tenzor", tmp_path / "new", "epoch_4.tenzor"
    moved = write_digits(tmp_path / "moved")
    assert train("--resume", old, "--checkpoint", new, "-d", moved).code == 0
    assert content(new / name) == content(trained / name)
    done = train("--resume", shutil.copy(old, new))
    assert any(line.startswith("note: ") and line.endswith(name) for line in done.lines)


def test_a_resume_that_would_not_be_exact_is_refused(trained, tmp_path):
    path = copied(trained, "epoch_2.tenzor", tmp_path / "again")
    other = write_digits(tmp_path / "other", validation=31)
    for flags, told in (
        (["-b", "16"], "--batch-size 8"),
        (["-s", "1", "-l", "0.5"], "--lr 0.01, --seed 42"),
        (["--scheduler", "step"], "--scheduler cosine"),
        (["-d", other], "MNIST"),
    ):
        train("--resume", path, *flags).fails(2, told)
        assert [each.name for each in path.parent.iterdir()] == ["epoch_2.tenzor"]
    mine = tmp_path / "mine.tenzor"
    Checkpoint.save(mine, standfast.load(trained / "best.tenzor"), None, CheckpointMetadata())
    assert train("--resume", mine).code == 2
    flip(path, -1)
    assert train("--resume", path).code == 1


def test_flags_that_make_no_sense_are_refused(data, tmp_path):
    for flags, told in (
        *(
            ("-e 0", "--epochs"),
            ("-b 97", "--batch-size"),
            ("--lr nan", "--lr"),
            ("-s -1", "--seed"),
        ),
        *(("--momentum 1", "--momentum"), ("--scheduler linear", "constant, step, cosine")),
        ("--checkpoint-every 0", "--checkpoint-every"),
    ):
        train("--checkpoint", tmp_path / "new", "-d", data, *flags.split()).fails(2, told)
        assert not (tmp_path / "new").exists()


def test_without_torch_the_extra_is_named(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "standfast.tenzor.lenet", raising=False)
    train("-d", data).fails(2, "torch scikit-learn")


def test_the_display_has_progress_curves_and_checkpoints(data, tmp_path):
    program = Program({"epochs": 6, "data_dir": str(data)}, folder=tmp_path / "checkpoints")
    screen, width = io.StringIO(), 60
    console = Console(file=screen, width=width, height=60, force_terminal=True)
    with LiveDisplay(program, console) as display:
        program.run(display)
    page = Console(file=io.StringIO(), width=width, record=True)
    page.print(display)
    text = page.export_text()
    assert max(map(len, text.splitlines())) <= width
    for shown in ("epoch 6/6", "loss  training  validation", "✓ epoch_6.tenzor", "★ best.tenzor"):
        assert shown in text
    assert "epoch_1.tenzor" not in text  # only the newest are listed
    assert "\x1b[" in screen.getvalue()

"""What the first implementation fails at, and ours does not: a test for each."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import standfast
from standfast.errors import (
    DamagedFile,
    DigestMismatch,
    FellBack,
    RefNotFound,
    RefusedPickle,
    RunBusy,
    UnstableValue,
)
from standfast.experiments import CheckpointManagerV2, ExperimentHashGenerator
from standfast.identity import identify
from tests import ROOT
from tests.experiments.models import DATA, HP, bits, fill, new_model
from tests.experiments.saver import SIZE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "experiments"


@contextmanager
def saver(root: Path, lr: float, first: int = 1) -> Iterator[subprocess.Popen[str]]:
    """Another process that saves every step; it is killed in the end."""
    command = [sys.executable, "-m", "tests.experiments.saver", str(root), str(lr), str(first)]
    where = ROOT
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=where) as process:
        try:
            yield process
        finally:
            process.kill()


def committed(process: subprocess.Popen[str]) -> int:
    """The next step that the process says it has saved."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def flip(path: Path, offset: int) -> None:
    """Turn one bit of a file where it lies, under all its names."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_kill_leaves_manifest_and_checkpoints_whole(root: Path) -> None:
    first = 1
    for wait in (0.0, 0.005, 0.015):
        with saver(root, 0.1, first) as process:
            last = [committed(process) for _ in range(3)][-1]
            time.sleep(wait)  # somewhere in the next save
            process.kill()
            process.wait()
            last = max([last, *map(int, process.stdout or ())])  # printed before the kill came
        manifest = yaml.safe_load((root / "checkpoints" / "manifest.yaml").read_text())
        (made,) = manifest["experiments"]
        manager = CheckpointManagerV2(root)
        info = manager.get_checkpoint_info(made)
        assert set(range(1, last + 1)) <= set(info["steps"])
        for each in info["checkpoints"]:
            if each["path"] is None:  # the kill came between the commit and the V3 name
                assert each["step"] == max(info["steps"])
                continue
            saved = standfast.load(each["path"])["model_state_dict.weight"]
            assert saved.tobytes() == np.full(SIZE, float(each["step"])).tobytes()
        assert manager.load_latest_checkpoint()["step"] == info["latest_step"]
        first = info["latest_step"] + 1


def test_a_torn_manifest_is_made_again_and_loses_nothing(root: Path) -> None:
    made = fill(root, 1)
    manager = CheckpointManagerV2(root)
    whole = yaml.safe_load(manager.manifest_file.read_text())
    manager.manifest_file.write_bytes(manager.manifest_file.read_bytes()[:100])
    assert manager.get_latest_hash() == made
    again = yaml.safe_load(manager.manifest_file.read_text())
    assert again["experiments"] == whole["experiments"]
    assert again["latest_hash"] == made


def test_two_processes_do_not_write_into_one_experiment(root: Path) -> None:
    manager = CheckpointManagerV2(root)
    model = {"weight": np.zeros(SIZE)}
    with saver(root, 0.1) as process:
        assert committed(process) == 1
        manager.update_experiment_hash(model, {"lr": 0.1})
        with pytest.raises(RunBusy, match="writes into it"):
            manager.save_model_checkpoint(model, 1)
        manager.update_experiment_hash(model, {"lr": 0.2})
        manager.save_model_checkpoint(model, 7)  # into another they do
        committed(process)
        process.kill()
        process.wait()
    manifest_before = manager.list_experiment_hashes()
    assert len(manifest_before) == 2
    manager.update_experiment_hash(model, {"lr": 0.1})
    assert manager.save_model_checkpoint(model, 1).exists()  # the dead hold nothing
    listed = yaml.safe_load(manager.manifest_file.read_text())["experiments"]
    assert sorted(listed) == manifest_before


class Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_run_by_a_load(root: Path, tmp_path: Path) -> None:
    made = fill(root, 1)
    trace = tmp_path / "trace"
    manager = CheckpointManagerV2(root)
    folder = manager.models_dir / made
    (folder / f"{made}_architecture.pkl").write_bytes(pickle.dumps(Attack(trace)))
    (path,) = folder.glob("*_step_000001.pt")
    data = next(folder.glob("*_step_000001.*.pth"))
    path.unlink()
    torch.save({"step": 1, "model_state_dict": Attack(trace)}, path)
    os.replace(path, data)
    with pytest.raises(DamagedFile):
        manager.load_checkpoint(made)
    with pytest.raises(DamagedFile):
        manager.load_latest_checkpoint(new_model())
    with pytest.raises(RefusedPickle):
        manager.load_checkpoint(made, load_model=True, load_weights=False)
    assert not trace.exists()
    manager.load_checkpoint(made, load_model=True, load_weights=False, trust_architecture=True)
    assert trace.exists()  # so that the attack was one


def test_errors_are_raised(root: Path) -> None:
    manager = CheckpointManagerV2(root)
    with pytest.raises(RefNotFound):
        manager.load_latest_checkpoint()
    with pytest.raises(RefNotFound):
        manager.load_config("a" * 24)
    with pytest.raises(RefNotFound):
        manager.get_checkpoint_info("a" * 24)
    with pytest.raises(UnstableValue, match=r"hp\.callback"):
        manager.update_experiment_hash(hp_snapshot={"callback": lambda: None})
    assert manager.current_exp_hash is None


def test_a_flipped_bit_is_found(root: Path) -> None:
    made = fill(root, 1, 2)
    manager = CheckpointManagerV2(root)
    path = manager.models_dir / made / f"{made}_step_000002.pt"
    data = path.read_bytes()
    weight = torch.load(path)["model_state_dict"]["0.weight"].numpy().tobytes()
    flip(path, data.index(weight) + 5)
    with pytest.raises(DigestMismatch):
        manager.load_checkpoint(made, target_step=2)
    with pytest.warns(FellBack, match="step_000002"):
        assert manager.load_latest_checkpoint()["step"] == 1
    flip(manager.models_dir / made / f"{made}_step_000001.pt", data.index(weight) + 5)
    with pytest.raises(DamagedFile):
        manager.load_latest_checkpoint()


def test_old_checkpoints_are_deleted_by_policies(root: Path) -> None:
    made = fill(root, 1, 2)
    run = standfast.Store(root).find_run(made)
    run.retain(standfast.KeepLast(2))
    manager = CheckpointManagerV2(root)
    model = new_model()
    manager.update_experiment_hash(model, HP, DATA)
    for step in (3, 4, 5):
        manager.save_model_checkpoint(model, step)
    assert manager.get_checkpoint_info(made)["steps"] == [4, 5]
    assert len(list((manager.models_dir / made).glob("*_step_*.pt"))) == 2


def test_the_best_is_remembered(root: Path) -> None:
    made = fill(root, 1, 2, 3, best=2)
    assert CheckpointManagerV2(root).get_checkpoint_info(made)["best_step"] == 2
    assert standfast.Store(root).find_run(made).load("best")["step"] == 2


def test_shapes_are_hashed(root: Path) -> None:
    generator = ExperimentHashGenerator()
    narrow = generator.generate_hash(nn.Linear(10, 20))
    wide = generator.generate_hash(nn.Linear(10, 30))
    assert generator.compare_hashes(narrow, wide) == {"model"}


def test_tags_are_hashed(root: Path) -> None:
    manager = CheckpointManagerV2(root)
    first, _, _ = manager.update_experiment_hash(hp_snapshot=HP, dfm_snapshot=DATA)
    tagged = {**DATA, "tags": {**DATA["tags"], "b": ["new"]}}
    second, is_new, changed = manager.update_experiment_hash(dfm_snapshot=tagged)
    assert (is_new, changed) == (True, {"data"})
    assert second[:16] == first[:16]
    shuffled = {"tags": DATA["tags"], "uids": DATA["uids"][::-1], "discarded": ["b"]}
    assert manager.update_experiment_hash(dfm_snapshot=shuffled)[0] == first


def test_the_latest_is_the_last_that_was_committed(root: Path) -> None:
    made = fill(root, 999_999, 1_000_000)  # "1000000" < "999999" as text
    manager = CheckpointManagerV2(root)
    assert manager.load_latest_checkpoint()["step"] == 1_000_000
    assert manager.get_checkpoint_info(made)["steps"] == [999_999, 1_000_000]
    assert manager.load_checkpoint(made, target_step=10**9)["weights"]["step"] == 1_000_000
    fill(root, 5)  # somebody went back
    assert manager.load_latest_checkpoint()["step"] == 5
    assert manager.get_checkpoint_info(made)["latest_step"] == 5
    fill(root, 1, hp={"lr": 2})
    assert manager.get_latest_hash() == identify(hp={"lr": 2}, model=new_model(), data=DATA).hash


def test_the_manifest_is_not_written_at_every_save(root: Path) -> None:
    manager = CheckpointManagerV2(root)
    model = new_model()
    manager.update_experiment_hash(model, HP)
    manager.save_model_checkpoint(model, 1)
    before = manager.manifest_file.stat()
    for step in range(2, 12):
        manager.save_model_checkpoint(model, step)
    after = manager.manifest_file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    made = manager.get_latest_hash()
    assert manager.manifest_file.stat().st_ino != before.st_ino  # a query does
    assert made is not None
    last_used = manager.get_all_hashes()[0]["last_used"]
    manifest = yaml.safe_load(manager.manifest_file.read_text())
    assert manifest["experiments"][made]["last_used"] == last_used
    assert bits(manager.load_checkpoint(made)["weights"]["model_state_dict"]) == bits(
        model.state_dict()
    )

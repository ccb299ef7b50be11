"""Kills, damage, hostile files: what the first implementation did not survive."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import standfast
from standfast import errors
from standfast.experiments import CheckpointManagerV2 as Manager
from tests import ROOT
from tests.experiments.models import HP, fill, new_model
from tests.experiments.saver import SIZE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "experiments"


def flip(path: Path, offset: int) -> None:
    """Turn one bit of a file where it lies, under all its names."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_process_is_kept_out_of_an_experiment_until_the_writer_is_killed(root: Path) -> None:
    manager = Manager(root)
    model = {"weight": np.zeros(SIZE)}
    command = [sys.executable, "-m", "tests.experiments.saver", str(root), "0.1", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as saver:
        assert saver.stdout is not None
        try:
            assert int(saver.stdout.readline()) == 1
            made, _, _ = manager.update_experiment_hash(model, {"lr": 0.1})
            with pytest.raises(errors.RunBusy):
                manager.save_model_checkpoint(model, 1)
            other, _, _ = manager.update_experiment_hash(model, {"lr": 0.2})
            manager.save_model_checkpoint(model, 7)
        finally:
            saver.kill()
        last = [1, *map(int, saver.stdout)][-1]  # printed before the kill came
    listed = yaml.safe_load((root / "checkpoints" / "manifest.yaml").read_text())["experiments"]
    assert listed.keys() <= {made, other}
    assert manager.list_experiment_hashes() == sorted([made, other])
    info = manager.get_checkpoint_info(made)
    assert set(range(1, last + 1)) <= set(info["steps"])
    for each in info["checkpoints"]:
        if each["path"] is None:  # the kill came between the commit and the V3 name
            assert each["step"] == max(info["steps"])
            continue
        saved = standfast.load(each["path"])["model_state_dict.weight"]
        assert saved.tobytes() == np.full(SIZE, float(each["step"])).tobytes()
    manager.update_experiment_hash(model, {"lr": 0.1})
    assert manager.load_latest_checkpoint()["step"] == info["latest_step"]
    assert manager.save_model_checkpoint(model, last + 2).exists()


def test_a_torn_manifest_is_made_again_and_loses_nothing(root: Path) -> None:
    made = fill(root, 1)
    manager = Manager(root)
    whole = yaml.safe_load(manager.manifest_file.read_text())
    manager.manifest_file.write_bytes(manager.manifest_file.read_bytes()[:100])
    assert manager.get_latest_hash() == made
    again = yaml.safe_load(manager.manifest_file.read_text())
    assert (again["experiments"], again["latest_hash"]) == (whole["experiments"], made)


class Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_run_by_a_load(root: Path, tmp_path: Path) -> None:
    made = fill(root, 1)
    trace = tmp_path / "trace"
    manager = Manager(root)
    folder = manager.models_dir / made
    (folder / f"{made}_architecture.pkl").write_bytes(pickle.dumps(Attack(trace)))
    (path,) = folder.glob("*_step_000001.pt")
    data = next(folder.glob("*_step_000001.*.pth"))
    path.unlink()
    torch.save({"step": 1, "model_state_dict": Attack(trace)}, path)
    os.replace(path, data)
    with pytest.raises(errors.DamagedFile):
        manager.load_checkpoint(made)
    with pytest.raises(errors.DamagedFile):
        manager.load_latest_checkpoint(new_model())
    with pytest.raises(errors.RefusedPickle):
        manager.load_checkpoint(made, load_model=True, load_weights=False)
    assert not trace.exists()
    manager.load_checkpoint(made, load_model=True, load_weights=False, trust_architecture=True)
    assert trace.exists()  # so that the attack was one


def test_a_flipped_bit_is_found(root: Path) -> None:
    made = fill(root, 1, 2)
    manager = Manager(root)
    first, second = (manager.models_dir / made / f"{made}_step_00000{step}.pt" for step in (1, 2))
    weight = torch.load(second)["model_state_dict"]["0.weight"].numpy().tobytes()
    offset = second.read_bytes().index(weight) + 5
    flip(second, offset)
    with pytest.raises(errors.DigestMismatch):
        manager.load_checkpoint(made, target_step=2)
    with pytest.warns(errors.FellBack, match="step_000002"):
        assert manager.load_latest_checkpoint()["step"] == 1
    flip(first, offset)
    with pytest.raises(errors.DamagedFile):
        manager.load_latest_checkpoint()


def test_old_checkpoints_are_deleted_by_policies(root: Path) -> None:
    made = fill(root, 1, 2)
    standfast.Store(root).find_run(made).retain(standfast.KeepLast(2))
    fill(root, 3, 4, 5)
    manager = Manager(root)
    assert manager.get_checkpoint_info(made)["steps"] == [4, 5]
    assert len(list((manager.models_dir / made).glob("*_step_*.pt"))) == 2


def test_the_latest_is_the_last_that_was_committed(root: Path) -> None:
    made = fill(root, 999_999, 1_000_000)  # "1000000" < "999999" as text
    manager = Manager(root)
    assert manager.load_latest_checkpoint()["step"] == 1_000_000
    assert manager.get_checkpoint_info(made)["steps"] == [999_999, 1_000_000]
    assert manager.load_checkpoint(made, target_step=10**9)["weights"]["step"] == 1_000_000
    fill(root, 5)  # a user went back
    assert manager.load_latest_checkpoint()["step"] == 5
    assert manager.get_checkpoint_info(made)["latest_step"] == 5
    assert manager.get_latest_hash() == made != fill(root, 1, hp={"lr": 2})
    assert manager.get_latest_hash() != made


def test_the_manifest_is_written_by_queries_and_not_by_every_save(root: Path) -> None:
    manager = Manager(root)
    model = new_model()
    made, _, _ = manager.update_experiment_hash(model, HP)
    manager.save_model_checkpoint(model, 1)
    before = manager.manifest_file.stat()
    for step in range(2, 12):
        manager.save_model_checkpoint(model, step)
    after = manager.manifest_file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    last_used = manager.get_all_hashes()[0]["last_used"]
    assert manager.manifest_file.stat().st_ino != before.st_ino
    manifest = yaml.safe_load(manager.manifest_file.read_text())
    assert manifest["experiments"][made]["last_used"] == last_used

"""Files that Lightning wrote, read back without it."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from standfast.errors import RefusedPickle, UnknownFormat, UnsupportedFile
from standfast.tensorfile.importers import read_folder
from tests.kit.stores import same
from tests.tensorfile.importers.builders import lightning, save_torch, trained

LOGS = "lightning_logs/version_0/checkpoints"


def test_the_parts_of_a_checkpoint_come_back_bit_for_bit(tmp_path):
    written = lightning(500)
    path = save_torch(tmp_path / LOGS / "epoch=3-step=500.ckpt", written)
    folder = read_folder(tmp_path)
    found = folder.found[0]
    assert (folder.kind, found.step, found.epoch, found.paths) == ("lightning", 500, 3, (path,))
    state = found.state()
    parts = "epoch global_step pytorch-lightning_version model loops callbacks optimizer"
    assert list(state) == [*parts.split(), "lr_schedulers", "hparams_name", "hyper_parameters"]
    assert same(state["model"], written["state_dict"])
    assert state["model"]._metadata == written["state_dict"]._metadata
    assert same(state["optimizer"], written["optimizer_states"])
    for key in ("loops", "callbacks", "lr_schedulers", "hyper_parameters"):
        assert same(state[key], written[key]), key
    assert found.left_out == {}
    _, fresh = trained(0)
    fresh.load_state_dict(state["optimizer"][0])
    assert same(fresh.state_dict(), written["optimizer_states"][0])


@pytest.mark.parametrize("given", ["", "lightning_logs", "lightning_logs/version_0", LOGS])
def test_checkpoints_are_found_from_any_level(tmp_path, given):
    for step in (500, 1000):
        save_torch(tmp_path / LOGS / f"epoch=3-step={step}.ckpt", lightning(step))
    assert [found.step for found in read_folder(tmp_path / given).found] == [500, 1000]


def test_files_further_down_are_not_looked_for(tmp_path):
    save_torch(tmp_path / "a/b/c/d/epoch=3-step=500.ckpt", lightning(500))
    with pytest.raises(UnknownFormat):
        read_folder(tmp_path)
    assert len(read_folder(tmp_path / "a").found) == 1


def test_a_folder_is_looked_into_once_and_one_that_cannot_be_is_ignored(tmp_path, seams):
    save_torch(tmp_path / "run_1" / "a.ckpt", lightning(500))
    (tmp_path / "latest-run").symlink_to("run_1")
    (tmp_path / "locked").mkdir()

    def refuse(scandir: Any, path: Path) -> Any:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    seams.system(os, scandir=refuse)
    folder = read_folder(tmp_path)
    assert len(folder.found) == 1
    assert [path.name for path, _ in folder.ignored] == ["locked"]


def test_metrics_are_the_scores_of_the_callback(tmp_path):
    written = lightning(500)
    (callback,) = written["callbacks"].values()
    nan = torch.tensor(float("nan"))
    for changes, metrics in (
        ({}, {"val_loss": 0.5, "best_val_loss": 0.25}),
        ({"current_score": 0.75, "best_model_score": None}, {"val_loss": 0.75}),
        ({"current_score": nan, "best_model_score": torch.ones(2)}, {}),
        ({"monitor": None, "current_score": 0.5}, {}),
    ):
        callback |= changes
        save_torch(tmp_path / "a.ckpt", written)
        assert read_folder(tmp_path).found[0].metrics == metrics


def test_the_best_is_the_one_that_the_newest_names(tmp_path):
    for step in (500, 1000):
        save_torch(tmp_path / f"epoch=3-step={step}.ckpt", lightning(step))
    assert [found.best for found in read_folder(tmp_path).found] == [True, False]


def test_last_is_taken_once_where_it_is_the_same_step(tmp_path):
    save_torch(tmp_path / "epoch=3-step=500.ckpt", lightning(500))
    save_torch(tmp_path / "last.ckpt", lightning(500))
    folder = read_folder(tmp_path)
    assert [found.paths[0].name for found in folder.found] == ["epoch=3-step=500.ckpt"]
    ((path, reason),) = folder.ignored
    assert path.name == "last.ckpt"
    assert "500" in reason
    assert "epoch=3-step=500.ckpt" in reason
    save_torch(tmp_path / "last.ckpt", lightning(600))
    assert [found.step for found in read_folder(tmp_path).found] == [500, 600]


def test_two_files_of_one_step_are_one_if_their_tensors_are_the_same(tmp_path):
    written = lightning(500)
    save_torch(tmp_path / "epoch=3-step=500.ckpt", written)
    (callback,) = written["callbacks"].values()
    callback["current_score"] = torch.tensor(7.0)
    save_torch(tmp_path / "epoch=3-val_loss=0.50.ckpt", written)
    folder = read_folder(tmp_path)
    assert len(folder.found) == 1
    written["state_dict"]["0.bias"] += 1
    save_torch(tmp_path / "epoch=3-val_loss=0.50.ckpt", written)
    with pytest.raises(UnsupportedFile):
        read_folder(tmp_path)


def test_objects_are_left_out_and_listed(tmp_path):
    written = lightning(500, hyper_parameters={"net": torch.nn.Linear(1, 1), "width": 3})
    written["lr_schedulers"] = [torch.nn.Linear(1, 1), {"last_epoch": 3}]
    written["state_dict"]._metadata["odd"] = torch.nn.Linear(1, 1)
    save_torch(tmp_path / "a.ckpt", written)
    found = read_folder(tmp_path).found[0]
    assert found.left_out == {}
    state = found.state()
    assert state["hyper_parameters"] == {"width": 3}
    assert state["lr_schedulers"] == [None, {"last_epoch": 3}]
    assert "odd" not in state["model"]._metadata
    name = "torch.nn.modules.linear.Linear"
    assert found.left_out == {
        "model._metadata.odd": name,
        "lr_schedulers.0": name,
        "hyper_parameters.net": name,
    }
    with pytest.raises(RefusedPickle):
        read_folder(tmp_path, tensors_only=False)


def test_what_is_not_of_lightning_is_ignored(tmp_path):
    save_torch(tmp_path / "a.ckpt", lightning(500))
    save_torch(tmp_path / "b.ckpt", {"weights": torch.ones(2)})
    nameless = lightning(500)
    del nameless["global_step"]
    save_torch(tmp_path / "e.ckpt", nameless)
    (tmp_path / "c.ckpt").mkdir()
    (tmp_path / "d.ckpt").write_bytes(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + bytes(99))
    ignored = {path.name for path, _ in read_folder(tmp_path).ignored}
    assert ignored == {"b.ckpt", "c.ckpt", "d.ckpt", "e.ckpt"}

"""Folders of files as people write them, and what all kinds of folders have in common."""

import math
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast import errors
from standfast.tensorfile.importers import Folder, read_folder
from standfast.tensors import frameworks
from tests import GOLDEN
from tests.kit.stores import same
from tests.tensorfile.importers.builders import save_torch, trained

WEIGHTS = {"weight": torch.tensor([math.nan, -0.0, 1e-40]), "bias": torch.ones(2).bfloat16()}


def _steps(folder: Folder) -> list[int]:
    return [found.step for found in folder.found]


def _first(path: Path) -> dict[str, Any]:
    return read_folder(path).found[0].state()


def test_the_keys_of_a_checkpoint_become_parts(tmp_path):
    model, optimizer = trained()
    written = {
        "epoch": 7,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "lr_scheduler_state_dict": {"last_epoch": 3},
        "loss": 0.25,
        "args": {"depth": 3},
    }
    save_torch(tmp_path / "checkpoint_300.pt", written)
    folder = read_folder(tmp_path)
    found = folder.found[0]
    assert (folder.kind, found.step, found.epoch) == ("torch", 300, 7)
    assert found.metrics == {"loss": 0.25}
    state = found.state()
    assert list(state) == ["epoch", "model", "optimizer", "lr_scheduler", "loss", "args"]
    assert same(list(state.values()), list(written.values()))
    assert state["model"]._metadata == model.state_dict()._metadata
    _, fresh = trained(0)
    fresh.load_state_dict(state["optimizer"])
    assert same(fresh.state_dict(), optimizer.state_dict())


def test_what_is_no_dict_of_parts(tmp_path):
    named = {"model": "resnet", "state_dict": WEIGHTS, "step": 1}
    extra = trained()[0].state_dict()
    extra["_extra_state"] = {"scale": 2.0}
    bare = torch.arange(3)
    for written, state in (
        (named, named),  # a part keeps its key where its name is taken
        (WEIGHTS, {"model": WEIGHTS}),  # a state dict alone is the model
        (extra, {"model": extra}),
        (bare, {"state": bare}),
        ([bare, 1], {"state": [bare, 1]}),
    ):
        save_torch(tmp_path / "net_5.pth", written)
        assert same(_first(tmp_path), state)


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "tenzor", "oxck", "pt"])
def test_every_format_is_read_with_its_metadata(tmp_path, suffix):
    weights = {"w": np.array([1.5, math.inf, -0.0], np.float32)}
    standfast.save(tmp_path / f"any.{suffix}", weights, {"step": 100, "loss": 0.5})
    found = read_folder(tmp_path).found[0]
    assert (found.step, found.metrics) == (100, {"loss": 0.5})
    state = found.state()
    assert same(state["model"], {"w": torch.tensor([1.5, math.inf, -0.0])})
    assert state["metadata"] == {"step": 100, "loss": 0.5}


def test_who_wrote_a_safetensors_file_is_no_metadata(tmp_path):
    standfast.save(tmp_path / "net_1.safetensors", WEIGHTS, {"format": "pt"})
    assert same(_first(tmp_path), {"model": WEIGHTS})


AT_100 = [{"step": 100, "global_step": 5, "epoch": 3}, {"global_step": 100, "iter": 5}]
AT_100 += [{"iteration": torch.tensor(100)}, {"iter": np.int64(100)}, {"iter_num": 100.0}]
NAMES = "model_v2_100 step=100-epoch=3 epoch=3-step=100 step_100_loss_0.25 net_100_loss_0.25"


@pytest.mark.parametrize(
    ("name", "content", "step"),
    [
        *(("a_7", content, 100) for content in AT_100),
        *(("a_7", {"step": step, "epoch": 3}, 7) for step in (-1, True, torch.ones(2))),
        *(("a", {"epoch": 3}, 3), ("a", {"other": 3}, 0)),
        *((name, {}, 100) for name in NAMES.split()),
        *((name, {}, 0) for name in ("a_1234567890123456789012", "a_٣")),
    ],
)
def test_the_step_is_in_the_content_or_the_name(tmp_path, name, content, step):
    save_torch(tmp_path / f"{name}.pt", {"model": WEIGHTS} | content)
    assert _steps(read_folder(tmp_path)) == [step]


def test_files_of_one_number_are_parts_of_one_checkpoint(tmp_path):
    model, optimizer = trained()
    for number in (100, 20):
        save_torch(tmp_path / f"model_{number}.pt", model.state_dict())
        save_torch(tmp_path / f"optimizer_step_{number}.pt", optimizer.state_dict())
    folder = read_folder(tmp_path)
    assert _steps(folder) == [20, 100]
    expected = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    assert same(folder.found[1].state(), expected)
    assert len(folder.found[1].paths) == 2


def test_parts_share_the_step_that_one_of_them_says(tmp_path):
    save_torch(tmp_path / "model_3.pt", {"w": WEIGHTS, "step": 1500})
    save_torch(tmp_path / "optimizer_3.pt", {"param_groups": []})
    save_torch(tmp_path / "optimizer_4.pt", {"param_groups": []})
    folder = read_folder(tmp_path)
    assert _steps(folder) == [4, 1500]
    assert list(folder.found[1].state()) == ["model", "optimizer"]


def test_parts_without_any_number_are_of_step_0(tmp_path):
    save_torch(tmp_path / "model.pt", WEIGHTS)
    save_torch(tmp_path / "optimizer.pt", {"param_groups": []})
    folder = read_folder(tmp_path)
    assert _steps(folder) == [0]
    assert same(folder.found[0].state(), {"model": WEIGHTS, "optimizer": {"param_groups": []}})
    save_torch(tmp_path / "resnet.pt", WEIGHTS)
    with pytest.raises(errors.UnsupportedFile, match="'step'"):
        read_folder(tmp_path)


def test_a_file_without_a_step_is_ignored_beside_others(tmp_path):
    save_torch(tmp_path / "net_5.pt", WEIGHTS)
    save_torch(tmp_path / "pretrained.pt", WEIGHTS)
    folder = read_folder(tmp_path)
    assert _steps(folder) == [5]
    assert [path.name for path, _ in folder.ignored] == ["pretrained.pt"]


def test_two_different_files_of_one_step_are_refused(tmp_path):
    save_torch(tmp_path / "a.pt", {"step": 5, "model": WEIGHTS})
    save_torch(tmp_path / "b.pt", {"step": 5, "model": {"weight": torch.zeros(3)}})
    with pytest.raises(errors.UnsupportedFile, match=r"a\.pt.*b\.pt.*5"):
        read_folder(tmp_path)
    save_torch(tmp_path / "b.pt", {"step": 5, "model": WEIGHTS})
    folder = read_folder(tmp_path)
    assert _steps(folder) == [5]
    assert len(folder.ignored) == 1
    # Names that differ in numbers alone are no parts.
    save_torch(tmp_path / "other" / "epoch=3-step=5.pt", {"w": torch.zeros(1)})
    save_torch(tmp_path / "other" / "epoch=4-step=5.pt", {"w": torch.ones(1)})
    with pytest.raises(errors.UnsupportedFile):
        read_folder(tmp_path / "other")


def test_best_and_last_are_the_checkpoints_of_their_steps(tmp_path):
    for step in (1, 2, 3):
        save_torch(tmp_path / f"step_{step}.pt", {"step": step, "model": WEIGHTS})
    save_torch(tmp_path / "best.pt", {"step": 2, "model": WEIGHTS})
    save_torch(tmp_path / "model_last.pt", {"step": 3, "model": {"other": torch.ones(1)}})
    folder = read_folder(tmp_path)
    found = [(each.step, each.best, each.paths[0].name) for each in folder.found]
    assert found == [(1, False, "step_1.pt"), (2, True, "step_2.pt"), (3, False, "step_3.pt")]
    assert sorted(path.name for path, _ in folder.ignored) == ["best.pt", "model_last.pt"]


def test_values_of_other_types_become_plain_ones(tmp_path):
    becomes = {
        "size": (torch.Size([2, 3]), (2, 3)),
        "dtype": (torch.float32, "torch.float32"),
        "device": (torch.device("cuda", 1), "cuda:1"),
        "set": ({3, 1, 2}, [1, 2, 3]),
        "mixed": (frozenset({"b", 1}), ["b", 1]),
        "buffer": (bytearray(b"ab"), b"ab"),
        "numpy dtype": (np.dtype("int16"), "int16"),
        "text": (np.str_("letters"), "letters"),
        "texts": (np.array(["one", "two"]), ["one", "two"]),
    }
    stays = {
        "step": 1,
        "array": np.arange(3, dtype=np.int16),
        "scalar": np.float32(0.1),
        "ordered": OrderedDict(a=(1, [2.5, None])),
        "keys": {1: "int", 2.5: "float", None: "none", True and "text": "text"},
        "huge": 1 << 200,
        "complex": 1 + 2j,
        "bytes": b"\0\xff",
    }
    save_torch(tmp_path / "a.pt", stays | {key: before for key, (before, _) in becomes.items()})
    found = read_folder(tmp_path).found[0]
    state = found.state()
    assert same(state, stays | {key: after for key, (_, after) in becomes.items()})
    assert type(state["scalar"]) is np.float32
    assert found.left_out == {}


def test_keys_that_a_state_cannot_have_are_left_out(tmp_path):
    save_torch(tmp_path / "a.pt", {"step": 1, "odd": {(1, 2): 3, "plain": 4, b"b": 5}})
    found = read_folder(tmp_path).found[0]
    assert found.state() == {"step": 1, "odd": {"plain": 4}}
    assert sorted(found.left_out) == ["odd.(1, 2)", "odd.b'b'"]
    found.state()
    assert len(found.left_out) == 2


def test_a_tree_hidden_beside_the_tree_is_bounded(tmp_path):
    model = trained()[0].state_dict()
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"x": deep}
    model._metadata = deep
    save_torch(tmp_path / "net_1.pt", model)
    with pytest.raises(errors.LimitExceeded, match=r"net_1\.pt"):
        _first(tmp_path)


def test_tied_and_strided_tensors_keep_their_values(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    written = {"a": base, "b": base, "turned": base.t(), "part": base[1:, ::2]}
    save_torch(tmp_path / "net_1.pt", written)
    model = _first(tmp_path)["model"]
    assert same(model, written)
    assert model["a"].data_ptr() == model["b"].data_ptr()


def test_without_torch_tensors_are_arrays(tmp_path, monkeypatch):
    monkeypatch.delitem(frameworks._adapters, "torch")
    save_torch(tmp_path / "net_1.pt", {"a": torch.arange(3)})
    assert same(_first(tmp_path)["model"], {"a": np.arange(3)})


def test_nothing_that_looks_like_a_checkpoint_is_said_so(tmp_path):
    save_torch(tmp_path / "module" / "net_1.pt", torch.nn.Linear(1, 1))
    with pytest.raises(errors.UnknownFormat, match=r"net_1\.pt.*Linear"):
        read_folder(tmp_path / "module")
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "run_step1.sunc").write_bytes((GOLDEN / "sunc_scalar_2d.sunc").read_bytes())
    with pytest.raises(errors.UnknownFormat):
        read_folder(tmp_path)
    with pytest.raises(errors.MissingFile):
        read_folder(tmp_path / "gone")
    with pytest.raises(errors.UnreadableFile):
        read_folder(tmp_path / "notes.txt")
    with pytest.raises(errors.UnreadableFile):
        read_folder("a\0b")


def test_links_are_followed_and_special_files_are_not_read(tmp_path):
    target = save_torch(tmp_path / "elsewhere" / "net.pt", WEIGHTS)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "net_5.pt").symlink_to(target)
    os.mkfifo(folder / "net_6.pt")
    (folder / "net_7.pt").symlink_to("nowhere")
    (folder / "net_8.pt").symlink_to("net_8.pt")
    read = read_folder(folder)
    assert same(read.found[0].state(), {"model": WEIGHTS})
    assert _steps(read) == [5]
    assert [path.name for path, _ in read.ignored] == ["net_6.pt", "net_7.pt", "net_8.pt"]


def test_a_damaged_file_raises_with_its_path(tmp_path):
    path = save_torch(tmp_path / "net_5.pt", WEIGHTS)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(errors.DamagedFile, match=r"net_5\.pt:"):
        read_folder(tmp_path)

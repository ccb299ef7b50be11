"""The reader of torch files against damaged, hostile and merely odd files, opened from a disk."""

from __future__ import annotations

import argparse
import os
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast.errors import NotVerified, RefusedPickle
from tests.formats.torch.hostile_pickles import dict_of, integer, pickle_of, tensor, text
from tests.formats.torch.malformed import ONE_TENSOR, SIX, file_of, saved, sealed
from tests.fuzz.limits import memory_limit
from tests.kit.cli import call


def test_what_the_cases_are_made_of_is_sound(tmp_path: Path) -> None:
    for name, data in (("plain", file_of()), ("sealed", sealed()), ("saved", saved())):
        (tmp_path / "file.pt").write_bytes(data)
        with standfast.open(tmp_path / "file.pt") as file:
            assert file["w"].tobytes() == SIX, name
            assert file.has_digests == (name != "plain")
            assert file.metadata == ({} if name == "plain" else {"step": 3})


# Legal, and odd


@pytest.mark.parametrize("mapped", [True, False])
def test_a_big_endian_file_is_loaded_with_its_values(mapped: bool, tmp_path: Path) -> None:
    swapped = np.arange(6, dtype=">f4").tobytes()
    strided = tensor(size=b"K\x03K\x02\x86", steps=b"K\x01K\x03\x86")
    tree = pickle_of(dict_of(text("w"), tensor(), text("t"), strided))
    changes = {"data.pkl": tree, "byteorder": b"big", "data/0": swapped}
    (tmp_path / "file.pt").write_bytes(file_of(changes))
    with standfast.open(tmp_path / "file.pt", mapped=mapped) as file:
        assert file["w"].dtype == np.dtype("float32")
        assert file["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    theirs = torch.load(tmp_path / "file.pt", weights_only=True)
    assert theirs["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("order", [b"big", b"little"])
def test_a_tensor_that_repeats_its_bytes_takes_no_more_than_these(
    order: bytes, tmp_path: Path
) -> None:
    vast = tensor(size=integer(1 << 15) + integer(1 << 16) + b"\x86", steps=b"K\x00K\x00\x86")
    changes = {"data.pkl": pickle_of(dict_of(text("w"), vast)), "byteorder": order}
    (tmp_path / "file.pt").write_bytes(file_of(changes))
    with memory_limit(1 << 28), standfast.open(tmp_path / "file.pt") as file:
        assert file["w"].shape == (1 << 15, 1 << 16)
        assert file["w"][5, 7] == 0
        assert file["w"].flags.aligned


def test_a_file_without_byteorder_and_version_is_little_endian(tmp_path: Path) -> None:
    (tmp_path / "file.pt").write_bytes(file_of({"byteorder": None, "version": None}))
    with standfast.open(tmp_path / "file.pt") as file:
        assert file["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


# Attacks, as whole files


class Attack:
    """What pickle would turn into a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


ATTACKS = {
    "os.system": Attack(os.system, "touch ran-by-a-pickle"),
    "eval": Attack(eval, "open('ran-by-a-pickle', 'w')"),
    "exec": Attack(exec, "open('ran-by-a-pickle', 'w')"),
    "open": Attack(open, "ran-by-a-pickle", "w"),
}


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_that_a_real_file_asks_for_is_run(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file.pt"
    weight = torch.arange(6.0).reshape(2, 3)
    torch.save({"weight": weight, "attack": ATTACKS[attack], "step": 3}, path)
    verbs = (
        lambda: standfast.open(path),
        lambda: standfast.load(path),
        lambda: standfast.verify(path),
        lambda: standfast.convert(path, tmp_path / "new.safetensors", cast=True),
        lambda: standfast.diff(path, path),
        lambda: torch.load(path, weights_only=True),
    )
    for verb in verbs[:-1]:
        with pytest.raises(RefusedPickle, match=r"file\.pt: .* tensors_only=True"):
            verb()
    with pytest.raises(Exception, match="Weights only load failed"):
        verbs[-1]()
    assert call("show", path).code == 2
    with standfast.open(path, tensors_only=True) as file:
        assert list(file) == ["weight"]
        assert file.metadata == {"step": 3}
        assert np.array_equal(file["weight"], weight.numpy())
        assert type(file.tree()["attack"]).__name__ == "Stub"
    converted = tmp_path / "new.safetensors"
    standfast.convert(path, converted, tensors_only=True)
    assert not standfast.diff(path, converted, tensors_only=True)
    assert call("show", path, "--tensors-only").code == 0
    assert {entry.name for entry in tmp_path.iterdir()} == {"file.pt", "new.safetensors"}


class EarlyStopping:
    """The class of a callback, which no reader here knows."""

    def __init__(self) -> None:
        self.best = torch.tensor(0.25)
        self.patience = 3


def lightning_checkpoint() -> dict[str, Any]:
    """What a trainer of Lightning's kind saves."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "epoch": 4,
        "global_step": np.int64(1000),
        "loss": np.float32(0.5),
        "state_dict": OrderedDict(model.state_dict()),
        "optimizer_states": [optimizer.state_dict()],
        "hyper_parameters": argparse.Namespace(lr=0.1, layers=[3, 2]),
        "callbacks": {EarlyStopping: {"best": torch.ones(2)}, "last": EarlyStopping()},
    }


def tensors_in(tree: Any, path: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a tree of dicts and lists, by their dotted paths."""
    if isinstance(tree, torch.Tensor):
        return {path: tree}
    members: Any = tree.items() if isinstance(tree, dict) else ()
    if isinstance(tree, list | tuple):
        members = enumerate(tree)
    found: dict[str, torch.Tensor] = {}
    for key, member in members:
        found |= tensors_in(member, f"{path}.{key}" if path else str(key))
    return found


def test_a_checkpoint_with_objects_opens_for_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "epoch=4.ckpt"
    torch.save(lightning_checkpoint(), path)
    with pytest.raises(RefusedPickle):
        standfast.open(path)
    theirs = torch.load(path, weights_only=False)
    expected = tensors_in({key: theirs[key] for key in ("state_dict", "optimizer_states")})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotVerified)
        loaded = standfast.load(path, framework="torch", tensors_only=True)
    assert len(expected) == 4 + 3 * 4
    for name, each in expected.items():
        assert loaded[name].dtype == each.dtype
        assert torch.equal(loaded[name], each)
    with standfast.open(path, tensors_only=True) as file:
        assert file.metadata["epoch"] == 4
        assert file.metadata["global_step"] == 1000
        assert file.metadata["loss"] == np.float32(0.5)
        assert file.metadata["optimizer_states.0.param_groups.0.lr"] == 0.001
        assert not any("hyper_parameters" in name for name in (*file, *file.metadata))
        # The state of the callback, under a key that only its class could be.
        assert len(set(file) - set(expected)) == 1


def test_the_pickle_of_the_cases_is_one_that_torch_reads(tmp_path: Path) -> None:
    (tmp_path / "file.pt").write_bytes(file_of({"data.pkl": ONE_TENSOR}))
    theirs = torch.load(tmp_path / "file.pt", weights_only=True)
    assert theirs["w"].numpy().tobytes() == SIX

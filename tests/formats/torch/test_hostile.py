"""Attacks on the reader of torch's files: nothing runs, all is refused, and tensors can be had."""

import argparse
import os
import subprocess
import sys
import warnings
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast.errors import NotVerified, RefusedPickle, TruncatedFile
from standfast.formats.torch.pickle import StoredTensor, Stub, read_pickle
from tests import ROOT
from tests.formats.torch.builders import (
    SIX,
    SYSTEM,
    call,
    dict_of,
    file_of,
    integer,
    list_of,
    name,
    pickle_of,
    saved,
    sealed,
    tensor,
    text,
)
from tests.formats.torch.test_pickle import pickle_in
from tests.fuzz.limits import memory_limit
from tests.kit import cli

AUDITED = """
import sys
from standfast.errors import StandfastError
from standfast.formats.torch.pickle import read_pickle
from tests.formats.torch.builders import pickle_of
from tests.formats.torch.malformed import CODE
import encodings.unicode_escape

seen, cases = [], list(map(pickle_of, CODE.values()))
modules = set(sys.modules)
sys.addaudithook(lambda event, arguments: seen.append(event))
for data in cases:
    for tensors_only in (False, True):
        try:
            read_pickle(data, tensors_only=tensors_only)
        except StandfastError:
            pass
events = set(seen) - {"builtins.id"}
sys.exit(f"{events} {set(sys.modules) - modules}" if events or set(sys.modules) - modules else 0)
"""


@pytest.mark.guarantee("G11")
def test_python_itself_sees_no_import_and_no_call():
    """Imports, eval, open, os.system and all of subprocess raise an event of Python's audit."""
    command = [sys.executable, "-c", AUDITED]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_stub_is_all_that_is_left_of_an_attack():
    tree = dict_of(text("weight"), tensor(), text("x"), SYSTEM, text("y"), list_of(SYSTEM))
    assert read_pickle(pickle_of(tree), tensors_only=True) == {
        "weight": StoredTensor("0", 24, "float32", 0, (2, 3), (12, 4)),
        "x": Stub("os.system"),
        "y": [Stub("os.system")],
    }


def test_what_is_put_into_a_stub_goes_with_it():
    key = text("k")
    for opcodes in (b"K\x01a", b"(K\x01K\x02e", key + b"Ns", b"(" + key + b"Nu", b"}b", b"(N\x90"):
        data = pickle_of(name("some.Thing") + b")\x81", opcodes)
        assert read_pickle(data, tensors_only=True) == Stub("some.Thing")


def test_a_call_with_a_stub_among_its_arguments_is_left_out():
    thing = name("some.thing")
    for function, arguments in {
        "torch.Size": thing,
        "builtins.complex": thing + thing,
        "torch._utils._rebuild_parameter": thing + b"\x89N",
        "_codecs.encode": thing + text("latin1"),
    }.items():
        data = pickle_of(call(function, arguments))
        assert read_pickle(data, tensors_only=True) == Stub(function)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_cut_anywhere_is_truncated(protocol):
    layer = torch.nn.Linear(2, 2)
    everything = {
        "model": layer.state_dict(),
        "parameter": layer.weight,
        "new": torch.ones(2, dtype=torch.uint16),
        "values": [1, -1, 300, 70_000, 2**70, 1.5, None, True, b"ab", "ä", (1, 2, 3), {1: 2}],
        "sets": [{1, 2}, frozenset([3]), bytearray(b"ab"), 1 + 2j, torch.Size([1])],
        "numpy": [np.arange(3), np.float64(1.5), np.str_("ab")],
        "device": torch.device("cuda:1"),
    }
    data = pickle_in(everything, protocol)
    for end in range(len(data)):
        with pytest.raises(TruncatedFile):
            read_pickle(data[:end])


def test_what_the_cases_are_made_of_is_sound(tmp_path):
    path = tmp_path / "file.pt"
    for kind, data in {"plain": file_of(), "sealed": sealed(), "saved": saved()}.items():
        path.write_bytes(data)
        with standfast.open(path) as file:
            assert file["w"].tobytes() == SIX, kind
            assert file.has_digests == (kind != "plain")
            assert file.metadata == ({} if kind == "plain" else {"step": 3})
        assert torch.load(path, weights_only=True)["w"].numpy().tobytes() == SIX


@pytest.mark.parametrize("mapped", [True, False])
def test_a_big_endian_file_is_loaded_with_its_values(mapped, tmp_path):
    path, swapped = tmp_path / "file.pt", np.arange(6, dtype=">f4").tobytes()
    strided = tensor(size=b"K\x03K\x02\x86", steps=b"K\x01K\x03\x86")
    tree = pickle_of(dict_of(text("w"), tensor(), text("t"), strided))
    path.write_bytes(file_of(pickle=tree, byteorder=b"big", data=swapped))
    with standfast.open(path, mapped=mapped) as file:
        assert file["w"].dtype == np.dtype("float32")
        assert file["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert torch.load(path, weights_only=True)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("order", [b"big", b"little"])
def test_a_tensor_that_repeats_its_bytes_takes_no_more_than_these(order, tmp_path):
    vast = tensor(size=integer(1 << 15) + integer(1 << 16) + b"\x86", steps=b"K\x00K\x00\x86")
    path = tmp_path / "file.pt"
    path.write_bytes(file_of(pickle=pickle_of(dict_of(text("w"), vast)), byteorder=order))
    with memory_limit(1 << 28), standfast.open(path) as file:
        assert file["w"].shape == (1 << 15, 1 << 16)
        assert file["w"][5, 7] == 0
        assert file["w"].flags.aligned


def test_a_file_without_byteorder_and_version_is_little_endian(tmp_path):
    (tmp_path / "file.pt").write_bytes(file_of(byteorder=None, version=None))
    with standfast.open(tmp_path / "file.pt") as file:
        assert file["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


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
def test_nothing_that_a_real_file_asks_for_is_run(attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, converted = tmp_path / "file.pt", tmp_path / "new.safetensors"
    weight = torch.arange(6.0).reshape(2, 3)
    torch.save({"weight": weight, "attack": ATTACKS[attack], "step": 3}, path)
    for verb in (
        lambda: standfast.open(path),
        lambda: standfast.load(path),
        lambda: standfast.verify(path),
        lambda: standfast.convert(path, converted, cast=True),
        lambda: standfast.diff(path, path),
    ):
        with pytest.raises(RefusedPickle, match=r"file\.pt.*tensors_only=True"):
            verb()
    assert cli.call("show", path).code == 2
    with standfast.open(path, tensors_only=True) as file:
        assert list(file) == ["weight"]
        assert file.metadata == {"step": 3}
        assert np.array_equal(file["weight"], weight.numpy())
        assert type(file.tree()["attack"]).__name__ == "Stub"
    standfast.convert(path, converted, tensors_only=True)
    assert not standfast.diff(path, converted, tensors_only=True)
    assert cli.call("show", path, "--tensors-only").code == 0
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


def test_a_checkpoint_with_objects_opens_for_its_tensors(tmp_path):
    path = tmp_path / "epoch=4.ckpt"
    written = lightning_checkpoint()
    torch.save(written, path)
    with pytest.raises(RefusedPickle):
        standfast.open(path)
    expected = {f"state_dict.{key}": each for key, each in written["state_dict"].items()}
    for index, slots in written["optimizer_states"][0]["state"].items():
        expected |= {f"optimizer_states.0.state.{index}.{k}": each for k, each in slots.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotVerified)
        loaded = standfast.load(path, framework="torch", tensors_only=True)
    assert len(expected) == 4 + 3 * 4
    for each, value in expected.items():
        assert loaded[each].dtype == value.dtype
        assert torch.equal(loaded[each], value)
    with standfast.open(path, tensors_only=True) as file:
        facts = [file.metadata[key] for key in ("epoch", "global_step", "loss")]
        assert facts == [4, 1000, np.float32(0.5)]
        assert file.metadata["optimizer_states.0.param_groups.0.lr"] == 0.001
        assert not any("hyper_parameters" in each for each in (*file, *file.metadata))
        # The state of the callback, under a key that only its class could be.
        assert len(set(file) - set(expected)) == 1

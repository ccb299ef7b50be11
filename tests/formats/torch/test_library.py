"""torch files against torch itself: what it writes opens here, what we write opens there."""

import io
import zipfile
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast.errors import DuplicateKey, UnsupportedFile
from standfast.formats.torch import file as own_format
from tests.kit.stores import same

DTYPES = sorted(own_format.DTYPES - {"float4_e2m1fn"})


def tensor_of(dtype: str, *shape: int) -> torch.Tensor:
    kind = getattr(torch, dtype)
    count = int(np.prod(shape))
    if kind == torch.bool:
        return (torch.arange(count) % 2 == 1).reshape(shape)
    data = torch.from_numpy(
        np.random.default_rng(7).integers(0, 120, count * kind.itemsize, np.uint8)
    )
    return data.view(kind).reshape(shape) if count else torch.empty(shape, dtype=kind)


def tensors_of(dtype: str) -> dict[str, torch.Tensor]:
    return {"w": tensor_of(dtype, 3, 4), "s": tensor_of(dtype, 1)[0], "e": tensor_of(dtype, 0, 2)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_both_ways(dtype, tmp_path):
    tensors = tensors_of(dtype)
    theirs = tensors | {"t": tensors["w"].T}
    torch.save(theirs, tmp_path / "theirs.pt")
    loaded = standfast.load(tmp_path / "theirs.pt", framework="torch", verify=False)
    assert same(list(loaded.items()), list(theirs.items()))
    for extras in (True, False):
        path = tmp_path / f"ours {extras}.pt"
        standfast.save(path, tensors, {"step": 1} if extras else None, extras=extras)
        for mmap in (False, True):
            loaded = torch.load(path, weights_only=True, mmap=mmap)
            assert type(loaded) is dict
            assert same(loaded, tensors)


def test_float4_goes_both_ways(tmp_path):
    packed = torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(torch.float4_e2m1fn_x2)
    torch.save({"w": packed}, tmp_path / "theirs.pt")
    with standfast.open(tmp_path / "theirs.pt") as file:
        assert file.spec("w").shape == (3, 8)
    ours = standfast.load(tmp_path / "theirs.pt", framework="torch", verify=False)["w"]
    standfast.save(tmp_path / "ours.pt", {"w": ours})
    back = torch.load(tmp_path / "ours.pt", weights_only=True)["w"]
    assert back.dtype == packed.dtype
    assert torch.equal(back.view(torch.uint8), packed.view(torch.uint8))


def test_our_entries_have_right_checksums_and_an_unaltered_zip(tmp_path):
    standfast.save(tmp_path / "ours.pt", {"w": torch.ones(3)}, {"a": 1})
    with zipfile.ZipFile(tmp_path / "ours.pt") as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == "archive/data.pkl"
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())


def training_state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(5, 4)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def test_a_training_state_is_seen_flat_and_as_a_tree(tmp_path):
    state = training_state()
    torch.save(state, tmp_path / "state.ckpt")
    with standfast.open(tmp_path / "state.ckpt") as file:
        assert np.array_equal(file["model.0.weight"], state["model"]["0.weight"])
        assert "optimizer.state.0.exp_avg" in file
        assert file.metadata["epoch"] == 3
        assert file.metadata["optimizer.param_groups.0.lr"] == 1e-3
        assert file.metadata["optimizer.param_groups.0.betas.1"] == 0.999
        tree = file.tree()
    assert isinstance(tree["model"], OrderedDict)
    assert tree["model"]._metadata == state["model"]._metadata
    assert tree["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    slots, expected = tree["optimizer"]["state"], state["optimizer"]["state"]
    assert list(slots) == list(expected)
    assert np.array_equal(slots[1]["step"], expected[1]["step"])


def test_tied_tensors_share_memory_and_views_keep_their_strides(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    tree = {"base": base, "tied": base, "part": base[1:3, ::2], "column": base[:, 2].expand(3, 4)}
    torch.save(tree, tmp_path / "views.pt")
    with standfast.open(tmp_path / "views.pt") as file:
        for name, tensor in tree.items():
            assert np.array_equal(file[name], tensor.numpy())
        assert np.shares_memory(file["base"], file["tied"])
        assert np.shares_memory(file["base"], file["part"])
        assert np.array_equal(file.slice("part")[0], tree["part"][0].numpy())
    standfast.convert(tmp_path / "views.pt", tmp_path / "plain.safetensors")
    loaded = standfast.load(tmp_path / "plain.safetensors", framework="torch")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tree.items())


def test_trees_of_other_kinds(tmp_path):
    path = tmp_path / "tree.pt"
    torch.save(torch.arange(3), path)
    with standfast.open(path) as file:
        assert list(file) == ["tensor"]
        assert np.array_equal(file.tree(), [0, 1, 2])
    for tree in (None, {}, [], 3, "text"):
        torch.save(tree, path)
        with standfast.open(path) as file:
            assert len(file) == 0
            assert file.tree() == tree
    torch.save([torch.zeros(1), (torch.ones(1), "x")], path)
    with standfast.open(path) as file:
        assert list(file) == ["0", "1.0"]
        assert file.metadata == {"1.1": "x"}
        assert file.tree()[1][1] == "x"


def test_two_leaves_of_one_path_and_files_before_1_6_are_refused(tmp_path):
    path = tmp_path / "file.pt"
    torch.save({"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1)}, path)
    with pytest.raises(DuplicateKey, match=r"'a\.b'"):
        standfast.open(path)
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(UnsupportedFile):
        standfast.open(path)


def test_a_torch_file_without_a_known_suffix_and_as_a_stream(tmp_path):
    content = io.BytesIO()
    torch.save({"w": torch.ones(2)}, content)
    (tmp_path / "pytorch_model.bin").write_bytes(content.getvalue())
    assert standfast.open(tmp_path / "pytorch_model.bin").format == "torch"
    content.seek(0)
    assert list(standfast.open(content)) == ["w"]

"""The reference library reads what we write, and we read what it writes, with equal bytes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.errors import NotVerified
from standfast.formats.safetensors.file import CODE_OF
from standfast.tensors import DTYPES, Packed, TensorSpec
from tests.kit.strategies import arrays, names, packed

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@given(st.dictionaries(names, arrays() | packed(), max_size=6))
@settings(max_examples=100, deadline=None)
def test_the_library_reads_what_we_write(folder: Path, tensors: dict[str, Array | Packed]) -> None:
    path = folder / "ours.safetensors"
    standfast.save(path, tensors, {"step": 1})
    theirs = dict(safetensors.deserialize(path.read_bytes()))
    with standfast.open(path) as file:
        assert theirs.keys() == tensors.keys()
        for name, view in theirs.items():
            spec = file.spec(name)
            assert view["dtype"] == CODE_OF[spec.dtype]
            assert tuple(view["shape"]) == spec.shape
            assert bytes(view["data"]) == file[name].tobytes()


def _torch_tensor(name: str) -> torch.Tensor:
    if name == "float4_e2m1fn":
        return torch.arange(24, dtype=torch.uint8).reshape(4, 6).view(torch.float4_e2m1fn_x2)
    dtype = getattr(torch, name)
    return (torch.arange(24) % (2 if name == "bool" else 24)).reshape(4, 6).to(dtype)


@pytest.mark.parametrize(
    "name", [name for name in CODE_OF if hasattr(torch, name) or name == "float4_e2m1fn"]
)
def test_we_read_what_the_library_writes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "theirs.safetensors"
    tensors = {"odd": torch.ones(3, dtype=torch.uint8), "x": _torch_tensor(name)}
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    with pytest.warns(NotVerified, match="nothing was verified"):
        loaded = standfast.load(path, framework="torch")
    assert standfast.open(path).metadata == {"format": "pt"}
    assert loaded["x"].dtype == tensors["x"].dtype
    assert loaded["x"].shape == tensors["x"].shape
    assert torch.equal(loaded["x"].view(torch.uint8), tensors["x"].view(torch.uint8))


def test_all_dtypes_of_the_library_are_known(tmp_path: Path) -> None:
    with pytest.raises(safetensors.SafetensorError) as refused:
        safetensors.deserialize(_file('{"a":{"dtype":"?","shape":[],"data_offsets":[0,0]}}'))
    listed = str(refused.value).partition("expected one of ")[2]
    codes = {word.strip(" `").split("`")[0] for word in listed.split(",")}
    assert codes == set(CODE_OF.values())


def _file(header: str, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + data


def test_a_file_whose_data_is_not_aligned_gives_aligned_arrays(tmp_path: Path) -> None:
    header = '{"x":{"dtype":"F64","shape":[2,2],"data_offsets":[0,32]}}'
    values = np.arange(4.0).reshape(2, 2)
    for spaces in range(8):
        path = tmp_path / f"{spaces}.safetensors"
        path.write_bytes(_file(header + " " * spaces, values.tobytes()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotVerified)
            loaded = standfast.load(path)["x"]
        with standfast.open(path) as file:
            for array in (file["x"], file.slice("x")[:], loaded):
                assert array.flags.aligned
                assert np.array_equal(array, values)
            assert file.slice("x")[1, ::-1].tolist() == [3, 2]


def test_our_tensors_start_on_a_page_and_each_is_aligned(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    tensors = {
        f"{name}.{i}": np.zeros(3, DTYPES[name].numpy)
        for i in range(2)
        for name in CODE_OF
        if not DTYPES[name].packed
    }
    standfast.save(path, tensors)
    with standfast.open(path) as file:
        starts = {name: file[name].ctypes.data for name in file}
        assert min(starts.values()) % 4096 == 0
        for name, start in starts.items():
            assert start % TensorSpec(file.spec(name).dtype, ()).kind.numpy.itemsize == 0


def test_transformers_would_take_our_files(tmp_path: Path) -> None:
    """It asks for a framework wherever there is metadata; users never see ours."""
    for metadata, format in (({}, "pt"), ({"step": 1}, "pt"), ({"format": "mlx"}, "mlx")):
        standfast.save(tmp_path / "a.safetensors", {"w": np.ones(2)}, metadata)
        with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
            assert file.metadata()["format"] == format
        assert standfast.open(tmp_path / "a.safetensors").metadata == metadata
    standfast.save(tmp_path / "a.safetensors", {"w": np.ones(2)}, extras=False)
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata() is None

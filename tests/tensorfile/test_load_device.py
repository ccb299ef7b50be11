"""Loading to a device and as another dtype gives what loading to the host gives."""

import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import standfast
from standfast.errors import BadOption, CopyFailed, DigestMismatch, NotVerified
from standfast.files import blocks
from standfast.files.digests import CHUNK
from standfast.tensors import DTYPES, Packed, TensorSpec
from standfast.tensors.cast import cast_array, castable_dtype
from tests import GOLDEN
from tests.kit.devices import LateDevice, put_tensors_on
from tests.kit.stores import same

FLOATS = ["float64", "float32", "bfloat16", "float16"]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateDevice]:
    device = LateDevice()
    put_tensors_on(device, monkeypatch)
    yield device
    device.incoming.clear()
    blocks._kept.clear()


def _state(large: bool = True) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "large": random.standard_normal(CHUNK // 4 + 1001 if large else 1001).astype(np.float32),
        "double": random.standard_normal((3, 5)),
        "brain": random.standard_normal((4, 4)).astype(ml_dtypes.bfloat16),
        "half": random.standard_normal(7).astype(np.float16),
        "count": np.arange(10),
        "scalar": np.array(2.5, np.float32),
        "empty": np.empty((0, 3), np.float32),
        "mask": np.array([True, False, True]),
    }


def _same(found: Any, expected: Any) -> bool:
    """Whether all are torch tensors of the same names, in the same order, bit for bit."""
    return same(list(found.items()), list(expected.items()))


def _load(path: Any, **options: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotVerified)
        return standfast.load(path, "torch", **options)


def _write(path: Path) -> None:
    """A file of the kind that its suffix says, by whoever writes such files."""
    state = _state(large=path.name in ("a.safetensors", "a.npz"))
    if path.stem == "foreign":
        state = {k: v for k, v in state.items() if k != "brain"}
        state["big-endian"] = np.arange(5, dtype=">f4")
        state["columns"] = np.asfortranarray(np.arange(12.0).reshape(3, 4))
        np.savez_compressed(path, **state)
    elif path.suffix == ".pt":
        tensors = {k: torch.arange(6.0).reshape(2, 3) + len(k) for k in state}
        torch.save({**tensors, "turned": torch.arange(6.0).reshape(2, 3).T}, path)
    elif path.suffix == ".sunc":  # with records in it
        path.write_bytes((GOLDEN / "sunc_u1_2d.sunc").read_bytes())
    else:
        standfast.save(path, state, cast=True)


@pytest.mark.parametrize(
    "name", ["a.safetensors", "a.npz", "foreign.npz", "a.pt", "a.tenzor", "a.sunc", "a.oxck"]
)
@pytest.mark.parametrize("cast", [None, "bfloat16"])
def test_every_format_comes_to_the_device_as_it_comes_to_the_host(name, cast, tmp_path, device):
    path = tmp_path / name
    _write(path)
    expected = _load(path, cast=cast)
    assert _same(_load(path, device="late", cast=cast), expected)
    arrived = {id(piece.target) for piece in device.incoming}
    assert len(arrived) == sum(tensor.numel() > 0 for tensor in expected.values())


def test_packed_tensors_come_to_the_device(tmp_path, device):
    path = tmp_path / "a.safetensors"
    packed = Packed(np.arange(12, dtype=np.uint8), "float6_e2m3fn", (4, 4))
    four = Packed(np.arange(8, dtype=np.uint8), "float4_e2m1fn", (4, 4))
    standfast.save(path, {"six": packed, "four": four})
    found = _load(path, device="late", cast="float16")
    assert _same(found, _load(path))


def test_a_stream_is_loaded_to_the_device(device):
    file = io.BytesIO()
    standfast.save(file, _state(large=False), format="safetensors")
    data = file.getvalue()
    assert _same(_load(io.BytesIO(data), device="late"), _load(io.BytesIO(data)))


def test_the_device_may_be_given_as_torch_has_it(tmp_path, device):
    path = tmp_path / "a.safetensors"
    standfast.save(path, {"a": np.arange(3.0)})
    for framework in ("numpy", "torch"):
        for host in ("cpu", torch.device("cpu")):
            assert standfast.load(path, framework, device=host)["a"].tolist() == [0.0, 1.0, 2.0]
    assert not device.incoming
    device.name = "cuda:0"
    _load(path, device=torch.device("cuda", 0))
    assert device.incoming


def test_what_is_no_device_or_dtype_is_refused(tmp_path, device):
    path = tmp_path / "not looked at"
    with pytest.raises(BadOption, match="framework='torch'"):
        standfast.load(path, device="late")  # arrays of NumPy lie on no device
    for name in ("late:7", 5):
        with pytest.raises(BadOption, match=f"device={name!r}"):
            standfast.load(path, "torch", device=name)  # type: ignore[arg-type]
    for cast in ("int32", "float8_e5m2", "complex64", "bf16", "", torch.int8, 3):
        with pytest.raises(BadOption, match="float64"):
            standfast.load(path, cast=cast)  # type: ignore[arg-type]
    assert castable_dtype(torch.bfloat16) == castable_dtype("bfloat16") == "bfloat16"


def test_a_file_without_digests_still_warns(tmp_path, device):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(3.0))
    with pytest.warns(NotVerified, match="CRC-32") as caught:
        standfast.load(path, "torch", device="late")
    assert caught[0].filename == __file__


def test_damage_is_found_on_the_way(tmp_path, device):
    path = tmp_path / "a.safetensors"
    standfast.save(path, {"a": np.zeros(100, np.uint8), "b": np.full(100, 77, np.uint8)})
    path.write_bytes(path.read_bytes().replace(b"M" * 100, b"M" * 99 + b"N"))
    with pytest.raises(DigestMismatch, match=r"a\.safetensors.*'b'") as caught:
        standfast.load(path, "torch", device="late")
    assert caught.value.tensors == ("b",)
    assert not device.incoming
    assert standfast.load(path, "torch", verify=False, device="late")["b"][-1] == 78


def test_what_only_crcs_tell_of_is_checked_before_it_is_copied(tmp_path, device):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.full(100, 77, np.uint8))
    path.write_bytes(path.read_bytes().replace(b"M" * 100, b"M" * 99 + b"N"))
    with pytest.raises(DigestMismatch):
        standfast.load(path, "torch", device="late")
    assert not device.incoming


def test_a_device_without_memory_says_so(tmp_path, device, seams):
    def refuse(empty: Any, spec: TensorSpec) -> Any:
        raise CopyFailed("late:0: out of memory")

    seams.system(device, empty=refuse)
    path = tmp_path / "a.safetensors"
    standfast.save(path, {"a": np.arange(3.0)})
    with pytest.raises(CopyFailed):
        standfast.load(path, "torch", device="late")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_all_floats_are_cast_and_nothing_else(tmp_path, framework):
    path = tmp_path / "a.safetensors"
    odd = {"eight": np.ones(3, ml_dtypes.float8_e5m2), "pair": np.ones(2, np.complex64)}
    state = _state(large=False) | odd
    standfast.save(path, state)
    found = standfast.load(path, framework, cast="bfloat16")
    dtypes = {name: str(value.dtype).removeprefix("torch.") for name, value in found.items()}
    kinds = {name: array.dtype.name for name, array in state.items()}
    assert dtypes == {n: "bfloat16" if kind in FLOATS else kind for n, kind in kinds.items()}
    assert all(np.shape(value) == state[name].shape for name, value in found.items())


@pytest.mark.parametrize("mapped", [True, False])
def test_what_was_cast_can_be_written_to(tmp_path, mapped):
    path = tmp_path / "a.safetensors"
    standfast.save(path, {"a": np.arange(3.0), "b": np.arange(3, dtype=np.float32)})
    found = standfast.load(path, cast="float32", mapped=mapped)
    for array in found.values():
        array += 1
        assert array.tolist() == [1.0, 2.0, 3.0]


def _values(dtype: str) -> np.ndarray[Any, Any]:
    """All values of a narrow dtype; of a wide one many, those between two narrow ones as well."""
    kind = DTYPES[dtype].numpy
    if kind.itemsize == 2:
        return np.arange(1 << 16, dtype=np.uint16).view(kind)
    any_bits = np.frombuffer(np.random.default_rng(0).bytes(50_000 * kind.itemsize), kind)
    with np.errstate(all="ignore"):
        narrow = [_values(name).astype(np.float64) for name in ("float16", "bfloat16")]
        between = [(values[1:] + values[:-1]) / 2 for values in narrow]
        beside = [values * (1 + e) for values in between for e in (1e-12, -1e-12, 1e-7, -1e-7)]
        return np.concatenate([any_bits, *(a.astype(kind) for a in (*narrow, *between, *beside))])


@pytest.mark.parametrize("before", FLOATS)
def test_the_bits_are_those_that_torch_casts_to(before):
    values = _values(before)
    with np.errstate(invalid="ignore"):
        values = values[~np.isnan(values.astype(np.float64))]
    with np.errstate(all="raise"):  # a value beyond the dtype becomes infinite, without a warning
        cast_array(np.array([1e300, -70000.0, 1e-300]), TensorSpec("float64", (3,)), "float16")
    bits = torch.from_numpy(values.view(f"i{values.itemsize}")).view(getattr(torch, before))
    for after in FLOATS:
        found = cast_array(values, TensorSpec(before, values.shape), after)
        assert found.dtype == DTYPES[after].numpy
        expected = bits.to(getattr(torch, after)).view(torch.uint8)
        assert found.tobytes() == expected.numpy().tobytes()

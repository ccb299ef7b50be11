"""Conversion proves itself: nothing takes its name that is not what was read."""

import io
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from isal import isal_zlib

import standfast
from standfast import errors
from standfast.files import digests
from tests.formats.builders import flipped
from tests.kit.seams import Seams
from tests.kit.strategies import same_bytes

STATE = {
    "layer.weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "layer.bias": np.array([math.nan, math.inf, -0.0, 1e-40], np.float32),
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.safetensors"
    standfast.save(path, STATE, {"step": 3})
    return path


def damage(path: Path, at: int = -1) -> None:
    data = path.read_bytes()
    path.write_bytes(flipped(data, at % len(data)))


def test_the_report_says_what_was_converted_and_by_which_digests(old):
    done = standfast.convert(old, old.with_suffix(".oxck"))
    assert (done.source, done.target, done.nbytes) == ("safetensors", "oxck", 64)
    for name, array in STATE.items():
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        assert done.digests[name] == digests.digest(data).hex()


def test_casts_are_listed_with_whether_they_are_exact(tmp_path):
    old = tmp_path / "old.safetensors"
    state = {
        "count": np.arange(3),
        "mask": np.array([True, False]),
        "half": np.ones(2, np.float16),
        "same": np.ones(2, np.float32),
    }
    standfast.save(old, state)
    with pytest.raises(errors.UnsupportedDType, match="'count'"):
        standfast.convert(old, tmp_path / "new.oxck")
    assert not (tmp_path / "new.oxck").exists()
    done = standfast.convert(old, tmp_path / "new.oxck", cast=True)
    listed = {cast.name: (cast.before.dtype, cast.after.dtype, cast.exact) for cast in done.casts}
    assert listed == {
        "count": ("int64", "float32", False),
        "mask": ("bool", "float32", True),
        "half": ("float16", "float32", True),
    }
    loaded = standfast.load(tmp_path / "new.oxck")
    assert all(np.array_equal(loaded[name], array) for name, array in state.items())


def test_a_damaged_source_is_never_converted(old):
    damage(old)
    new = old.with_suffix(".oxck")
    new.write_bytes(b"what stood here")
    for cast in (False, True):
        with pytest.raises(errors.DigestMismatch) as found:
            standfast.convert(old, new, cast=cast, replace=True)
        assert found.value.tensors == ("layer.bias",)
    assert new.read_bytes() == b"what stood here"
    standfast.save(old, {"w": np.ones(4, np.float64)})
    damage(old)
    with pytest.raises(errors.DigestMismatch):
        standfast.convert(old, new, cast=True, replace=True)
    assert new.read_bytes() == b"what stood here"
    assert sorted(os.listdir(old.parent)) == [new.name, old.name]


def lose_a_bit(write: Any, fd: int, data: Any, offset: int) -> None:
    """What a disk with a bad cable does."""
    damaged = data.copy()
    damaged[damaged.size // 2 + 1] ^= 4
    write(fd, damaged, offset)


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".oxck", ".tenzor", ".safetensors"])
@pytest.mark.parametrize("extras", [True, False])
def test_a_disk_that_loses_a_bit_is_caught_before_the_new_file_takes_its_name(
    suffix, extras, tmp_path, seams
):
    old, new = tmp_path / "old.safetensors", tmp_path / f"new{suffix}"
    standfast.save(old, {"w": np.arange(10_000, dtype=np.float32)})
    seams.disk(write=lose_a_bit)
    with pytest.raises(standfast.DamagedFile):
        standfast.convert(old, new, extras=extras)
    assert os.listdir(tmp_path) == [old.name]


def full(reserve: Any, fd: int, size: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_source_that_changes_meanwhile_or_a_full_disk_leaves_nothing(old, seams):
    def change(truncate: Any, fd: int, size: int) -> None:
        os.utime(old, ns=(1, 1))
        truncate(fd, size)

    seams.disk(truncate=change)
    with pytest.raises(errors.ChangedFile):
        standfast.convert(old, old.with_suffix(".pt"))
    assert os.listdir(old.parent) == [old.name]
    seams.disk(reserve=full)
    with pytest.raises(errors.WriteFailed):
        standfast.convert(old, old.with_suffix(".pt"))
    assert os.listdir(old.parent) == [old.name]


def test_a_file_can_be_converted_in_its_own_place(old):
    before = standfast.load(old)
    standfast.convert(old, old, format="npz", replace=True)
    assert standfast.open(old).format == "npz"
    assert all(same_bytes(standfast.load(old)[name], before[name]) for name in STATE)


def test_what_the_new_format_lacks_is_refused_or_listed(tmp_path):
    old, new = tmp_path / "old.pt", tmp_path / "new.safetensors"
    tree = {"model": {"w": torch.ones(2)}, "best": math.inf, "key": b"\x00", "epoch": 3}
    torch.save(tree | {"st": {1}, "em": [], "ed": {}, "rng": [np.arange(3)]}, old)
    with pytest.raises(errors.RefusedMetadata, match="'key'"):
        standfast.convert(old, new)
    assert not new.exists()
    done = standfast.convert(old, new, cast=True)
    lost = ["key: a bytes, left out", "st: a set, left out", "rng.0: a ndarray, left out"]
    assert list(done.metadata) == ["best: inf is now None", *lost]
    with standfast.open(new) as file:
        assert list(file) == ["model.w"]
        assert file.metadata == {"best": None, "epoch": 3, "em": [], "ed": {}}


def test_without_extras_typed_metadata_is_refused_or_becomes_text(old):
    new = old.with_suffix(".oxck")
    with pytest.raises(errors.RefusedMetadata, match="'step'"):
        standfast.convert(old, new, extras=False)
    done = standfast.convert(old, new, extras=False, cast=True)
    assert list(done.metadata) == ["step: 3 is now text"]
    assert standfast.open(new).metadata == {"step": "3"}
    with pytest.raises(errors.RefusedMetadata, match="'step'"):
        standfast.convert(old, old.with_suffix(".npz"), extras=False)
    done = standfast.convert(old, old.with_suffix(".npz"), extras=False, cast=True)
    assert list(done.metadata) == ["step: left out"]


def test_memory_does_not_grow_with_the_file(tmp_path):
    big = np.zeros(40 << 18, np.float32)  # 40 MiB
    big[::1000] = 1
    np.savez_compressed(tmp_path / "old.npz", big=big)
    code = (
        "import resource, sys, standfast\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "standfast.convert('old.npz', 'new.safetensors')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    # The new file is mapped when it is read back, and its pages count as well.
    assert int(done.stdout) < (40 + 30) << 10
    assert np.array_equal(standfast.load(tmp_path / "new.safetensors")["big"], big)


@pytest.fixture(params=[False, True], ids=["local", "network"])
def anywhere(request: pytest.FixtureRequest, seams: Seams) -> None:
    """Any file system is taken for one of a network, or none is."""
    if request.param:
        mounts = Path("/proc/mounts").read_text().splitlines()
        seams.bound("network file systems", {line.split()[2] for line in mounts})


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_file_of_numpy_is_never_converted(save, tmp_path):
    path = tmp_path / "a.npz"
    save(path, fine=np.ones(2), w=np.random.default_rng(0).standard_normal(5000))
    damage(path, path.stat().st_size // 2)
    for target, cast in (("a.safetensors", False), ("a.oxck", True)):
        with pytest.raises(standfast.DamagedFile, match="'w'") as found:
            standfast.convert(path, tmp_path / target, cast=cast)
        assert getattr(found.value, "tensors", ("w",)) == ("w",)
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.usefixtures("anywhere")
def test_whatever_lies_strangely_converts_on_any_file_system(tmp_path):
    array = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    state = {"c": array, "f": np.asfortranarray(array), "b": array.astype(">i4"), "e": array[:0]}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **state)
        for target, cast in (("b.safetensors", False), ("b.oxck", True)):
            standfast.convert(tmp_path / "a.npz", tmp_path / target, cast=cast, replace=True)
            loaded = standfast.load(tmp_path / target)
            assert all(np.array_equal(loaded[name], state[name]) for name in state)


def test_casting_a_compressed_tensor_inflates_it_once_for_each_pass(tmp_path, seams):
    begun = []
    seams.system(isal_zlib, decompressobj=lambda new, bits: begun.append(bits) or new(bits))
    big = np.random.default_rng(0).standard_normal(300_000).astype(np.float64)
    np.savez_compressed(tmp_path / "a.npz", odd=np.ones(3, np.int8), big=big)
    standfast.convert(tmp_path / "a.npz", tmp_path / "a.oxck", cast=True)
    assert np.array_equal(standfast.load(tmp_path / "a.oxck")["big"], big.astype(np.float32))
    # The headers of two tensors, which are then hashed and copied.
    assert len(begun) == 2 + 4


def test_a_conversion_needs_a_path(old):
    for target in (None, 5, io.BytesIO()):
        with pytest.raises(errors.WriteFailed):
            standfast.convert(old, target)


def test_what_tensors_only_leaves_out_is_listed(tmp_path):
    torch.save({"w": torch.ones(1), "layer": torch.nn.Linear(2, 2)}, tmp_path / "a.pt")
    done = standfast.convert(tmp_path / "a.pt", tmp_path / "a.npz", tensors_only=True)
    assert list(done.digests) == ["w"]
    assert list(done.metadata) == ["layer: a torch.nn.modules.linear.Linear, left out"]
    with standfast.open(tmp_path / "a.pt", tensors_only=True) as file:
        assert file.left_out == {"layer": "torch.nn.modules.linear.Linear"}


def test_a_file_is_replaced_only_if_asked(tmp_path):
    standfast.save(tmp_path / "a.npz", {"w": np.ones(3)})
    target = tmp_path / "b.safetensors"
    target.write_bytes(b"precious")
    with pytest.raises(errors.AlreadyExists):
        standfast.convert(tmp_path / "a.npz", target)
    assert target.read_bytes() == b"precious"
    standfast.convert(tmp_path / "a.npz", target, replace=True)
    assert standfast.load(target)["w"].tolist() == [1, 1, 1]

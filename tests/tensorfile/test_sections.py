"""Snapshots of simulations through the same verbs: to other formats and back, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast.errors import UnsupportedDType
from tests import GOLDEN


@pytest.mark.parametrize("name", ["sunc_scalar_2d", "sunc_u1_2d"])
@pytest.mark.parametrize("suffix", [".sunc", ".npz", ".pt", ".safetensors"])
def test_a_snapshot_comes_back_from_another_format_byte_for_byte(
    name: str, suffix: str, tmp_path: Path
) -> None:
    golden, there, back = GOLDEN / f"{name}.sunc", tmp_path / f"a{suffix}", tmp_path / "b.sunc"
    if name == "sunc_u1_2d" and suffix == ".safetensors":
        with pytest.raises(UnsupportedDType, match=r"'links'.*complex128"):
            standfast.convert(golden, there)
        return
    done = standfast.convert(golden, there)
    assert not done.casts
    assert not done.metadata
    assert not standfast.diff(golden, there)
    assert standfast.verify(there).tensors == len(done.digests)
    standfast.convert(there, back, extras=False)
    assert back.read_bytes() == golden.read_bytes()


def test_sections_in_another_order_and_another_dtype_are_the_same_snapshot(tmp_path: Path) -> None:
    golden = GOLDEN / "sunc_scalar_2d.sunc"
    with standfast.open(golden) as file:
        sections = dict(reversed(list(file.items())))
        sections["storage"] = sections["storage"].view(np.uint8)
        sections["blocks"] = sections["blocks"].view(np.uint8).reshape(-1, 40)
        standfast.save(tmp_path / "a.npz", sections, file.metadata)
    standfast.convert(tmp_path / "a.npz", tmp_path / "b.sunc", extras=False)
    assert (tmp_path / "b.sunc").read_bytes() == golden.read_bytes()

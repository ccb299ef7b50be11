"""The golden files of the other formats that Standfast wrote: read for ever, or never."""

from __future__ import annotations

import pytest

import standfast
from standfast.errors import DamagedFile, DigestMismatch, IndexMismatch
from tests.formats.golden.make import FOLDER, METADATA, general_files, general_tensors
from tests.kit.strategies import same_bytes

SUFFIX = {"safetensors": "safetensors", "torch": "pt", "npz": "npz", "sunc": "sunc"}


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("name", general_files())
def test_the_writer_still_writes_these_bytes(name: str) -> None:
    assert general_files()[name] == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("format", ["safetensors", "torch", "npz"])
def test_a_file_holds_what_was_saved(format: str) -> None:
    path = FOLDER / f"standfast_{format}_extras.{SUFFIX[format]}"
    assert standfast.verify(path).tensors == 7
    with standfast.open(path) as file:
        assert (file.format, file.metadata) == (format, METADATA)
        assert list(file) == list(general_tensors())
        assert all(same_bytes(file[name], array) for name, array in general_tensors().items())


def test_a_snapshot_holds_what_was_saved() -> None:
    path = FOLDER / "standfast_sunc_extras.sunc"
    assert standfast.verify(path).tensors == 5
    found = standfast.diff(FOLDER / "sunc_u1_2d.sunc", path)
    assert (found.same, len(found.changed), set(found.metadata)) == (5, 0, set(METADATA))


@pytest.mark.parametrize("format", SUFFIX)
@pytest.mark.parametrize("damage", ["tensor", "metadata", "cut"])
def test_a_damaged_file_is_refused(format: str, damage: str) -> None:
    error = {"tensor": DigestMismatch, "metadata": DamagedFile, "cut": DamagedFile}[damage]
    with pytest.raises(error) as refused:
        standfast.verify(FOLDER / f"damaged_{format}_{damage}.{SUFFIX[format]}")
    if (format, damage) == ("safetensors", "metadata"):
        assert type(refused.value) is IndexMismatch

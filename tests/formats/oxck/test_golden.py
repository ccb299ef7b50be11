"""The golden files of OXCK that Standfast wrote: sound ones open for ever, damaged ones never."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import standfast
from standfast.errors import (
    BadField,
    DigestMismatch,
    DuplicateKey,
    IndexMismatch,
    StandfastError,
    TruncatedFile,
)
from standfast.oxck import Checkpoint, MetadataParse, TruncatedData
from tests import GOLDEN
from tests.formats.golden.make import METADATA, golden_files, oxck_tensors
from tests.formats.oxck.builders import original_read
from tests.kit.strategies import same_bytes

FILES = [name for name in golden_files() if name.endswith(".oxck")]


@pytest.mark.parametrize("name", FILES)
def test_the_writer_still_writes_these_bytes(name: str) -> None:
    assert golden_files()[name] == (GOLDEN / name).read_bytes()


def test_a_file_with_extras_holds_what_was_saved() -> None:
    path = GOLDEN / "standfast_oxck_extras.oxck"
    assert standfast.verify(path).tensors == 5
    with standfast.open(path) as file:
        assert (file.metadata, list(file)) == (METADATA, list(oxck_tensors()))
        for name, array in oxck_tensors().items():
            assert same_bytes(file[name], array)
    strings, originals = original_read(io.BytesIO(path.read_bytes()))
    assert strings["note"] == METADATA["note"]
    assert [(each.name, each.data) for each in originals] == [
        (name, array.tobytes()) for name, array in oxck_tensors().items()
    ]


@pytest.mark.parametrize("name", ["standfast_oxck_extras.oxck", "standfast_oxck_repeated.oxck"])
def test_a_checkpoint_is_saved_again_byte_for_byte(name: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint.load(GOLDEN / name)
    assert checkpoint.digests
    checkpoint.save(tmp_path / "again.oxck")
    assert (tmp_path / "again.oxck").read_bytes() == (GOLDEN / name).read_bytes()


def test_repeated_names_and_a_tensor_without_a_shape_are_kept() -> None:
    path = GOLDEN / "standfast_oxck_repeated.oxck"
    tensors = Checkpoint.load(path).tensors
    assert [(each.name, each.shape, each.data.tolist()) for each in tensors] == [
        ("twice", [2], [1, 2]),
        ("twice", [1], [3]),
        ("nothing", [], []),
    ]
    with pytest.raises(DuplicateKey, match="'twice'"):
        standfast.open(path)


@pytest.mark.parametrize(
    ("damage", "error", "message", "checkpoint"),
    [
        ("tensor", DigestMismatch, "'scalar' is damaged", DigestMismatch),
        ("name", IndexMismatch, "what surrounds the tensors", IndexMismatch),
        ("padding", BadField, "the metadata is not in braces", MetadataParse),
        ("cut", TruncatedFile, "the elements", TruncatedData),
    ],
)
def test_a_damaged_file_is_refused(
    damage: str, error: type[StandfastError], message: str, checkpoint: type[StandfastError]
) -> None:
    path = GOLDEN / f"damaged_oxck_{damage}.oxck"
    with pytest.raises(error, match=message) as refused:
        standfast.verify(path)
    assert type(refused.value) is error
    with pytest.raises(checkpoint) as refused:
        Checkpoint.load(path)
    assert type(refused.value) is checkpoint

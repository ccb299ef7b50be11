"""The golden files of tenzor that Standfast wrote: sound ones open for ever, damaged ones never."""

from __future__ import annotations

import math

import pytest

import standfast
from standfast.errors import BadField, DigestMismatch, StandfastError, TruncatedFile
from tests import GOLDEN
from tests.formats.golden.make import METADATA, golden_files, tenzor_tensors
from tests.formats.tenzor.builders import lookup
from tests.kit.strategies import same_bytes

FILES = [name for name in golden_files() if name.endswith(".tenzor")]


@pytest.mark.parametrize("name", FILES)
def test_the_writer_still_writes_these_bytes(name: str) -> None:
    assert golden_files()[name] == (GOLDEN / name).read_bytes()


ALIGNED = ["optim/weight/m", "count", "重み", "weight", "weight.bf16", "empty", "mask"]


@pytest.mark.parametrize(
    ("name", "order"), [("extras", list(tenzor_tensors())), ("aligned", ALIGNED)]
)
def test_a_file_with_extras_holds_what_was_saved(name: str, order: list[str]) -> None:
    path = GOLDEN / f"standfast_tenzor_{name}.tenzor"
    assert standfast.verify(path).tensors == 7
    with standfast.open(path) as file:
        assert (file.metadata, list(file)) == (METADATA, order)
        for name, array in tenzor_tensors().items():
            found = lookup(path.read_bytes(), name)
            assert found is not None
            assert same_bytes(file[name], array)
            assert same_bytes(found, array)


@pytest.mark.parametrize("name", ["trainer", "aligned_trainer"])
def test_a_trainers_file_holds_what_was_saved(name: str) -> None:
    path = GOLDEN / f"standfast_tenzor_{name}.tenzor"
    with standfast.open(path, names=list(tenzor_tensors())) as file:
        assert file.metadata["best_val_loss"] == math.inf
        assert math.isnan(file.metadata["learning_rate"])
        assert file.metadata["model_name"] == 'my "first" \\model'
        for name, array in tenzor_tensors().items():
            assert same_bytes(file[name], array)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        ("tensor", DigestMismatch, "'mask' is damaged"),
        ("name", BadField, "'nptim/weight/m' has not the hash"),
        ("padding", BadField, "expected zeros up to 4,096"),
        ("cut", TruncatedFile, "the last tensor ends at"),
    ],
)
def test_a_damaged_file_is_refused(damage: str, error: type[StandfastError], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        standfast.verify(GOLDEN / f"damaged_tenzor_{damage}.tenzor")
    assert type(refused.value) is error

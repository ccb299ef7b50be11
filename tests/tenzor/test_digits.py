"""The data of `standfast train`: IDX files read with care, and the small digits otherwise."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast.errors import (
    BadField,
    BadHeader,
    LimitExceeded,
    MissingFile,
    StandfastError,
    TrailingBytes,
    TruncatedFile,
    UnknownFramework,
    UnreadableFile,
    UnsupportedFile,
)
from standfast.tenzor.digits import load_digits, read_idx
from tests.tenzor.digits_files import idx_bytes, write_digits

TWO = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
SOUND = idx_bytes(TWO)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_items_are_read_plain_and_compressed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(SOUND) if name.endswith("gz") else SOUND)
    assert read_idx(path, (2, 2)).tolist() == TWO.tolist()


def _header(*fields: int) -> bytes:
    return struct.pack(f">4B{len(fields) - 4}I", *fields)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", TruncatedFile, "16 bytes of header expected, 0 found"),
        (b"\x89PNG" + SOUND[4:], BadHeader, "it begins with 89 50 4e 47"),
        (_header(0, 0, 13, 3, 2, 2, 2) + bytes(32), UnsupportedFile, "found type 0x0d"),
        (_header(0, 0, 8, 3, 2, 3, 2) + bytes(12), UnsupportedFile, r"\[2, 3, 2\]"),
        (_header(0, 0, 8, 1, 2, 2, 2) + bytes(8), UnsupportedFile, "with 1 dimensions"),
        (_header(0, 0, 8, 3, 2**32 - 1, 2, 2), LimitExceeded, "4,294,967,295 items"),
        (_header(0, 0, 8, 3, 0, 2, 2), LimitExceeded, "0 items"),
        (SOUND[:-1], TruncatedFile, "ends before|7 found"),
        (SOUND + b"\0", TrailingBytes, "goes on after its 2 items"),
    ],
)
@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_files_that_are_none_are_refused(
    name: str, data: bytes, error: type[StandfastError], message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(error, match=message):
        read_idx(path, (2, 2))


@pytest.mark.parametrize("damage", [slice(0, -9), slice(1, None)])
def test_damaged_compression_is_refused(damage: slice, tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(SOUND)[damage])
    with pytest.raises(TruncatedFile):
        read_idx(path, (2, 2))


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile):
        read_idx(tmp_path, (2, 2))


def test_mnist_is_taken_where_it_lies(tmp_path: Path) -> None:
    digits = load_digits(write_digits(tmp_path))
    assert digits.name == f"MNIST in {tmp_path}"
    assert digits.training.images.shape == (96, 1, 28, 28)
    assert digits.training.images.dtype == np.float32
    assert (digits.training.images.max(), digits.validation.labels.dtype) == (1.0, np.int64)


def test_a_part_of_mnist_is_refused(tmp_path: Path) -> None:
    write_digits(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(MissingFile, match="t10k-labels-idx1-ubyte"):
        load_digits(tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [([1] * 95, "95 labels for the 96 images"), ([10] * 96, "a label of 10; expected 0 to 9")],
)
def test_labels_that_do_not_fit_are_refused(
    labels: list[int], message: str, tmp_path: Path
) -> None:
    write_digits(tmp_path)
    data = idx_bytes(np.array(labels, np.uint8))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(data)
    with pytest.raises(BadField, match=message):
        load_digits(tmp_path)


def test_the_digest_tells_data_apart(tmp_path: Path) -> None:
    first = load_digits(write_digits(tmp_path / "a"))
    assert load_digits(write_digits(tmp_path / "b")).digest() == first.digest()
    assert load_digits(write_digits(tmp_path / "c", validation=31)).digest() != first.digest()


def test_a_folder_that_was_named_must_hold_mnist(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "typo"):
        with pytest.raises(MissingFile, match=str(folder)):
            load_digits(folder)


def test_without_mnist_the_small_digits_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    digits = load_digits(None)
    assert digits.name == "the digits of scikit-learn"
    assert digits.training.images.shape == (1437, 1, 28, 28)
    assert len(digits.validation.labels) == 360
    assert set(digits.validation.labels.tolist()) == set(range(10))
    assert (digits.training.images.min(), digits.training.images.max()) == (0.0, 1.0)


def test_without_scikit_learn_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: Any = None
    monkeypatch.setitem(__import__("sys").modules, "sklearn", gone)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownFramework, match="scikit-learn"):
        load_digits(None)

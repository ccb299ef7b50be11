"""The data of `standfast train`: IDX files read with care, and the small digits otherwise."""

import gzip
import struct
import sys

import numpy as np
import pytest

from standfast import errors
from standfast.tenzor.digits import load_digits, read_idx
from tests.tenzor.digits_files import idx_bytes, write_digits

TWO = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
SOUND = idx_bytes(TWO)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_items_are_read_plain_and_compressed(name, tmp_path):
    path, data = tmp_path / name, gzip.compress(SOUND)
    path.write_bytes(data if name.endswith("gz") else SOUND)
    assert read_idx(path, (2, 2)).tolist() == TWO.tolist()
    with pytest.raises(errors.UnreadableFile):
        read_idx(tmp_path, (2, 2))
    for damaged in (data[:-9], data[1:]) if name.endswith("gz") else ():
        path.write_bytes(damaged)
        with pytest.raises(errors.TruncatedFile):
            read_idx(path, (2, 2))


def _header(*fields: int) -> bytes:
    return struct.pack(f">4B{len(fields) - 4}I", *fields)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        *((b"", errors.TruncatedFile), (b"\x89PNG" + SOUND[4:], errors.BadHeader)),
        (_header(0, 0, 13, 3, 2, 2, 2) + bytes(32), errors.UnsupportedFile),
        (_header(0, 0, 8, 3, 2, 3, 2) + bytes(12), errors.UnsupportedFile),
        (_header(0, 0, 8, 1, 2, 2, 2) + bytes(8), errors.UnsupportedFile),
        (_header(0, 0, 8, 3, 2**32 - 1, 2, 2), errors.LimitExceeded),
        (_header(0, 0, 8, 3, 0, 2, 2), errors.LimitExceeded),
        *((SOUND[:-1], errors.TruncatedFile), (SOUND + b"\0", errors.TrailingBytes)),
    ],
)
@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_files_that_are_none_are_refused(name, data, error, tmp_path):
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(error, match=name):
        read_idx(path, (2, 2))


@pytest.mark.parametrize(("labels", "told"), [([1] * 95, r"95.*96"), ([10] * 96, "10")])
def test_labels_that_do_not_fit_are_refused(labels, told, tmp_path):
    write_digits(tmp_path)
    data = idx_bytes(np.array(labels, np.uint8))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(data)
    with pytest.raises(errors.BadField, match=told):
        load_digits(tmp_path)


def test_mnist_is_taken_from_the_folder_that_is_named(tmp_path):
    first = load_digits(write_digits(tmp_path / "a"))
    assert str(tmp_path / "a") in first.name
    assert first.training.images.shape == (96, 1, 28, 28)
    assert (first.training.images.dtype, first.validation.labels.dtype) == (np.float32, np.int64)
    assert first.training.images.max() == 1.0
    assert load_digits(write_digits(tmp_path / "b")).digest() == first.digest()
    assert load_digits(write_digits(tmp_path / "c", validation=31)).digest() != first.digest()
    (tmp_path / "c" / "t10k-labels-idx1-ubyte").unlink()
    for folder, told in (("c", "t10k-labels-idx1-ubyte"), ("typo", str(tmp_path / "typo"))):
        with pytest.raises(errors.MissingFile, match=told):
            load_digits(tmp_path / folder)


def test_without_mnist_the_small_digits_of_scikit_learn_are_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = load_digits(None)
    assert digits.training.images.shape == (1437, 1, 28, 28)
    assert len(digits.validation.labels) == 360
    assert set(digits.validation.labels.tolist()) == set(range(10))
    assert (digits.training.images.min(), digits.training.images.max()) == (0.0, 1.0)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(errors.UnknownFramework, match="scikit-learn"):
        load_digits(None)

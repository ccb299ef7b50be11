"""Documents that no writer of ours wrote: each is refused by an error of ours, or harmless."""

import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import optim

import standfast
from standfast.errors import BadField, LimitExceeded, SizeMismatch, StandfastError, UnsupportedFile
from standfast.tenzor import Checkpoint, CheckpointMetadata
from tests.tenzor.models import new_model, train

VALUES: list[Any] = [
    *(None, True, -1, 2**62, 0.5, "", "torch:Parameter", [], {}, [[]], {"$tensor": 0}),
    *({"$tensor": 99}, {"$float": "x"}, {"$bytes": "AA=="}, {"": {}}),
]


def _file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors and the metadata of a sound checkpoint."""
    model = new_model()
    optimizer = optim.Adam(model.parameters())
    train(model, optimizer, range(1))
    weights = {**model.state_dict(), "mask": np.array([True, False])}
    Checkpoint.save(path, weights, optimizer, CheckpointMetadata(), extra={"x": np.arange(2)})
    with standfast.open(path) as file:
        return file.arrays(), file.metadata


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(node, dict):
        for key, member in node.items():
            yield from _places(member, (*path, key))
    elif isinstance(node, list):
        for i, member in enumerate(node):
            yield from _places(member, (*path, i))


def _with(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at one place."""
    if not path:
        return value
    changed = copy.copy(document)
    old = document[path[0]] if len(path) > 1 else None
    changed[path[0]] = _with(old, path[1:], value)
    return changed


def _use(path: Path) -> None:
    """All that a checkpoint can be asked for."""
    model = new_model()
    with Checkpoint.load(path) as loaded:
        assert isinstance(loaded.extra, dict)
        weights = {**model.state_dict(), "mask": np.array([False, False])}
        loaded.load_weights(weights)
        loaded.resume_optimizer(optim.Adam(model.parameters()))


def test_any_value_at_any_place_raises_our_errors_alone(tmp_path):
    path = tmp_path / "it.tenzor"
    tensors, metadata = _file(path)
    document = metadata["standfast"]
    standfast.save(path, tensors, metadata)
    _use(path)  # as it is, it is sound
    places, random, refused = list(_places(document)), np.random.default_rng(0), 0
    for at in places:
        changed = metadata | {"standfast": _with(document, at, VALUES[random.choice(len(VALUES))])}
        stream = io.BytesIO()
        standfast.save(stream, tensors, changed, format="tenzor")
        path.write_bytes(stream.getvalue())
        try:
            _use(path)
        except StandfastError:
            refused += 1
    assert len(places) > 100
    assert refused > len(places) / 2


@pytest.mark.parametrize(
    ("place", "value", "error", "told"),
    [
        (("version",), 2, UnsupportedFile, r"2.*1"),
        (("version",), "1", BadField, "version"),
        (("tensors", 0, "name"), "nowhere", BadField, "'nowhere'"),
        (("bytes", "mask", "dtype"), "bool4", BadField, "'bool4'"),
        (("bytes", "mask", "shape"), [3], SizeMismatch, "3"),
        (("bytes", "mask", "shape"), [-1], LimitExceeded, "-1"),
        (("bytes", "none"), {"dtype": "bool", "shape": [2]}, BadField, "standfast/bytes/none"),
        (("state", "metadata"), [], BadField, "'metadata'"),
        (("state", "extra"), 3, BadField, "'extra'"),
        (("state", "metadata", "epoch"), "five", BadField, "epoch"),
        (("state", "optimizer", "class"), 1, BadField, "optimizer"),
        (("state", "optimizer", "groups"), [2, 3], StandfastError, "groups"),
    ],
)
def test_what_is_wrong_is_said(place, value, error, told, tmp_path):
    tensors, metadata = _file(tmp_path / "it.tenzor")
    changed = metadata | {"standfast": _with(metadata["standfast"], place, value)}
    standfast.save(tmp_path / "it.tenzor", tensors, changed)
    with pytest.raises(error, match=told):
        _use(tmp_path / "it.tenzor")

"""The metadata of `.tenzor` files: the text of the original's trainer, bytes, hostile text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import RefusedMetadata
from standfast.formats.tenzor.file import checkpoint_metadata
from standfast.formats.tenzor.metadata import parse_metadata
from tests.formats.builders import opened
from tests.formats.tenzor.builders import file_of, metadata_text, saved, trainer_text
from tests.formats.tenzor.test_file import METADATA, ONE


def given(**changes: Any) -> bytes:
    return checkpoint_metadata(**(METADATA | changes))


def test_the_text_is_the_trainers() -> None:
    assert given() == (
        b'{"epoch":5,"global_step":4685,"best_val_loss":0.198000,"best_val_acc":0.963000,'
        b'"best_epoch":3,"learning_rate":0.00870000,"model_name":"lenet","timestamp":1700000000}'
    )


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        # These digits are those of the float32 next to the number, not of the number.
        ({"best_val_loss": 1234.5678901}, b'"best_val_loss":1234.567871,'),
        ({"best_val_loss": 16777217}, b'"best_val_loss":16777216.000000,'),
        ({"learning_rate": 0.1}, b'"learning_rate":0.10000000,'),
        ({"learning_rate": 3e-4}, b'"learning_rate":0.00030000,'),
        ({"best_val_acc": -0.0}, b'"best_val_acc":-0.000000,'),
        ({"best_val_loss": math.inf}, b'"best_val_loss":null,'),
        ({"best_val_loss": -math.inf}, b'"best_val_loss":null,'),
        ({"best_val_acc": math.nan}, b'"best_val_acc":null,'),
        ({"best_val_loss": np.float64(0.25)}, b'"best_val_loss":0.250000,'),
        ({"epoch": np.int64(7)}, b'{"epoch":7,'),
        ({"model_name": 'a "b" \\ \n ü'}, '"model_name":"a \\"b\\" \\\\ \\n ü",'.encode()),
    ],
)
def test_numbers_are_rounded_and_text_is_escaped(changes: dict[str, Any], part: bytes) -> None:
    text = given(**changes)
    assert part in text
    again = parse_metadata(text)
    assert again.text == text
    assert again.user["model_name"] == changes.get("model_name", "lenet")


@pytest.mark.parametrize("extras", [True, False])
def test_the_text_is_saved_as_it_is(extras: bool) -> None:
    data = saved(ONE, given(), extras=extras)
    assert metadata_text(data).endswith(given()[1:])
    file = opened(data)
    assert (file.metadata["best_val_loss"], file.metadata_text) == (0.198, given())


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (trainer_text("inf"), "best_val_loss", math.inf),
        (trainer_text("-inf"), "best_val_loss", -math.inf),
        (trainer_text("nan"), "best_val_loss", math.nan),
        (trainer_text(rate="inf"), "learning_rate", math.inf),
        (trainer_text("inf", 'my "best" model'), "model_name", 'my "best" model'),
        (trainer_text(name='"'), "model_name", '"'),
        (trainer_text(name='"' + "[" * 200), "model_name", '"' + "[" * 200),
        (trainer_text(name="C:\\dir\\x"), "model_name", "C:\\dir\\x"),
        (trainer_text(name="two\nlines"), "model_name", "two\nlines"),
        (trainer_text(name='x","timestamp":7}'), "model_name", 'x","timestamp":7}'),
        (trainer_text("inf", ""), "model_name", ""),
        (trainer_text("340282346638528859811704183484516925440.000000"), "best_val_loss", 2**128),
    ],
)
@pytest.mark.parametrize("extras", [True, False])
def test_bare_numbers_and_names_that_are_not_escaped_are_read(
    text: str, key: str, value: Any, extras: bool
) -> None:
    data = saved(ONE, text.encode(), extras=extras)
    metadata = opened(data).metadata
    assert metadata[key] == pytest.approx(value, nan_ok=True)
    assert (metadata["epoch"], metadata["timestamp"]) == (5, -1)
    assert len(metadata) == 8


def test_we_write_null_for_what_is_not_finite(tmp_path: Path) -> None:
    old, new = tmp_path / "old.tenzor", tmp_path / "new.tenzor"
    old.write_bytes(file_of(trainer_text("inf", 'a "b"')))
    converted = standfast.convert(old, new, extras=False)
    assert converted.metadata == ["best_val_loss: inf is now None"]
    assert metadata_text(new.read_bytes()) == (
        b'{"epoch":5,"global_step":4685,"best_val_loss":null,"best_val_acc":0.963,"best_epoch":3,'
        b'"learning_rate":0.0087,"model_name":"a \\"b\\"","timestamp":-1}'
    )


def test_bytes_are_written_as_they_are() -> None:
    odd = b' {"b": 1,\n "a" : [1.50, "\\u00e9"]} \n'
    key = b'{"note":"\\"standfast.digest\\" is a key"}'
    for text in (b"{}", odd, key, '{"é":"重み"}'.encode(), b"", b"  "):
        bare, full = saved(ONE, text, extras=False), saved(ONE, text)
        assert metadata_text(bare) == text
        assert metadata_text(full).endswith(text.strip().removeprefix(b"{").strip() or b"}")
        assert opened(full).metadata == opened(bare).metadata
        assert opened(bare).metadata_text == text


@pytest.mark.parametrize("extras", [True, False])
def test_empty_metadata_is_converted(extras: bool, tmp_path: Path) -> None:
    old, new = tmp_path / "old.tenzor", tmp_path / "new.tenzor"
    for text in (b"", b" ", b"{}"):
        old.write_bytes(file_of(text))
        standfast.convert(old, new, names=["a"], extras=extras, replace=True)
        with standfast.open(new) as file:
            assert file.metadata == {}
        assert extras or new.read_bytes() == old.read_bytes()


REFUSED = [b"[1]", b"{garbage}", b'{"a":1,}', b'{"a":NaN}', b"\x0c{}", b'{"a":"\xff"}']
REFUSED += [b'{"a":1,"a":2}', b'{"standfast.digest":"x"}', b'{"standfast.names":["a"]}']
REFUSED += [b'{"standfast\\u002enames":["a"]}', b'{"a":' + b"[" * 101 + b"]" * 101 + b"}"]


@pytest.mark.parametrize("extras", [True, False])
def test_bytes_that_could_not_be_read_again_are_refused(extras: bool) -> None:
    for text in REFUSED:
        with pytest.raises(RefusedMetadata):
            saved(ONE, text, extras=extras)

"""`generation_info.json`: how a model was made, with as much as is known of it."""

from __future__ import annotations

import json
import math
import os
import pickle
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast.errors import BadField, DuplicateKey, RefusedMetadata
from standfast.packages.documents.json_text import text
from standfast.packages.documents.records import DataStats, GenerationInfo, TrainingParams


def test_a_prompt_and_a_size_are_enough(tmp_path: Path) -> None:
    info = GenerationInfo(prompt="recipes", model_size="small")
    info.save(tmp_path / "generation_info.json")
    assert GenerationInfo.load(tmp_path / "generation_info.json") == info
    assert datetime.fromisoformat(info.creation_date).tzinfo is not None
    assert info.libraries["numpy"] == version("numpy")


def test_everything_that_is_given_comes_back(tmp_path: Path) -> None:
    info = GenerationInfo(
        "recipes",
        "12M",
        TrainingParams(epochs=3, learning_rate=1, final_loss=0.1 + 0.2, optimizer="adamw"),
        DataStats(total_samples=10, vocab_size=5000),
        creation_date="2026-11-16T12:00:00+01:00",
        libraries={"candle": "0.8.4"},
        quantization={"largest_error": 0.001, "scheme": "int8"},
        others={"notes": ["a", None]},
    )
    path = tmp_path / "generation_info.json"
    info.save(path)
    assert GenerationInfo.load(path) == info
    assert json.loads(path.read_text()) == {
        "prompt": "recipes",
        "model_size": "12M",
        "training_params": {
            "epochs": 3,
            "learning_rate": 1,
            "final_loss": 0.30000000000000004,
            "optimizer": "adamw",
        },
        "data_stats": {"total_samples": 10, "vocab_size": 5000},
        "creation_date": "2026-11-16T12:00:00+01:00",
        "libraries": {"candle": "0.8.4"},
        "quantization": {"largest_error": 0.001, "scheme": "int8"},
        "notes": ["a", None],
    }


def test_unknown_fields_are_written_again_exactly(tmp_path: Path) -> None:
    path = tmp_path / "generation_info.json"
    foreign: dict[str, Any] = {
        "candle_version": "0.8.4",
        "creation_date": "2024-01-23 14:30:22",
        "data_stats": {"avg_tokens_per_sample": 104.7},
        "libraries": {},
        "model_size": "33M",
        "prompt": "a cooking recipe generator",
        "training_params": {"epochs": 20, "schedule": {"kind": "cosine", "to": 1e-05}},
    }
    path.write_text(json.dumps(foreign, indent=2) + "\n")
    before = path.read_bytes()
    info = GenerationInfo.load(path)
    assert info.others == {"candle_version": "0.8.4"}
    info.save(path)
    assert path.read_bytes() == before


def test_what_a_file_lacks_is_not_made_up() -> None:
    info = GenerationInfo.of_dict({})
    assert info == GenerationInfo(creation_date="", libraries={})
    assert info.libraries is not GenerationInfo.of_dict({}).libraries


FOREIGN: list[dict[str, Any]] = [
    {},
    {"prompt": "recipes"},
    {"training_params": None, "data_stats": None, "prompt": None, "model_size": None},
    {"training_params": {}, "data_stats": {}, "prompt": "", "libraries": {}},
    {"libraries": None, "creation_date": None, "quantization": None},
    {"libraries": {"torch": None, "candle": "0.8.4"}},
    {"training_params": {"epochs": None, "learning_rate": None, "optimizer": None}},
    {"training_params": {"epochs": 3.0, "learning_rate": 1.0, "seconds": 2}},
    {"training_params": {"epochs": -0.0, "steps": 1e20}, "data_stats": {"vocab_size": 300.0}},
    {"as_written": {"prompt": None}, "others": {"prompt": 3}},
]


@pytest.mark.parametrize("content", FOREIGN, ids=str)
def test_what_is_read_and_written_again_is_the_same_json(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    path = tmp_path / "generation_info.json"
    path.write_text(json.dumps(content))
    info = GenerationInfo.load(path)
    info.save(path)
    assert path.read_text() == text(content) + "\n"
    assert text(pickle.loads(pickle.dumps(info)).as_dict()) == text(content)


def test_what_has_no_value_is_what_it_is_where_nothing_is_said() -> None:
    info = GenerationInfo.of_dict(FOREIGN[2] | {"libraries": None, "creation_date": None})
    assert info == GenerationInfo(creation_date="", libraries={})
    assert type(GenerationInfo.of_dict(FOREIGN[7]).training_params.epochs) is int


def test_a_field_that_a_file_lacks_is_written_once_it_is_set() -> None:
    info = GenerationInfo.of_dict({"prompt": None, "training_params": {"epochs": 3.0}})
    params = info.training_params.changed(epochs=4, steps=10)
    info = info.changed(prompt="recipes", training_params=params, quantization={"scheme": "int8"})
    assert info.as_dict() == {
        "prompt": "recipes",
        "training_params": {"epochs": 4, "steps": 10},
        "quantization": {"scheme": "int8"},
    }


def test_half_of_a_character_is_named_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "generation_info.json"
    with pytest.raises(RefusedMetadata, match=r"generation_info\.json: prompt has '\\ud83e'"):
        GenerationInfo("crêpes \ud83e").save(path)
    assert list(tmp_path.iterdir()) == []


def test_a_changed_one_is_another() -> None:
    info = GenerationInfo("recipes", "small")
    assert info.changed(quantization={"scheme": "int8"}).quantization == {"scheme": "int8"}
    assert info.quantization is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"prompt": 3.0}, "prompt is 3.0: it must be a text"),
        ({"model_size": 12}, "model_size is 12: it must be a text"),
        ({"training_params": []}, "training_params is []: it must be an object"),
        (
            {"training_params": {"epochs": 2.5}},
            "training_params.epochs is 2.5: it must be a whole number",
        ),
        (
            {"training_params": {"epochs": "3"}},
            "training_params.epochs is '3': it must be a whole number",
        ),
        (
            {"training_params": {"learning_rate": "fast"}},
            "training_params.learning_rate is 'fast': it must be a number",
        ),
        ({"data_stats": {"total_tokens": False}}, "data_stats.total_tokens is False"),
        ({"libraries": {"torch": 2.4}}, "libraries['torch'] is 2.4: it must be a text"),
        ({"libraries": ["torch"]}, "libraries is ['torch']: it must be an object"),
        ({"quantization": "int8"}, "quantization is 'int8': it must be an object"),
    ],
    ids=lambda value: value.split(" is ")[0] if isinstance(value, str) else "",
)
def test_a_known_field_of_the_wrong_kind_is_named_with_the_file(
    tmp_path: Path, content: Any, problem: str
) -> None:
    path = tmp_path / "generation_info.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadField) as caught:
        GenerationInfo.load(path)
    assert str(caught.value).startswith(f"{path}: {problem}")


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "generation_info.json"
    path.write_text('{"training_params": {"epochs": 1, "epochs": 2}}')
    with pytest.raises(DuplicateKey, match=r"generation_info\.json.*epochs"):
        GenerationInfo.load(path)


def test_a_loss_that_is_no_number_is_refused_when_it_is_given() -> None:
    with pytest.raises(BadField, match="final_loss is nan"):
        TrainingParams(final_loss=math.nan)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    """The seed: `pub training_params: TrainingParams`; a loss that NumPy computed is a number."""
    params = TrainingParams(final_loss=np.float64(2.5), epochs=np.int64(3))  # type: ignore[arg-type]
    assert (type(params.final_loss), type(params.epochs)) == (float, int)
    info = GenerationInfo(training_params=params)
    info.save(os.fsencode(tmp_path / "info.json"))  # type: ignore[arg-type]
    assert GenerationInfo.load(os.fsencode(tmp_path / "info.json")) == info  # type: ignore[arg-type]
    for value in (np.bool_(True), np.float64(2.5)):
        with pytest.raises(BadField, match=r"epochs is .*: it must be a whole number"):
            TrainingParams(epochs=value)
    with pytest.raises(BadField, match="final_loss is nan"):
        TrainingParams(final_loss=np.float32("nan"))  # type: ignore[arg-type]

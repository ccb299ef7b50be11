"""`generation_info.json`: how a model was made, with as much as is known of it."""

from __future__ import annotations

import json
import math
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadField, DuplicateKey
from holdfast.packages.generation_info import DataStats, GenerationInfo, TrainingParams


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


def test_a_changed_one_is_another() -> None:
    info = GenerationInfo("recipes", "small")
    assert info.changed(quantization={"scheme": "int8"}).quantization == {"scheme": "int8"}
    assert info.quantization is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"prompt": None}, "prompt is None: it must be a text"),
        ({"model_size": 12}, "model_size is 12: it must be a text"),
        ({"training_params": None}, "training_params is None: it must be an object"),
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

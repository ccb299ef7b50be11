"""config.json: what is read, what is written again, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast.errors import BadField, DuplicateKey, MissingFile, StandfastError, UnsupportedFile
from standfast.packages import Config


def test_a_configuration_comes_back_as_it_was(tmp_path: Path) -> None:
    config = Config.small(vocab_size=600, n_positions=64, eos_token_id=[1, 2], n_inner=7)
    config.save(tmp_path / "config.json")
    assert Config.load(tmp_path / "config.json") == config


def test_the_file_is_indented_and_sorted_and_says_what_others_look_for(tmp_path: Path) -> None:
    Config.small().save(tmp_path / "config.json")
    text = (tmp_path / "config.json").read_text()
    said = json.loads(text)
    assert text == json.dumps(said, indent=2, sort_keys=True) + "\n"
    assert (said["model_type"], said["n_embd"], said["n_layer"]) == ("gpt2", 384, 6)


def test_what_is_not_known_is_kept(tmp_path: Path) -> None:
    given = {"n_embd": 48, "n_head": 4, "task": {"a": [1, None]}, "transformers_version": "4.40"}
    assert Config.of_dict(given).as_dict().items() >= given.items()
    assert Config.of_dict(Config.of_dict(given).as_dict()) == Config.of_dict(
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **given}
    )


def test_numbers_of_numpy_and_a_path_of_bytes_will_do(tmp_path: Path) -> None:
    """The seed: "Use Path trait for cross-platform compatibility"."""
    given: Any = {"vocab_size": np.int64(100), "resid_pdrop": np.float64(0.25)}
    path: Any = os.fsencode(tmp_path / "config.json")
    Config(**given).save(path)
    loaded = Config.load(path)
    assert loaded == Config(vocab_size=100, resid_pdrop=0.25) == Config(**given)
    with pytest.raises(BadField, match="vocab_size is"):
        Config(vocab_size=np.float64(100.0))  # type: ignore[arg-type]


def test_the_names_of_other_models_are_understood() -> None:
    config = Config.of_dict({"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3})
    assert (config.n_embd, config.n_head, config.n_layer) == (48, 4, 3)
    assert "hidden_size" not in config.as_dict()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", 1 << 40),
        ("vocab_size", "50257"),
        ("vocab_size", 10.0),
        ("n_layer", True),
        ("n_layer", None),
        ("n_layer", 10**9),
        ("n_head", 7),
        ("n_inner", 0),
        ("activation_function", "exec"),
        ("activation_function", ["gelu"]),
        ("layer_norm_epsilon", "small"),
        ("layer_norm_epsilon", -1),
        ("attn_pdrop", 2),
        ("tie_word_embeddings", 1),
        ("bos_token_id", [1]),
        ("eos_token_id", ["end"]),
        ("eos_token_id", {}),
    ],
)
def test_a_value_of_which_no_model_can_be_built_is_named(
    tmp_path: Path, field: str, value: Any
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", field: value}))
    with pytest.raises(BadField) as caught:
        Config.load(path)
    assert str(path) in str(caught.value)
    assert (field if field != "n_head" else "n_embd") in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [{"model_type": "llama"}, {"add_cross_attention": True}, {"reorder_and_upcast_attn": True}],
)
def test_another_architecture_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFile):
        Config.of_dict(given)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", BadField),
        ("[]", BadField),
        ('{"n_layer": 1, "n_layer": 2}', DuplicateKey),
        ("[" * 100_000, BadField),
        ('{"n_layer": 1e999}', BadField),
        ("\udcff", BadField),
    ],
    ids=["empty", "a list", "a key twice", "deep", "infinite", "no UTF-8"],
)
def test_a_file_that_is_no_configuration_is_named(
    tmp_path: Path, text: str, error: type[StandfastError]
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(error, match=r"config\.json"):
        Config.load(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"config\.json"):
        Config.load(tmp_path / "config.json")

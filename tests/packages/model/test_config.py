"""config.json: what is read, what is written again, what is refused."""

import json
import os
from typing import Any

import numpy as np
import pytest

from standfast.errors import BadField, DuplicateKey, MissingFile, UnsupportedFile
from standfast.packages import Config


def test_a_configuration_comes_back_as_it_was(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(MissingFile, match=r"config\.json"):
        Config.load(path)
    config = Config.small(vocab_size=600, n_positions=64, eos_token_id=[1, 2], n_inner=7)
    config.save(path)
    assert Config.load(path) == config
    said = json.loads(path.read_text())
    assert path.read_text() == json.dumps(said, indent=2, sort_keys=True) + "\n"
    assert (said["model_type"], said["n_embd"], said["n_layer"]) == ("gpt2", 384, 6)


def test_what_is_not_known_is_kept(tmp_path):
    given = {"n_embd": 48, "n_head": 4, "task": {"a": [1, None]}, "transformers_version": "4.40"}
    assert Config.of_dict(given).as_dict().items() >= given.items()
    assert Config.of_dict(Config.of_dict(given).as_dict()) == Config.of_dict(
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **given}
    )


def test_numbers_of_numpy_and_a_path_of_bytes_will_do(tmp_path):
    given: Any = {"vocab_size": np.int64(100), "resid_pdrop": np.float64(0.25)}
    path: Any = os.fsencode(tmp_path / "config.json")
    Config(**given).save(path)
    loaded = Config.load(path)
    assert loaded == Config(vocab_size=100, resid_pdrop=0.25) == Config(**given)
    with pytest.raises(BadField, match="vocab_size"):
        Config(vocab_size=np.float64(100.0))  # type: ignore[arg-type]


def test_the_names_of_other_models_are_understood():
    config = Config.of_dict({"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3})
    assert (config.n_embd, config.n_head, config.n_layer) == (48, 4, 3)
    assert "hidden_size" not in config.as_dict()


def test_a_value_of_which_no_model_can_be_built_is_named(tmp_path):
    path = tmp_path / "config.json"
    wrong: dict[str, list[Any]] = {
        "vocab_size": [0, 1 << 40, "50257", 10.0],
        "n_layer": [True, None, 10**9],
        "n_head": [7],
        "n_inner": [0],
        "activation_function": ["exec", ["gelu"]],
        "layer_norm_epsilon": ["small", -1],
        "attn_pdrop": [2],
        "tie_word_embeddings": [1],
        "bos_token_id": [[1]],
        "eos_token_id": [["end"], {}],
    }
    for field, value in ((name, each) for name in wrong for each in wrong[name]):
        path.write_text(json.dumps({"model_type": "gpt2", field: value}))
        with pytest.raises(BadField, match=field if field != "n_head" else "n_embd") as caught:
            Config.load(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("key", ["model_type", "add_cross_attention", "reorder_and_upcast_attn"])
def test_another_architecture_is_refused(key):
    with pytest.raises(UnsupportedFile):
        Config.of_dict({key: "llama" if key == "model_type" else True})


def test_a_file_that_is_not_a_configuration_is_named(tmp_path):
    path = tmp_path / "config.json"
    for content in (b"", b"[]", b"[" * 100_000, b'{"n_layer": 1e999}', b"\xff"):
        path.write_bytes(content)
        with pytest.raises(BadField, match=r"config\.json"):
            Config.load(path)
    path.write_bytes(b'{"n_layer": 1, "n_layer": 2}')
    with pytest.raises(DuplicateKey, match=r"config\.json"):
        Config.load(path)

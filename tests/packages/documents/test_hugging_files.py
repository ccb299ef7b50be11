"""What a tokenizer and a model of Transformers have besides arrives in Transformers again."""

import json
import tempfile
from typing import Any

import pytest

from standfast import errors
from standfast.packages.documents.records import DatasetInfo, GenerationInfo
from standfast.packages.documents.tokenizer import (
    generation_files,
    tokenizer_config,
    tokenizer_files,
    tokenizer_text,
)
from standfast.packages.model.files import load_model_folder, save_model_folder
from standfast.packages.store import export, save_to_store
from standfast.packages.verify import verify_package
from standfast.packages.writer import files_of
from standfast.store import Store
from tests.packages import hugging

TEMPLATE = "{% for message in messages %}{{ message['content'] }}½{% endfor %}"
CONFIG = {"n_positions": 32, "eos_token_id": 0}


def dressed(**changes: Any) -> Any:
    """A tokenizer of Transformers with all that `tokenizer.json` does not hold."""
    options = {
        "pad_token": hugging.END,
        "padding_side": "left",
        "model_max_length": 24,
        "chat_template": TEMPLATE,
    }
    made = hugging.byte_level_bpe()
    kind = hugging.transformers().PreTrainedTokenizerFast
    return kind(tokenizer_object=made, **(options | changes))


def generating() -> Any:
    """A model that says how it is to be sampled."""
    made = hugging.model(vocab_size=300)
    made.generation_config.update(do_sample=True, temperature=0.25, max_new_tokens=7)
    return made


@pytest.mark.parametrize("how", ["saved", "stored", "exported"])
def test_a_package_gives_tokenizer_and_generation_back(tmp_path, how):
    made, folder = generating(), tmp_path / "gpt"
    store = Store(tmp_path / "store")
    if how == "saved":
        save_model_folder(made, dressed(), made.config, folder)
    elif how == "stored":
        save_to_store(store.run("gpt"), 1, made, dressed(), made.config)
        export("gpt@1", folder, store=store)
    else:
        export(made, folder, tokenizer=dressed())
    theirs = hugging.transformers().AutoTokenizer.from_pretrained(folder)
    assert (theirs.pad_token, theirs.padding_side) == (hugging.END, "left")
    assert (theirs.model_max_length, theirs.chat_template) == (24, TEMPLATE)
    ids = theirs(["Take two eggs", "eggs"], padding=True)["input_ids"]
    assert ids[1][0] == theirs.pad_token_id
    generation = hugging.transformers().GenerationConfig.from_pretrained(folder)
    assert generation.to_dict() == made.generation_config.to_dict()
    assert generation.temperature == 0.25
    assert verify_package(folder).uncovered == ()
    _, tokenizer, _, _ = load_model_folder(folder)
    assert tokenizer.encode("eggs").ids == hugging.byte_level_bpe().encode("eggs").ids
    plain = hugging.byte_level_bpe()  # a package in its place has nothing of it
    if how == "stored":
        export("gpt@1", folder, store=store, tokenizer=plain)
    else:
        save_model_folder(made.state_dict(), plain, made.config, folder)
    theirs = hugging.transformers().AutoTokenizer.from_pretrained(folder)
    assert (theirs.pad_token, theirs.padding_side, theirs.chat_template) == (None, "right", None)
    assert not (folder / "chat_template.jinja").exists()
    assert (folder / "generation_config.json").exists() == (how == "stored")


def test_the_files_are_those_that_transformers_writes(tmp_path):
    theirs = hugging.save(dressed(), tmp_path)
    expected = {path.name: path.read_bytes() for path in theirs.iterdir()}
    assert sorted(expected) == ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    assert tokenizer_files(dressed()) == expected


def test_several_templates_stay_together(tmp_path):
    templates = {"default": TEMPLATE, "tools": "{{ tools }}"}
    for name, content in tokenizer_files(dressed(chat_template=templates)).items():
        (tmp_path / name).write_bytes(content)
    theirs = hugging.transformers().AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.chat_template == templates


def test_nothing_is_left_of_the_folder_they_were_written_to(tmp_path, seams):
    seams.system(tempfile, tempdir=str(tmp_path))
    assert tokenizer_files(dressed())
    with pytest.raises(errors.BadOption):
        tokenizer_files(dressed(chat_template="\ud800"))
    assert list(tmp_path.iterdir()) == []
    seams.system(tempfile, tempdir=str(tmp_path / "none"))
    with pytest.raises(errors.WriteFailed, match="none"):
        tokenizer_files(dressed())


def test_a_plain_tokenizer_has_the_files_it_had():
    made = hugging.byte_level_bpe()
    text = tokenizer_text(made)
    settings = tokenizer_config(CONFIG, text)
    for same in (made, text):
        files = files_of(same, CONFIG)
        assert list(files) == ["tokenizer.json", "tokenizer_config.json"]
        assert files["tokenizer.json"] == text
        assert json.loads(files["tokenizer_config.json"]) == settings


def test_a_model_of_nobody_says_nothing_of_generation():
    import torch

    assert generation_files(torch.nn.Linear(2, 2)) == {}
    assert generation_files({}) == {}
    assert list(generation_files(torch.nn.DataParallel(generating()))) == ["generation_config.json"]


def test_half_of_a_character_is_named_before_anything_is_written(tmp_path):
    made = hugging.model(vocab_size=300)
    for options, named in (
        ({"dataset": DatasetInfo.of_texts(["a", "\ud800"])}, r"dataset\.json: samples\[1\]\.text"),
        ({"generation_info": GenerationInfo("\ud800")}, r"generation_info\.json: prompt"),
        ({"config": {"notes": ["\ud800"]}}, r"notes\[0\]"),
    ):
        config = made.config.to_dict() | options.pop("config", {})
        with pytest.raises(errors.RefusedMetadata, match=rf"{named}.*'\\ud800'"):
            save_model_folder(made, hugging.byte_level_bpe(), config, tmp_path / "gpt", **options)
        assert list(tmp_path.iterdir()) == []

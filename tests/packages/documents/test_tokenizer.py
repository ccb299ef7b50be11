import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast import errors
from standfast.packages.documents import names, tokenizer
from tests.packages import hugging

SAMPLES = [
    "",
    "Beat the eggs, and don't stop !",
    "crêpe  ½ Liter\n\tMilch 日本語 🥞",
    f"one{hugging.END}two {hugging.END} three",
]


def _package(folder: Path, made: Any, **changes: Any) -> Any:
    """What AutoTokenizer makes of the files that a package has, with a GPT-2 `config.json`."""
    config = hugging.config(vocab_size=made.get_vocab_size(), **changes)
    hugging.save(config, folder)
    text = tokenizer.tokenizer_text(made)
    (folder / names.TOKENIZER).write_bytes(text)
    settings = tokenizer.tokenizer_config(config.to_dict(), text)
    (folder / names.TOKENIZER_CONFIG).write_text(json.dumps(settings))
    return hugging.transformers().AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", hugging.TOKENIZERS)
def test_the_text_is_the_same_tokenizer_in_transformers(tmp_path, kind):
    made = hugging.TOKENIZERS[kind]()
    again = tokenizer.tokenizer_of(tokenizer.tokenizer_text(made))
    assert _without_scores(again) == _without_scores(made)
    theirs = _package(tmp_path, made)
    assert len(theirs) == made.get_vocab_size()
    assert theirs.get_vocab() == made.get_vocab()
    back = tokenizer.tokenizer_of(tokenizer.tokenizer_text(theirs))
    for text in SAMPLES:
        ids = made.encode(text).ids
        assert again.encode(text).ids == back.encode(text).ids == theirs(text)["input_ids"] == ids
        # Transformers shows special tokens unless told not to; the Tokenizers library hides them.
        assert theirs.decode(ids, skip_special_tokens=True) == made.decode(ids)
        assert theirs.decode(ids) == made.decode(ids, skip_special_tokens=False)


def _without_scores(made: Any) -> Any:
    """All that a tokenizer writes but scores: the library reads their last digit as another."""
    content = json.loads(made.to_str())
    if content["model"]["type"] == "Unigram":
        content["model"]["vocab"] = [token for token, _ in content["model"]["vocab"]]
    return content


def test_a_file_and_a_text_stay_as_they_are(tmp_path):
    text = " " + hugging.unigram().to_str() + "\n"
    path = tmp_path / "any name.json"
    path.write_text(text)
    for same in (path, str(path), text, text.encode()):
        assert tokenizer.tokenizer_text(same) == text.encode()


def test_the_settings_name_length_and_special_tokens():
    text = tokenizer.tokenizer_text(hugging.byte_level_bpe())
    config = {"n_positions": 77, "bos_token_id": None, "eos_token_id": [0, 5]}
    assert tokenizer.tokenizer_config(config, text) == {
        "clean_up_tokenization_spaces": False,
        "eos_token": hugging.END,
        "model_max_length": 77,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def test_a_token_that_is_not_special_does_not_become_so():
    made = hugging.byte_level_bpe()
    made.add_tokens(["crêpe"])  # of the id 300
    text = tokenizer.tokenizer_text(made)
    for number in (50256, 40, 300, None, [], False, "0"):
        found = tokenizer.tokenizer_config({"eos_token_id": number}, text)
        assert "eos_token" not in found
        assert "model_max_length" not in found


def test_the_length_and_the_end_arrive_in_transformers(tmp_path):
    made = hugging.byte_level_bpe()
    theirs = _package(tmp_path, made, n_positions=48)
    assert theirs.model_max_length == 48
    assert (theirs.eos_token, theirs.eos_token_id) == (hugging.END, 0)
    [letter] = made.encode("e").ids
    theirs = _package(tmp_path, made, eos_token_id=letter)
    ids = made.encode("eggs").ids
    assert theirs("eggs")["input_ids"] == ids
    assert theirs.decode(ids, skip_special_tokens=True) == "eggs"  # a common token stays


def _changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(hugging.byte_level_bpe().to_str()) | changes).encode()


NESTED = b'"normalizer":' + b'{"type":"Sequence","normalizers":[' * 50_000


NO_JSON = (b"", b"{}", b"[]", b"\xff\xfe{}", b"{\0}", b"PK\x03\x04", b"[" * 1_000_000)
NO_TOKENIZERS: list[dict[str, Any]] = [
    {"version": "9.0"},
    {"model": None},
    {"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [["b", "c"]]}},
    {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
    {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}},
    {"added_tokens": [{"id": 1}]},
    {"added_tokens": 5},
    {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}}},
    {"pre_tokenizer": {"type": "os.system"}},
    {"decoder": {"type": "\x1b[2J"}},
]


def test_a_text_that_is_not_a_tokenizer_is_refused():
    wrong = (_changed(**changes) for changes in NO_TOKENIZERS)
    for text in (*NO_JSON, b'{"version":"1.0",' + NESTED, *wrong):
        with pytest.raises(errors.BadField) as caught:
            tokenizer.tokenizer_of(text)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400


def test_a_panic_of_the_library_is_a_refusal(capfd):
    normalizer = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(errors.BadField, match="precompiled_charsmap") as caught:
        tokenizer.tokenizer_of(_changed(normalizer=normalizer))
    assert not isinstance(caught.value.__cause__, Exception)
    assert "panicked" in capfd.readouterr().err


def test_an_interrupt_is_not_taken_for_a_refusal(monkeypatch):
    def interrupted(text: bytes) -> None:
        raise KeyboardInterrupt

    library = SimpleNamespace(Tokenizer=SimpleNamespace(from_buffer=interrupted))
    monkeypatch.setitem(sys.modules, "tokenizers", library)
    with pytest.raises(KeyboardInterrupt):
        tokenizer.tokenizer_of(b"{}")


def test_padding_that_would_take_all_memory_is_refused():
    made = hugging.byte_level_bpe()
    made.enable_padding()
    padding = json.loads(made.to_str())["padding"]
    for change in ({"strategy": {"Fixed": 1 << 60}}, {"pad_to_multiple_of": 1 << 60}):
        with pytest.raises(errors.BadField, match="padding"):
            tokenizer.tokenizer_of(_changed(padding=padding | change))


def test_padding_and_truncation_of_a_usual_size_are_kept():
    made = hugging.byte_level_bpe()
    made.enable_padding(length=64, pad_to_multiple_of=8)
    made.enable_truncation(100)
    assert tokenizer.tokenizer_of(tokenizer.tokenizer_text(made)).to_str() == made.to_str()


def test_a_text_or_file_beyond_the_limit_is_not_read(tmp_path, seams):
    text = tokenizer.tokenizer_text(hugging.byte_level_bpe())
    path = tmp_path / names.TOKENIZER
    path.write_bytes(text)
    seams.bound("bytes of a tokenizer", len(text))
    assert tokenizer.tokenizer_text(path) == text
    seams.bound("bytes of a tokenizer", len(text) - 1)
    for same in (path, text):
        with pytest.raises(errors.LimitExceeded):
            tokenizer.tokenizer_text(same)


def test_what_is_not_a_tokenizer_is_refused(tmp_path):
    from tokenizers import pre_tokenizers

    in_python = hugging.byte_level_bpe()
    in_python.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(object())
    for value in (None, 5, ["a"], object(), in_python):
        with pytest.raises(errors.BadOption, match=r"tokenizer\.json"):
            tokenizer.tokenizer_text(value)
    with pytest.raises(errors.BadField, match=r"'\\ud800'"):
        tokenizer.tokenizer_text('{"version": "\ud800"}')
    (tmp_path / names.TOKENIZER).write_text("{}")
    for path in (tmp_path / names.TOKENIZER, tmp_path):  # a package, whose tokenizer it is
        with pytest.raises(errors.BadField, match=r"tokenizer\.json"):
            tokenizer.tokenizer_text(path)
    with pytest.raises(errors.MissingFile):
        tokenizer.tokenizer_text(tmp_path / "none.json")


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(errors.UnknownFramework, match="tokenizers"):
        tokenizer.tokenizer_of(b"{}")


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_changed_byte_gives_a_tokenizer_or_a_refusal(data):
    text = bytearray(_SOUND)
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        made = tokenizer.tokenizer_of(bytes(text))
    except errors.StandfastError:
        return
    assert made.get_vocab_size() >= 0


_SOUND = hugging.word_piece().to_str().encode()


def test_a_wrapper_of_the_tokenizers_library_is_taken():
    from tokenizers import ByteLevelBPETokenizer

    made = ByteLevelBPETokenizer()
    made.train_from_iterator(hugging.TEXT, vocab_size=280, show_progress=False)
    again = tokenizer.tokenizer_of(tokenizer.tokenizer_text(made))
    assert again.encode(SAMPLES[1]).ids == made.encode(SAMPLES[1]).ids

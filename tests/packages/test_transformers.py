"""A package and the Transformers library: each opens what the other saved, to the last bit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import standfast
from standfast import errors
from standfast.packages import Config, load_model_folder, load_model_mmaped, save_model_folder
from tests.kit.cases import kept
from tests.packages import hugging
from tests.packages.stored_models import bits, model

CONFIG = Config(vocab_size=300, n_positions=32, n_embd=48, n_layer=3, n_head=4)
SHAPES = [(1, 1), (1, 9), (3, 17), (2, 32)]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "gelu": {"activation_function": "gelu"},
    "tanh": {"activation_function": "gelu_pytorch_tanh"},
    "relu": {"activation_function": "relu", "n_inner": 100},
    "silu": {"activation_function": "silu"},
    "unscaled": {"scale_attn_weights": False},
    "by layer": {"scale_attn_by_inverse_layer_idx": True},
    "epsilon": {"layer_norm_epsilon": 1e-3},
    "odd": {"vocab_size": 301, "n_embd": 36, "n_positions": 33},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """How a product is divided among threads is not the same in every process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _logits(ours: Any, theirs: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        ids = torch.randint(0, 100, shape, generator=generator)
        with torch.no_grad():
            yield ours(ids), theirs(ids).logits


def _theirs(folder: Path) -> Any:
    return hugging.transformers().GPT2LMHeadModel.from_pretrained(folder).eval()


CASES = kept(
    [*((name, "5GB") for name in VARIANTS), ("plain", "40KB"), ("untied", "40KB")],
    *((name, "5GB") for name in ("plain", "untied", "gelu", "relu", "by layer", "odd")),
    ("untied", "40KB"),
)


@pytest.mark.parametrize(("variant", "max_shard_size"), CASES)
def test_transformers_computes_the_same_with_ours(tmp_path, variant, max_shard_size):
    config = CONFIG.changed(**VARIANTS[variant])
    made = model(3, config).eval()
    folder = tmp_path / "package"
    save_model_folder(made, hugging.byte_level_bpe(), config, folder, max_shard_size=max_shard_size)
    assert (folder / "model.safetensors").exists() == (max_shard_size == "5GB")
    theirs = _theirs(folder)
    ours, _, read, _ = load_model_folder(folder)
    assert bits(ours) == bits(made)
    for mine, other in _logits(ours, theirs):
        assert torch.equal(mine, other)
    assert theirs.config.n_embd == read.n_embd == config.n_embd
    assert theirs.config.tie_word_embeddings == config.tie_word_embeddings


@pytest.mark.parametrize(("variant", "max_shard_size"), CASES)
@pytest.mark.filterwarnings("ignore::standfast.errors.NotVerified")
def test_ours_computes_the_same_with_theirs(tmp_path, variant, max_shard_size):
    sizes = {"vocab_size": 300, "n_embd": 48, "n_layer": 3, "n_head": 4}
    theirs = hugging.model(5, **sizes | VARIANTS[variant])
    folder = _saved_by_transformers(theirs, tmp_path / "theirs", max_shard_size=max_shard_size)
    assert (folder / "model.safetensors.index.json").exists() == (max_shard_size == "40KB")
    ours, *_ = load_model_folder(folder)
    for mine, other in _logits(ours, theirs):
        assert torch.equal(mine, other)
    assert bits(load_model_mmaped(folder)[0]) == bits(ours)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_of_transformers_is_saved_as_a_package(tmp_path, tied):
    theirs = hugging.model(2, tie_word_embeddings=tied)
    save_model_folder(theirs, hugging.byte_level_bpe(), theirs.config, tmp_path / "package")
    again = _theirs(tmp_path / "package")
    assert bits(again) == bits(theirs)
    ours, _, config, _ = load_model_folder(tmp_path / "package")
    for mine, other in _logits(ours, theirs):
        assert torch.equal(mine, other)
    assert config.tie_word_embeddings is tied
    assert config.others["summary_type"] == "cls_index"  # what we do not use is kept


def test_a_whole_class_may_be_saved_from_its_state_dict(tmp_path):
    theirs = hugging.model(4)
    state = {name: value.clone() for name, value in theirs.state_dict().items()}
    config = theirs.config.to_dict()
    save_model_folder(state, hugging.byte_level_bpe(), config, tmp_path / "package")
    assert bits(_theirs(tmp_path / "package")) == bits(theirs)
    state["lm_head.weight"][0, 0] += 1  # it is tied no more
    with pytest.raises(errors.StateMismatch, match="tie_word_embeddings"):
        save_model_folder(state, hugging.byte_level_bpe(), config, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_both_generate_the_same_tokens_where_nothing_is_drawn(tmp_path):
    made = model(3, CONFIG)
    save_model_folder(made, hugging.byte_level_bpe(), CONFIG, tmp_path / "package")
    theirs = _theirs(tmp_path / "package")
    prompt = [7, 20, 31]
    expected = theirs.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)
    assert made.generate(prompt, 20, temperature=0) == expected[0].tolist()


@pytest.mark.parametrize("kind", hugging.TOKENIZERS)
def test_the_tokenizer_gives_the_same_ids_everywhere(tmp_path, kind):
    tokenizer = hugging.TOKENIZERS[kind]()
    save_model_folder(model(), tokenizer, None, tmp_path / "package")
    theirs = hugging.transformers().AutoTokenizer.from_pretrained(tmp_path / "package")
    _, ours, _, _ = load_model_folder(tmp_path / "package")
    for text in (*hugging.TEXT, "  two  spaces\n\nand ½ lines <|endoftext|> 日本"):
        assert ours.encode(text).ids == tokenizer.encode(text).ids == theirs(text)["input_ids"]
    saved = type(ours).from_file(str(tmp_path / "package" / "tokenizer.json"))
    assert ours.to_str() == saved.to_str()


def test_the_index_is_the_one_that_transformers_writes(tmp_path):
    theirs = hugging.model(1, tie_word_embeddings=False)
    hugging.save(theirs, tmp_path / "theirs", max_shard_size="5KB")
    save_model_folder(
        theirs, hugging.byte_level_bpe(), None, tmp_path / "ours", max_shard_size="5KB"
    )
    name = "model.safetensors.index.json"
    assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    shards = set(json.loads((tmp_path / "ours" / name).read_text())["weight_map"].values())
    assert {path.name for path in (tmp_path / "ours").glob("model-*")} == shards


def _saved_by_transformers(made: Any, folder: Path, **options: Any) -> Path:
    hugging.save(made, folder, **options)
    hugging.byte_level_bpe().save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.filterwarnings("ignore::standfast.errors.NotVerified")
def test_an_output_layer_in_the_file_is_not_lost_to_the_configuration(tmp_path):
    theirs = hugging.model(1)  # a model that was tied, and whose output layer was then trained
    theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach() + 1)
    folder = _saved_by_transformers(theirs, tmp_path / "theirs")
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    loaded, _, config, _ = load_model_folder(folder)
    assert not config.tie_word_embeddings
    for mine, other in _logits(loaded, theirs):
        assert torch.equal(mine, other)
    assert bits(load_model_mmaped(folder)[0]) == bits(loaded)


@pytest.mark.filterwarnings("ignore::standfast.errors.NotVerified")
def test_an_output_layer_that_is_the_embedding_is_tied_again(tmp_path):
    folder = _saved_by_transformers(hugging.model(1), tmp_path / "theirs")
    weights = standfast.load(folder / "model.safetensors", verify=False)
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    for extras in (True, False):  # by its digest, by its bytes
        standfast.save(folder / "model.safetensors", weights, extras=extras)
        loaded, _, config, _ = load_model_folder(folder)
        assert config.tie_word_embeddings
        assert loaded.lm_head is None

"""Packages in a store: what is saved, what is written of it, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast import errors
from standfast.files.digests import CHUNK
from standfast.packages.documents.records import DatasetInfo, GenerationInfo
from standfast.packages.documents.tokenizer import tokenizer_text
from standfast.packages.model.config import Config
from standfast.packages.model.files import load_model_folder
from standfast.packages.store import export, save_to_store, stored_package, stored_weights
from standfast.store import Checkpoint, Run, Store
from standfast.store.save.known import SMALL
from tests.kit.cli import flip_in
from tests.kit.stores import bytes_written, chunks, record_path
from tests.packages import hugging
from tests.packages.stored_models import TINY, bits, model

TOKENIZER = hugging.byte_level_bpe()
HEADERS = 32 << 10
"""More than the headers of the data files here take."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def run(store: Store) -> Run:
    return store.run("gpt")


def test_the_state_is_the_weights_and_the_files(run):
    made = model()
    dataset, info = DatasetInfo.of_texts(["one", "two"]), GenerationInfo("recipes", "small")
    more: Any = {"dataset": dataset, "generation_info": info, "metrics": {"loss": 2.5}, "epoch": 1}
    checkpoint = save_to_store(run, 3, made, TOKENIZER, TINY, **more)
    assert (checkpoint.step, checkpoint.metrics, checkpoint.epoch) == (3, {"loss": 2.5}, 1)
    state = run.load(3)
    assert list(state) == ["model", "package"]
    assert bits(state["model"]) == bits(made)
    package = state["package"]
    assert package["format"] == "standfast package 1"
    assert package["config"] == TINY.as_dict()
    found = stored_package(checkpoint)
    assert found.files == {name: file.tobytes() for name, file in package["files"].items()}
    assert found.files["tokenizer.json"] == tokenizer_text(TOKENIZER)
    assert found.files["dataset.txt"] == b"one\n\ntwo\n"
    assert b'"recipes"' in found.files["generation_info.json"]
    assert b'"two"' in found.files["dataset.json"]
    assert len(found.files) == 5


def test_the_state_fills_the_model_again(run):
    save_to_store(run, 1, model(1), TOKENIZER, TINY)
    other = model(2)
    run.load(1, into={"model": other.state_dict()}, strict=False)
    assert bits(other) == bits(model(1))


def test_a_step_is_replaced_only_if_told(run):
    with pytest.raises(errors.StateMismatch, match=r"h\.2\.ln_1\.weight"):
        save_to_store(run, 1, model(), TOKENIZER, TINY.changed(n_layer=3))
    with pytest.raises(errors.BadOption, match="Config"):
        save_to_store(run, 1, model().state_dict(), TOKENIZER)
    assert run.checkpoints() == []
    save_to_store(run, 1, model(1), TOKENIZER, TINY, best=True)
    with pytest.raises(errors.StepExists):
        save_to_store(run, 1, model(2), TOKENIZER, TINY)
    wrapped = torch.nn.DataParallel(model(2))  # which has its configuration
    package = stored_package(save_to_store(run, 1, wrapped, TOKENIZER, replace=True))
    assert package.config == TINY.as_dict()
    assert bits(run.load(1)["model"]) == bits(model(2))


def test_a_fine_tune_of_the_last_layer_writes_the_last_layer(run):
    config = Config.small(vocab_size=1000, n_positions=256)
    made = model(config=config)
    whole = bytes_written(run, lambda: save_to_store(run, 1, made, TOKENIZER, config))
    sizes = {name: tensor.nbytes for name, tensor in made.state_dict().items()}
    assert sum(sizes.values()) <= whole <= sum(sizes.values()) + HEADERS + (64 << 10)
    with torch.no_grad():
        for parameter in made.h[-1].parameters():
            parameter.add_(1)
    tuned = bytes_written(run, lambda: save_to_store(run, 2, made, TOKENIZER, config))
    # Small tensors, and the small files beside them, are always written.
    changed = {name for name in sizes if name.startswith("h.5.") or sizes[name] < SMALL}
    least = sum(sizes[name] for name in changed)
    files = sum(array.nbytes for array in run.load(2)["package"]["files"].values())
    assert least <= tuned <= least + files + HEADERS
    assert tuned < whole / 5
    assert bits(run.load(2)["model"]) == bits(made)


def test_another_checkpoint_is_no_package_and_a_later_one_is_refused(run):
    others = [{"model": {}}, {"package": "box"}, {"package": {"format": "mine"}}, [1, 2]]
    for step, state in enumerate(others):
        assert stored_package(run.save(step, state)) is None
    checkpoint = run.save(9, {"package": {"format": "standfast package 2"}})
    with pytest.raises(errors.UnsupportedFile, match="2"):
        stored_package(checkpoint)


WRONG: list[Any] = [{"config": {}}, {"files": {}}, {"config": [], "files": {}}]
WRONG_FILES: dict[Any, Any] = {
    **dict.fromkeys(["../outside", "manifest.json", 7, "model.safetensors"], np.zeros(1, np.uint8)),
    "training_args.bin": np.zeros(1, np.uint8),
    "tokenizer.json": np.zeros(1, np.float32),
    "dataset.txt": "text",
}


def test_what_no_package_has_is_refused(run):
    wrong = [{"config": {}, "files": {name: file}} for name, file in WRONG_FILES.items()]
    for step, package in enumerate([*WRONG, *wrong]):
        checkpoint = run.save(step, {"package": {"format": "standfast package 1", **package}})
        with pytest.raises(errors.BadField, match="package"):
            stored_package(checkpoint)


@pytest.mark.parametrize("how", ["state dict", "nested", "wrapped", "checkpointer"])
def test_any_checkpoint_with_weights_becomes_a_package(how, run, tmp_path):
    made = model()
    weights: dict[str, Any] = dict(made.state_dict())
    if how == "nested":
        weights["ln_f"] = {"bias": weights.pop("ln_f.bias")}
    elif how == "wrapped":
        weights = {f"module._orig_mod.transformer.{name}": weights[name] for name in weights}
    if how == "checkpointer":
        state = standfast.TrainingState(model=made, optimizer=torch.optim.AdamW(made.parameters()))
        with standfast.Checkpointer(run.store, state, name="gpt") as checkpointer:
            for _ in checkpointer.steps(1):
                checkpointer.step()
        checkpoint = run.store.resolve("gpt@1")
    else:
        checkpoint = run.save(1, {"model": weights, "optimizer": {"moment": torch.ones(5)}})
    export(checkpoint, tmp_path / "package", config=TINY, tokenizer=TOKENIZER)
    assert bits(load_model_folder(tmp_path / "package")[0]) == bits(made)


def test_another_part_the_whole_state_or_a_model_may_be_the_weights(run, tmp_path):
    options: Any = {"config": TINY, "tokenizer": TOKENIZER}
    parts = run.save(1, {"net": model(1).state_dict(), "ema": model(2).state_dict()})
    whole = run.save(2, dict(model(3).state_dict()))
    for checkpoint, part, seed in ((parts, "ema", 2), (whole, None, 3)):
        with pytest.raises(errors.RefNotFound, match="part="):
            export(checkpoint, tmp_path / "package", **options)
        export(checkpoint, tmp_path / str(part), part=part, **options)
        assert bits(load_model_folder(tmp_path / str(part))[0]) == bits(model(seed))
    export(model(4), tmp_path / "of no store", tokenizer=TOKENIZER)
    assert bits(load_model_folder(tmp_path / "of no store")[0]) == bits(model(4))
    weights = {"model.embed_tokens.weight": torch.arange(6.0).reshape(2, 3)}
    options["config"] = {"model_type": "llama"}  # it keeps its names
    export(run.save(3, {"model": weights}), tmp_path / "llama", **options)
    assert bits(standfast.load(tmp_path / "llama" / "model.safetensors")) == bits(weights)


def test_an_output_layer_is_written_once_and_never_lost(run, tmp_path):
    given: Any = {"config": TINY, "tokenizer": TOKENIZER}
    weights = dict(model().state_dict())
    weights["lm_head.weight"] = weights["wte.weight"].clone()
    manifest = export(run.save(1, {"model": weights}), tmp_path / "package", **given)
    assert manifest.model.parameters == sum(each.numel() for each in model().parameters())
    untied = model(config=TINY.changed(tie_word_embeddings=False)).state_dict()
    with pytest.raises(errors.StateMismatch, match="tie_word_embeddings"):
        export(run.save(2, {"model": dict(untied)}), tmp_path / "other", **given)


def test_a_checkpoint_goes_by_a_ref(store, run, tmp_path):
    for step in (1, 2, 3):
        save_to_store(run, step, model(step), TOKENIZER, TINY, best=step == 2)
    run.checkpoint(1).tag("paper")
    for ref, step, place in (
        ("gpt@best", 2, store),
        ("latest", 3, str(tmp_path / "store")),
        ("paper", 1, tmp_path / "store"),
    ):
        export(ref, tmp_path / ref, store=place)
        assert bits(load_model_folder(tmp_path / ref)[0]) == bits(model(step))
    for source, options, error, named in (
        ("gpt@best", {}, errors.BadOption, "store="),
        ("bert", {"store": store}, errors.RefNotFound, "bert"),
        ("gpt", {"store": tmp_path / "nothing"}, errors.NotAStore, "nothing"),
        (7, {"store": store}, errors.BadOption, "int"),
    ):
        with pytest.raises(error, match=named):
            export(source, tmp_path / "package", **options)
    assert not (tmp_path / "package").exists()
    assert not (tmp_path / "nothing").exists()


def test_a_configuration_and_a_tokenizer_may_be_files(run, tmp_path):
    paths: Any = {"config": tmp_path / "config.json", "tokenizer": tmp_path / "tokenizer.json"}
    TINY.save(paths["config"])
    TOKENIZER.save(str(paths["tokenizer"]))
    checkpoint = run.save(1, {"model": model().state_dict()})
    with pytest.raises(errors.BadOption, match="config="):
        export(checkpoint, tmp_path / "package", tokenizer=TOKENIZER)
    for source, options in ((checkpoint, {"config": TINY}), (model(), {})):
        with pytest.raises(errors.BadOption, match="tokenizer="):
            export(source, tmp_path / "package", **options)
    export(checkpoint, tmp_path / "package", **paths)
    _, tokenizer, config, _ = load_model_folder(tmp_path / "package")
    assert (tokenizer.to_str(), config.as_dict()) == (TOKENIZER.to_str(), TINY.as_dict())


def test_what_is_given_goes_before_what_was_saved(run, tmp_path):
    more: Any = {"dataset": DatasetInfo.of_texts(["saved"])}
    more["generation_info"] = GenerationInfo("saved")
    checkpoint = save_to_store(run, 1, model(), TOKENIZER, TINY, **more)
    saved, given = tmp_path / "saved", tmp_path / "given"
    export(checkpoint, saved)
    export(
        checkpoint,
        given,
        config=TINY.changed(resid_pdrop=0.25),
        tokenizer=hugging.byte_level_bpe(290),
        dataset=DatasetInfo.of_texts(["given"]),
    )
    assert (saved / "dataset.txt").read_text() == "saved\n"
    assert (given / "dataset.txt").read_text() == "given\n"
    assert GenerationInfo.load(saved / "generation_info.json").prompt == "saved"
    assert GenerationInfo.load(given / "generation_info.json").prompt == "saved"
    _, tokenizer, config, _ = load_model_folder(given)
    assert (tokenizer.get_vocab_size(), config.resid_pdrop) == (290, 0.25)


def test_checkpoints_that_make_no_sound_package_are_refused(run, tmp_path):
    twice = run.save(1, {"model": {**model(1).state_dict(), "_orig_mod.ln_f.bias": torch.ones(16)}})
    files = {"tokenizer.json": np.frombuffer(b'{"model": 7}', np.uint8)}
    package = {"format": "standfast package 1", "config": TINY.as_dict(), "files": files}
    wrong = run.save(2, {"model": model().state_dict(), "package": package})
    larger = save_to_store(run, 3, model(), TOKENIZER, TINY)
    both = r"'ln_f\.bias'.*'_orig_mod\.ln_f\.bias'"
    for checkpoint, options, error, named in (
        (larger, {"config": TINY.changed(n_layer=3)}, errors.StateMismatch, r"h\.2\.ln_1\.weight"),
        (twice, {"config": TINY, "tokenizer": TOKENIZER}, errors.StateMismatch, both),
        (wrong, {}, errors.BadField, "tokenizer"),
    ):
        with pytest.raises(error, match=named):
            export(checkpoint, tmp_path / "package", **options)
        assert not (tmp_path / "package").exists()


def test_the_manifest_knows_the_checkpoint(run, tmp_path):
    metrics = {"loss": 2.5, "worst": float("nan")}
    checkpoint = save_to_store(run, 7, model(), TOKENIZER, TINY, metrics=metrics, epoch=2)
    manifest = export(checkpoint, tmp_path / "package")
    last = json.loads(record_path(run, 7).read_bytes().splitlines()[-1])
    assert manifest.provenance["checkpoint"] == {
        "store": str(tmp_path / "store"),
        "name": "gpt",
        "run": run.hash,
        "step": 7,
        "epoch": 2,
        "sequence": checkpoint.sequence,
        "time": checkpoint.head.time,
        "metrics": {"loss": 2.5, "worst": {"$float": "7ff8000000000000"}},
        "record": last["digest"],
    }
    assert "python" in manifest.provenance


def test_shards_and_quantized_weights(run, tmp_path):
    made = model()
    checkpoint = save_to_store(run, 1, made, TOKENIZER, TINY)
    sharded = export(checkpoint, tmp_path / "sharded", max_shard_size="10kB")
    assert "model.safetensors.index.json" in sharded.files
    assert bits(load_model_folder(tmp_path / "sharded")[0]) == bits(made)
    export(checkpoint, tmp_path / "small", quantize="int8")
    weight = load_model_folder(tmp_path / "small")[0].wte.weight
    largest = made.wte.weight.abs().amax(1, keepdim=True)
    assert bool(((weight - made.wte.weight).abs() <= largest / 253).all())
    assert not torch.equal(weight, made.wte.weight)


def test_a_damaged_tensor_is_named_and_nothing_left(store, run, tmp_path):
    checkpoint = save_to_store(run, 1, model(), TOKENIZER, TINY)
    for name in ("model.h.1.mlp.c_fc.weight", "package.files.tokenizer.json"):
        flip_in(store, "gpt@1", name)
        with pytest.raises(errors.DigestMismatch, match=name.removeprefix("model.")):
            export(checkpoint, tmp_path / "package")
        flip_in(store, "gpt@1", name)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def _read(checkpoint: Checkpoint, part: str | None = None) -> dict[str, bytes]:
    """What the sources of a checkpoint give, asked for in pieces that end anywhere."""
    found = {}
    with stored_weights(checkpoint, part) as sources:
        for name, source in sources.items():
            out = np.zeros(source.spec.nbytes, np.uint8)
            for start in range(0, out.size, 5_000_001):
                source.copy_to(out[start : start + 5_000_001], start)
            assert source.contiguous() is None
            found[name] = out.tobytes()
    return found


def test_a_tensor_in_several_files_is_put_together(run):
    tensor = chunks(1, 2, 3)[: 2 * CHUNK + 12_345]
    run.save(1, {"x": tensor})
    tensor[CHUNK] ^= 1
    checkpoint = run.save(2, {"x": tensor})
    assert len(checkpoint.head.files) == 2
    assert _read(checkpoint) == {"x": tensor.tobytes()}


def test_views_of_other_tensors_are_read_as_they_were(run):
    base = np.arange(600_000.0).reshape(600, 1000)
    state = {"base": base, "tied": base, "turned": base.T, "rows": base[100:200]}
    expected = {name: np.ascontiguousarray(array).tobytes() for name, array in state.items()}
    assert _read(run.save(1, state)) == expected


def test_after_damage_a_source_does_not_give_what_it_held(store, run):
    state = {"a": chunks(1), "b": chunks(2)}
    checkpoint = run.save(1, state)
    flip_in(store, "gpt@1", "b")
    out = np.zeros(10, np.uint8)
    with stored_weights(checkpoint, None) as sources:
        sources["a"].copy_to(out, 0)
        with pytest.raises(errors.DigestMismatch):
            sources["b"].copy_to(out, 0)
        sources["a"].copy_to(out, 5)
    assert out.tobytes() == state["a"][5:15].tobytes()

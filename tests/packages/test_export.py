"""Packages out of a store: from which checkpoints, with which proof, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast import errors
from standfast.files.digests import CHUNK
from standfast.packages.documents.records import DatasetInfo, GenerationInfo
from standfast.packages.model.config import Config, shapes
from standfast.packages.model.files import load_model_folder
from standfast.packages.store import export, save_to_store, stored_weights
from standfast.store import Checkpoint, Run, Store
from tests.kit.cli import flip_in
from tests.kit.stores import chunks, record_path
from tests.packages import hugging
from tests.packages.stored_models import TINY, bits, model

TOKENIZER = hugging.byte_level_bpe()
WIDE = Config(vocab_size=40_000, n_positions=256, n_embd=1024, n_layer=1, n_head=16)
"""215 MB of weights."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def run(store: Store) -> Run:
    return store.run("gpt")


# From which checkpoints


def test_what_was_saved_comes_out_bit_for_bit(run: Run, tmp_path: Path) -> None:
    made = model()
    checkpoint = save_to_store(run, 1, made, TOKENIZER, TINY)
    export(checkpoint, tmp_path / "package")
    loaded, tokenizer, config, _ = load_model_folder(tmp_path / "package")
    assert bits(loaded) == bits(made)
    assert config.as_dict() == TINY.as_dict()
    assert tokenizer.to_str() == TOKENIZER.to_str()


def _prefixed(run: Run, made: Any) -> Checkpoint:
    state = made.state_dict()
    return run.save(1, {"model": {f"module._orig_mod.transformer.{n}": state[n] for n in state}})


def _by_checkpointer(run: Run, made: Any) -> Checkpoint:
    optimizer = torch.optim.AdamW(made.parameters())
    state = standfast.TrainingState(model=made, optimizer=optimizer)
    with standfast.Checkpointer(run.store, state, name="trained") as checkpointer:
        for _ in checkpointer.steps(1):
            checkpointer.step()
    return run.store.resolve("trained@1")


def _with_an_optimizer(run: Run, made: Any) -> Checkpoint:
    return run.save(1, {"model": made.state_dict(), "optimizer": {"moment": torch.ones(5)}})


def _nested(run: Run, made: Any) -> Checkpoint:
    *_, bias = made.state_dict()
    weights = {n: t for n, t in made.state_dict().items() if n != bias}
    return run.save(1, {"model": {**weights, "ln_f": {"bias": made.state_dict()[bias]}}})


@pytest.mark.parametrize(
    "save",
    [
        pytest.param(_with_an_optimizer, id="state-dict"),
        pytest.param(_by_checkpointer, id="checkpointer"),
        pytest.param(_nested, id="nested"),
        pytest.param(_prefixed, id="wrapped"),
    ],
)
def test_any_checkpoint_with_weights_becomes_a_package(
    save: Callable[[Run, Any], Checkpoint], run: Run, tmp_path: Path
) -> None:
    made = model()
    export(save(run, made), tmp_path / "package", config=TINY, tokenizer=TOKENIZER)
    assert bits(load_model_folder(tmp_path / "package")[0]) == bits(made)


def test_a_state_may_be_the_weights_themselves(run: Run, tmp_path: Path) -> None:
    made = model()
    checkpoint = run.save(1, dict(made.state_dict()))
    with pytest.raises(errors.RefNotFound, match="part=None"):
        export(checkpoint, tmp_path / "package", config=TINY, tokenizer=TOKENIZER)
    export(checkpoint, tmp_path / "package", part=None, config=TINY, tokenizer=TOKENIZER)
    assert bits(load_model_folder(tmp_path / "package")[0]) == bits(made)


def test_another_part_may_be_the_weights(run: Run, tmp_path: Path) -> None:
    checkpoint = run.save(1, {"net": model(1).state_dict(), "ema": model(2).state_dict()})
    with pytest.raises(errors.RefNotFound, match=r"it has net, ema: part= names the weights"):
        export(checkpoint, tmp_path / "package", config=TINY, tokenizer=TOKENIZER)
    export(checkpoint, tmp_path / "package", part="ema", config=TINY, tokenizer=TOKENIZER)
    assert bits(load_model_folder(tmp_path / "package")[0]) == bits(model(2))


def test_a_transformers_model_comes_out_as_ours(run: Run, tmp_path: Path) -> None:
    made = hugging.model()
    save_to_store(run, 1, made, TOKENIZER, made.config)
    export(run.checkpoint(1), tmp_path / "package")
    loaded, *_ = load_model_folder(tmp_path / "package")
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        assert torch.equal(loaded(ids), made(ids).logits)


def test_a_tied_output_layer_is_written_once(run: Run, tmp_path: Path) -> None:
    weights = dict(model().state_dict())
    weights["lm_head.weight"] = weights["wte.weight"].clone()
    manifest = export(
        run.save(1, {"model": weights}), tmp_path / "package", config=TINY, tokenizer=TOKENIZER
    )
    assert manifest.model.parameters == sum(each.numel() for each in model().parameters())


def test_an_output_layer_is_not_lost_to_a_wrong_configuration(run: Run, tmp_path: Path) -> None:
    weights = model(config=TINY.changed(tie_word_embeddings=False)).state_dict()
    checkpoint = run.save(1, {"model": dict(weights)})
    with pytest.raises(errors.StateMismatch, match="set tie_word_embeddings to False"):
        export(checkpoint, tmp_path / "package", config=TINY, tokenizer=TOKENIZER)


def test_a_model_of_another_kind_keeps_its_names(run: Run, tmp_path: Path) -> None:
    weights = {"model.embed_tokens.weight": torch.arange(6.0).reshape(2, 3)}
    export(
        run.save(1, {"model": weights}),
        tmp_path / "package",
        config={"model_type": "llama"},
        tokenizer=TOKENIZER,
    )
    assert bits(standfast.load(tmp_path / "package" / "model.safetensors")) == bits(weights)


def test_a_model_is_exported_without_a_store(tmp_path: Path) -> None:
    made = model()
    export(made, tmp_path / "package", tokenizer=TOKENIZER)
    assert bits(load_model_folder(tmp_path / "package")[0]) == bits(made)


# How a checkpoint is named


def test_a_checkpoint_goes_by_what_refers_to_it(store: Store, run: Run, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_to_store(run, step, model(step), TOKENIZER, TINY, best=step == 2)
    run.checkpoint(1).tag("paper")
    places: list[Store | str | Path] = [store, str(tmp_path / "store"), tmp_path / "store"]
    for (ref, step), place in zip(
        [("gpt@best", 2), ("latest", 3), ("paper", 1)], places, strict=True
    ):
        export(ref, tmp_path / ref, store=place)
        assert bits(load_model_folder(tmp_path / ref)[0]) == bits(model(step))


def test_what_refers_to_nothing_is_refused(store: Store, run: Run, tmp_path: Path) -> None:
    save_to_store(run, 1, model(), TOKENIZER, TINY)
    with pytest.raises(errors.BadOption, match="Give store="):
        export("gpt@best", tmp_path / "package")
    with pytest.raises(errors.RefNotFound, match="'bert'"):
        export("bert", tmp_path / "package", store=store)
    with pytest.raises(errors.NotAStore):
        export("gpt", tmp_path / "package", store=tmp_path / "nothing")
    with pytest.raises(errors.BadOption, match="a int cannot be exported"):
        export(7, tmp_path / "package", store=store)
    assert not (tmp_path / "package").exists()
    assert not (tmp_path / "nothing").exists()


# What the checkpoint does not say


def test_a_missing_configuration_or_tokenizer_is_asked_for(run: Run, tmp_path: Path) -> None:
    checkpoint = run.save(1, {"model": model().state_dict()})
    with pytest.raises(errors.BadOption, match="give config="):
        export(checkpoint, tmp_path / "package", tokenizer=TOKENIZER)
    for source, options in ((checkpoint, {"config": TINY}), (model(), {})):
        with pytest.raises(errors.BadOption, match="give tokenizer="):
            export(source, tmp_path / "package", **options)


def test_both_may_be_paths_of_files(run: Run, tmp_path: Path) -> None:
    TINY.save(tmp_path / "config.json")
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    checkpoint = run.save(1, {"model": model().state_dict()})
    export(
        checkpoint,
        tmp_path / "package",
        config=tmp_path / "config.json",
        tokenizer=tmp_path / "tokenizer.json",
    )
    _, tokenizer, config, _ = load_model_folder(tmp_path / "package")
    assert (tokenizer.to_str(), config.as_dict()) == (TOKENIZER.to_str(), TINY.as_dict())


def test_what_is_given_goes_before_what_was_saved(run: Run, tmp_path: Path) -> None:
    checkpoint = save_to_store(
        run,
        1,
        model(),
        TOKENIZER,
        TINY,
        dataset=DatasetInfo.of_texts(["saved"]),
        generation_info=GenerationInfo("saved"),
    )
    export(checkpoint, tmp_path / "saved")
    other = hugging.byte_level_bpe(290)
    export(
        checkpoint,
        tmp_path / "given",
        config=TINY.changed(resid_pdrop=0.25),
        tokenizer=other,
        dataset=DatasetInfo.of_texts(["given"]),
    )
    saved, given = tmp_path / "saved", tmp_path / "given"
    assert (saved / "dataset.txt").read_text() == "saved\n"
    assert (given / "dataset.txt").read_text() == "given\n"
    assert GenerationInfo.load(saved / "generation_info.json").prompt == "saved"
    assert GenerationInfo.load(given / "generation_info.json").prompt == "saved"
    _, tokenizer, config, _ = load_model_folder(given)
    assert (tokenizer.get_vocab_size(), config.resid_pdrop) == (290, 0.25)


def test_weights_of_another_configuration_are_refused(run: Run, tmp_path: Path) -> None:
    checkpoint = save_to_store(run, 1, model(), TOKENIZER, TINY)
    with pytest.raises(errors.StateMismatch, match=r"'h\.2\.ln_1\.weight' is missing"):
        export(checkpoint, tmp_path / "package", config=TINY.changed(n_layer=3))
    assert not (tmp_path / "package").exists()


def test_two_names_of_one_tensor_are_refused(run: Run, tmp_path: Path) -> None:
    weights = {**model(1).state_dict(), "_orig_mod.ln_f.bias": torch.ones(16)}
    checkpoint = run.save(1, {"model": weights})
    with pytest.raises(errors.StateMismatch, match=r"'ln_f\.bias' and '_orig_mod\.ln_f\.bias'"):
        export(checkpoint, tmp_path / "package", config=TINY, tokenizer=TOKENIZER)


def test_a_stored_tokenizer_that_is_none_is_refused(run: Run, tmp_path: Path) -> None:
    files = {"tokenizer.json": np.frombuffer(b'{"model": 7}', np.uint8)}
    package = {"format": "standfast package 1", "config": TINY.as_dict(), "files": files}
    checkpoint = run.save(1, {"model": model().state_dict(), "package": package})
    with pytest.raises(errors.BadField):
        export(checkpoint, tmp_path / "package")
    assert not (tmp_path / "package").exists()


# What is written


def test_the_manifest_knows_the_checkpoint(run: Run, tmp_path: Path) -> None:
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


def test_shards_and_quantized_weights(run: Run, tmp_path: Path) -> None:
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


# Reading


def test_a_damaged_tensor_is_named_and_leaves_no_folder(
    store: Store, run: Run, tmp_path: Path
) -> None:
    checkpoint = save_to_store(run, 1, model(), TOKENIZER, TINY)
    flip_in(store, "gpt@1", "model.h.1.mlp.c_fc.weight")
    with pytest.raises(errors.DigestMismatch, match=r"h\.1\.mlp\.c_fc\.weight"):
        export(checkpoint, tmp_path / "package")
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


def test_a_tensor_in_several_files_is_put_together(run: Run) -> None:
    tensor = chunks(1, 2, 3)[: 2 * CHUNK + 12_345]
    run.save(1, {"x": tensor})
    tensor[CHUNK] ^= 1
    checkpoint = run.save(2, {"x": tensor})
    assert len(checkpoint.head.files) == 2
    assert _read(checkpoint) == {"x": tensor.tobytes()}


def test_views_of_other_tensors_are_read_as_they_were(run: Run) -> None:
    base = np.arange(600_000.0).reshape(600, 1000)
    state = {"base": base, "tied": base, "turned": base.T, "rows": base[100:200]}
    expected = {name: np.ascontiguousarray(array).tobytes() for name, array in state.items()}
    assert _read(run.save(1, state)) == expected


def test_after_damage_a_source_does_not_give_what_it_held(store: Store, run: Run) -> None:
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


PROGRAM = """
import sys, threading, time
import standfast
from standfast.packages.store import export

def unshared():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return sum(int(status[key].split()[0]) for key in ("RssAnon", "RssShmem"))

store, folder, config, tokenizer = sys.argv[1:]
checkpoint = standfast.Store(store).resolve("gpt@2")
export(standfast.Store(store).resolve("tiny@1"), folder + "-warm")
before, peak, done = unshared(), 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, unshared())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
manifest = export(checkpoint, folder, config=config, tokenizer=tokenizer)
done = True
watcher.join()
print(peak - before, manifest.model.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_export_takes_little_memory(store: Store, run: Run, tmp_path: Path) -> None:
    save_to_store(store.run("tiny"), 1, model(), TOKENIZER, TINY)
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    WIDE.save(tmp_path / "config.json")
    numbers = np.random.default_rng(0).random(4 << 20, np.float32)
    weights = {
        name: np.resize(numbers + at, shape) for at, (name, shape) in enumerate(shapes(WIDE))
    }
    run.save(1, {"model": weights})
    weights["wte.weight"][-1] += 1  # so that it lies in two files
    run.save(2, {"model": weights})
    names = ("store", "package", "config.json", "tokenizer.json")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *(tmp_path / name for name in names)],
        check=True,
        capture_output=True,
        text=True,
    )
    peak, nbytes = map(int, done.stdout.split())
    assert nbytes > 200_000_000
    assert 8 << 10 < peak <= 100 << 10, "KiB"

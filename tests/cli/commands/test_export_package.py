"""`standfast export --package`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from standfast import Store
from standfast.packages.model.files import load_model_folder
from standfast.packages.store import save_to_store
from tests.kit.cli import at, call, flip_in
from tests.packages import hugging
from tests.packages.stored_models import TINY, bits, model

TOKENIZER = hugging.byte_level_bpe()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Run `gpt` with a package as step 1, and weights alone as steps 2 and 3."""
    store = Store(tmp_path / "store")
    with store.run("gpt") as run:
        save_to_store(run, 1, model(1), TOKENIZER, TINY)
        run.save(2, {"model": model(2).state_dict(), "optimizer": {"lr": 0.5}})
        run.save(3, dict(model(3).state_dict()))
    return store


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The options that name a configuration and a tokenizer."""
    TINY.save(tmp_path / "config.json")
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    named = ("--config", tmp_path / "config.json", "--tokenizer", tmp_path / "tokenizer.json")
    return [str(each) for each in named]


def test_a_package_is_written_and_described(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "package"
    done = call("export", "--package", "gpt@1", folder, *at(store))
    assert (done.code, done.err) == (0, "")
    ref = store.resolve("gpt@1").ref
    assert done.lines[0] == (
        f"exported    {folder}: {ref}, 11,904 parameters, 47.6 kB, "
        "each byte verified when it was read"
    )
    listed = [line.split()[0] for line in done.lines[1:]]
    assert listed == sorted(str(path) for path in folder.iterdir() if path.name != "manifest.json")
    assert bits(load_model_folder(folder)[0]) == bits(model(1))


def test_what_the_checkpoint_does_not_say_comes_from_files(
    store: Store, files: list[str], tmp_path: Path
) -> None:
    store.run("gpt").save(4, {"ema": model(4).state_dict(), "optimizer": {"lr": 0.5}})
    shards = ("--part", "ema", "--max-shard-size", "20kB")
    for step, options in ((2, ()), (3, ()), (4, shards)):
        folder = tmp_path / f"step-{step}"
        export = ("export", "--package", f"gpt@{step}", folder, *options)
        assert call(*export, *files, *at(store)).code == 0
        assert (folder / "model.safetensors.index.json").exists() == (step == 4)
        assert bits(load_model_folder(folder)[0]) == bits(model(step))


def test_what_is_missing_is_asked_for_by_its_option(
    store: Store, files: list[str], tmp_path: Path
) -> None:
    done = call("export", "--package", "gpt@2", tmp_path / "package", *at(store))
    assert done.code == 2
    assert "give --config" in done.err
    done = call("export", "--package", "gpt@2", tmp_path / "package", *files[:2], *at(store))
    assert done.code == 2
    assert "give --tokenizer" in done.err
    assert not (tmp_path / "package").exists()


def test_a_quantized_package_shows_what_it_saves_and_costs(store: Store, tmp_path: Path) -> None:
    options = ("--quantize", "int8", *at(store))
    done = call("export", "--package", "gpt@1", tmp_path / "a", *options)
    assert done.code == 0
    assert done.lines[1].startswith("quantized   int8: ")
    assert "for 47.6 kB; the largest error is 0.00" in done.lines[1]
    info = json.loads((tmp_path / "a" / "generation_info.json").read_text())
    done = call("export", "--package", "gpt@1", tmp_path / "b", "--json", *options)
    assert done.json["quantization"] == info["quantization"]
    assert done.json["bytes"] < 20_000
    assert (done.json["parameters"], done.json["dtype"]) == (11_904, "float32")
    assert done.json["files"] == {
        path.name: path.stat().st_size
        for path in (tmp_path / "b").iterdir()
        if path.name != "manifest.json"
    }


def test_a_folder_that_is_there_is_replaced_only_if_told(
    store: Store, files: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "package"
    call("export", "--package", "gpt@1", folder, *at(store))
    done = call("export", "--package", "gpt@2", folder, *files, *at(store))
    assert done.code == 2
    assert "--yes replaces it" in done.err
    assert bits(load_model_folder(folder)[0]) == bits(model(1))
    assert call("export", "--package", "gpt@2", folder, "--yes", *files, *at(store)).code == 0
    assert bits(load_model_folder(folder)[0]) == bits(model(2))


def test_damage_is_named_with_exit_code_1(store: Store, tmp_path: Path) -> None:
    flip_in(store, "gpt@1", "model.wpe.weight")
    done = call("export", "--package", "gpt@1", tmp_path / "package", *at(store))
    assert done.code == 1
    assert "model.wpe.weight" in done.err
    assert not (tmp_path / "package").exists()


def test_options_that_cannot_be_are_refused(store: Store, tmp_path: Path) -> None:
    for options, told in (
        ("--package --format npz", "--cast"),
        ("--package --cast", "--format"),
        ("--quantize int8", "are for --package"),
        ("--max-shard-size 5GB", "are for --package"),
        ("--config config.json", "are for --package"),
        ("--tokenizer tokenizer.json", "are for --package"),
        ("--package --quantize int3", "int8"),
        ("--package --max-shard-size large", "'5GB'"),
        ("--package --part optimizer", "it has model, package: --part names the weights"),
    ):
        done = call("export", "gpt@1", tmp_path / "package", *options.split(), *at(store))
        assert done.code == 2
        assert told in " ".join(done.err.replace("│", " ").split())
        assert not (tmp_path / "package").exists()

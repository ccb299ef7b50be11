"""`standfast export --package`."""

import json
import re
from pathlib import Path

import pytest

from standfast import Store
from standfast.packages.model.files import load_model_folder
from standfast.packages.store import save_to_store
from tests.kit.cli import flip_in
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


def test_a_package_is_written_and_described(store, cli, tmp_path):
    folder = tmp_path / "package"
    done = cli("export", "--package", "gpt@1", folder)
    assert (done.code, done.err) == (0, "")
    ref = store.resolve("gpt@1").ref
    assert done.lines[0].startswith(f"exported    {folder}: {ref}, 11,904 parameters, 47.6 kB, ")
    listed = [line.split()[0] for line in done.lines[1:]]
    assert listed == sorted(str(path) for path in folder.iterdir() if path.name != "manifest.json")
    assert bits(load_model_folder(folder)[0]) == bits(model(1))


def test_what_the_checkpoint_does_not_say_comes_from_files(store, cli, files, tmp_path):
    store.run("gpt").save(4, {"ema": model(4).state_dict(), "optimizer": {"lr": 0.5}})
    shards = ("--part", "ema", "--max-shard-size", "20kB")
    for step, options in ((2, ()), (3, ()), (4, shards)):
        folder = tmp_path / f"step-{step}"
        assert cli("export", "--package", f"gpt@{step}", folder, *options, *files).code == 0
        assert (folder / "model.safetensors.index.json").exists() == (step == 4)
        assert bits(load_model_folder(folder)[0]) == bits(model(step))
    for given, missing in (([], "--config"), (files[:2], "--tokenizer")):
        cli("export", "--package", "gpt@2", tmp_path / "package", *given).fails(2, missing)
        assert not (tmp_path / "package").exists()


def test_a_quantized_package_shows_what_it_saves_and_costs(cli, tmp_path):
    done = cli("export", "--package", "gpt@1", tmp_path / "a", "--quantize", "int8")
    assert done.code == 0
    assert re.match(r"quantized   int8: .* for 47\.6 kB; .* 0\.00", done.lines[1])
    info = json.loads((tmp_path / "a" / "generation_info.json").read_text())
    done = cli("export", "--package", "gpt@1", tmp_path / "b", "--json", "--quantize", "int8")
    assert done.json["quantization"] == info["quantization"]
    assert done.json["bytes"] < 20_000
    assert (done.json["parameters"], done.json["dtype"]) == (11_904, "float32")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "b").iterdir()}
    assert done.json["files"] == {name: sizes[name] for name in sizes if name != "manifest.json"}


def test_a_folder_is_replaced_only_with_yes(store, cli, files, tmp_path):
    folder = tmp_path / "package"
    cli("export", "--package", "gpt@1", folder)
    replacing = ("export", "--package", "gpt@2", folder, *files)
    cli(*replacing).fails(2, "--yes")
    assert bits(load_model_folder(folder)[0]) == bits(model(1))
    assert cli(*replacing, "--yes").code == 0
    assert bits(load_model_folder(folder)[0]) == bits(model(2))
    flip_in(store, "gpt@1", "model.wpe.weight")
    cli("export", "--package", "gpt@1", tmp_path / "damaged").fails(1, "model.wpe.weight")
    assert not (tmp_path / "damaged").exists()


def test_options_that_make_no_sense_are_refused(cli, tmp_path):
    for options, told in (
        *(("--package --format npz", "--cast"), ("--package --cast", "--format")),
        *(("--quantize int8", "--package"), ("--max-shard-size 5GB", "--package")),
        *(("--config config.json", "--package"), ("--tokenizer tokenizer.json", "--package")),
        *(("--package --quantize int3", "int8"), ("--package --max-shard-size large", "'5GB'")),
        ("--package --part optimizer", "--part"),
    ):
        cli("export", "gpt@1", tmp_path / "package", *options.split()).fails(2, told)
        assert not (tmp_path / "package").exists()

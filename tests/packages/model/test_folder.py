"""A package is written whole, read whole, and nothing else in its folder is lost."""

import itertools
import json
import os
import pickle
import shutil
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import standfast
from standfast import errors
from standfast.packages import (
    GPT,
    REQUIRED_FILES,
    Config,
    DatasetInfo,
    GenerationInfo,
    export,
    load_model_folder,
    load_model_mmaped,
    save_model_folder,
    save_to_store,
    verify_package,
)
from standfast.packages.documents.manifest import Manifest, git_state, program_folder
from tests.kit.stores import flip, overwrite
from tests.packages import hugging
from tests.packages.stored_models import TINY, bits, check_refused, model


def save(folder: Any, made: Any = 1, config: Any = TINY, **options: Any) -> Manifest:
    """A package of a model, or of that of a number."""
    made = model(made) if isinstance(made, int) else made
    return save_model_folder(made, hugging.byte_level_bpe(), config, folder, **options)


def verified_map(folder: Path) -> Any:
    return load_model_mmaped(folder, verify=True)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with everything in it."""
    dataset = DatasetInfo.of_texts(["one text", "another text"])
    info = GenerationInfo(prompt="recipes", model_size="tiny")
    folder = tmp_path_factory.mktemp("original") / "recipes_20261116_120000"
    save(folder, dataset=dataset, generation_info=info)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may break."""
    return Path(shutil.copytree(original, tmp_path / original.name))


OPTIONAL = ("generation_info.json", "dataset.json", "dataset.txt", "tokenizer_config.json")


def test_a_package_has_all_its_files_and_comes_back(folder):
    files = {path.name for path in folder.iterdir()}
    assert files == {*REQUIRED_FILES, *OPTIONAL, "manifest.json"}
    loaded, tokenizer, config, state = load_model_folder(folder)
    assert bits(loaded) == bits(model(1))
    assert tokenizer.to_str() == hugging.byte_level_bpe().to_str()
    assert config == TINY
    assert state["wte.weight"] is loaded.wte.weight
    assert not loaded.training
    assert DatasetInfo.load(folder / "dataset.json").samples[1].text == "another text"
    assert GenerationInfo.load(folder / "generation_info.json").prompt == "recipes"
    assert "another text" in (folder / "dataset.txt").read_text()


def test_json_is_indented_and_its_keys_are_sorted(folder):
    for path in folder.glob("*.json"):
        if path.name != "tokenizer.json":
            text = path.read_text()
            again = json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
            assert text == again + "\n", path


def test_what_is_written_to_the_weights_stays_in_memory(folder):
    before = (folder / "model.safetensors").read_bytes()
    loaded, *_ = load_model_folder(folder)
    with torch.no_grad():
        loaded.wte.weight.zero_()
    assert (folder / "model.safetensors").read_bytes() == before
    assert bits(load_model_folder(folder)[0]) == bits(model(1))


def test_a_model_says_whether_it_was_verified(folder):
    assert f"loaded from {folder}, verified" in repr(load_model_folder(folder)[0])
    assert f"loaded from {folder}, not verified" in repr(load_model_folder(folder, verify=False)[0])
    assert f"mapped from {folder}, not verified" in repr(load_model_mmaped(folder)[0])
    assert f"mapped from {folder}, verified" in repr(load_model_mmaped(folder, verify=True)[0])
    (folder / "manifest.json").unlink()
    with pytest.warns(errors.NotVerified):
        loaded, *_ = load_model_folder(folder)
    assert "only its weights verified" in repr(loaded)


def test_a_package_saved_again_replaces_the_old_one_and_nothing_else(folder):
    (folder / "README.md").write_text("mine")
    save(folder, 2, max_shard_size=2000)
    assert bits(load_model_folder(folder)[0]) == bits(model(2))
    assert (folder / "README.md").read_text() == "mine"
    assert not (folder / "model.safetensors").exists()
    assert not (folder / "dataset.json").exists()  # it was the other model's
    assert verify_package(folder).uncovered == ("README.md",)
    assert os.listdir(folder.parent) == [folder.name]


def test_folders_above_are_made_and_those_of_others_are_not_replaced(tmp_path):
    save(tmp_path / "models" / "gpt" / "a", 0)
    assert verify_package(tmp_path / "models" / "gpt" / "a").tensors == 28
    (tmp_path / "file").write_text("text")
    with pytest.raises(errors.WriteFailed, match="file"):
        save(tmp_path / "file" / "a", 0)
    (tmp_path / "work" / "src").mkdir(parents=True)
    with pytest.raises(errors.AlreadyExists, match="src"):
        save(tmp_path / "work", 0)
    assert os.listdir(tmp_path / "work") == ["src"]


def test_what_cannot_be_saved_leaves_nothing(tmp_path):
    relu = hugging.config(activation_function="relu")
    for made, config, options, error in (
        (1, TINY, {"quantize": "int3"}, errors.BadOption),
        (1, TINY, {"max_shard_size": "many"}, errors.BadOption),
        (1, TINY, {"dataset": ["a"]}, errors.BadOption),
        (1, TINY, {"generation_info": {"prompt": "a"}}, errors.BadOption),
        (1, 5, {}, errors.BadOption),
        (model(1).state_dict(), None, {}, errors.BadOption),
        (1, TINY.changed(n_layer=3), {}, errors.StateMismatch),
        (1, TINY.changed(n_head=4), {}, errors.StateMismatch),
        (1, {"model_type": "llama"}, {}, errors.StateMismatch),
        (hugging.model(1), relu, {}, errors.StateMismatch),
        ({}, {"model_type": "other"}, {}, errors.StateMismatch),
    ):
        with pytest.raises(error):
            save(tmp_path / "package", made, config, **options)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", REQUIRED_FILES)
def test_a_file_that_is_missing_is_named(folder, name):
    (folder / name).unlink()
    check_refused(folder, errors.MissingFile, name, load_model_folder)
    check_refused(folder / "nowhere", errors.MissingFile, "nowhere", load_model_folder)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "dataset.txt", "generation_info.json"]
)
def test_a_file_that_is_damaged_is_named(folder, name):
    flip(folder / name, 10)
    check_refused(folder, errors.DigestMismatch, name)


def test_a_tensor_that_is_damaged_is_named(folder):
    flip(folder / "model.safetensors")
    for check in (load_model_folder, verify_package):
        with pytest.raises(errors.DigestMismatch, match=r"model\.safetensors") as caught:
            check(folder)
        assert caught.value.tensors == ("ln_f.bias",)
    assert bits(load_model_folder(folder, verify=False)[0]) != bits(model(1))


def test_everything_that_is_damaged_is_named_at_once(folder):
    save(folder, max_shard_size=5000)
    for path in sorted(folder.glob("model-*"))[:2]:
        flip(path)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(errors.DigestMismatch) as caught:
        verify_package(folder)
    for name in ("model-00001-of", "model-00002-of", "tokenizer_config.json"):
        assert name in str(caught.value)
    assert len(caught.value.tensors) == 2


def test_files_that_do_not_belong_together_are_found_out(folder, tmp_path):
    save(tmp_path / "other", 2)
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(manifest.replace('"gpt2"', '"gpt3"'))
    check_refused(folder, errors.IndexMismatch, r"manifest\.json")
    (folder / "manifest.json").write_text(manifest)
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    check_refused(folder, errors.IndexMismatch, r"model\.safetensors")
    shutil.rmtree(folder)
    save(folder, max_shard_size=5000)
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    check_refused(folder, errors.MissingData, r"model\.safetensors", load_model_folder)


def test_an_index_that_leads_elsewhere_is_refused(tmp_path):
    save(tmp_path, max_shard_size=5000)
    (tmp_path / "manifest.json").unlink()
    path = tmp_path / "model.safetensors.index.json"
    sound = json.loads(path.read_text())["weight_map"]
    for name in ("../model-00001-of-00001.safetensors", "model-00001-of-00001.bin", "a/b", ""):
        path.write_text(json.dumps({"weight_map": sound | {"wpe.weight": name}}))
        check_refused(tmp_path, errors.StandfastError, path.name, load_model_folder)
    swapped = {"wte.weight": sound["ln_f.bias"], "ln_f.bias": sound["wte.weight"]}
    path.write_text(json.dumps({"weight_map": sound | swapped}))
    check_refused(tmp_path, errors.MissingData, r"'ln_f\.bias'", load_model_folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "notes.txt"])
def test_a_link_out_of_the_folder_is_refused(folder, tmp_path, name):
    (folder / name).touch()
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    check_refused(folder, errors.UnsupportedFile, name)


def test_a_link_within_the_folder_is_as_good_as_a_file(folder):
    (folder / "circle").symlink_to("circle")
    (folder / "config.json").rename(folder / "c.json")
    (folder / "config.json").symlink_to("c.json")
    assert bits(load_model_folder(folder)[0]) == bits(model(1))
    (folder / "c.json").unlink()
    (folder / "c.json").symlink_to("config.json")
    check_refused(folder, errors.MissingFile, r"config\.json", load_model_folder)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("training_args", torch.save),
        ("training_args", partial(torch.save, _use_new_zipfile_serialization=False)),
        ("training_args", lambda value, path: path.write_bytes(pickle.dumps(value))),
        ("model.safetensors", torch.save),
    ],
    ids=["torch.save", "torch.save of old", "pickle", "weights"],
)
def test_a_pickle_in_the_folder_is_refused_and_never_run(folder, name, write):
    mark = folder.parent / "run"

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    if name == "model.safetensors":
        (folder / "manifest.json").unlink()
    write({"a": Evil()}, folder / name)
    check_refused(folder, errors.RefusedPickle, name, load_model_folder, load_model_mmaped)
    if name != "model.safetensors":
        assert bits(load_model_folder(folder, ignore_pickles=True)[0]) == bits(model(1))
    assert not mark.exists()


@pytest.mark.filterwarnings("ignore::standfast.errors.NotVerified")
def test_weights_of_another_configuration_are_refused(folder):
    (folder / "manifest.json").unlink()
    for changes, named in (
        ({"n_layer": 3}, "h.2.ln_1.weight"),
        ({"n_layer": 1}, "h.1.ln_1.weight"),
        ({"n_layer": 16000}, "h.2.ln_1.weight"),
        ({"vocab_size": 299}, "wte.weight"),
        ({"tie_word_embeddings": False}, "lm_head.weight"),
    ):
        TINY.changed(**changes).save(folder / "config.json")
        check_refused(folder, errors.StateMismatch, named, load_model_folder)


def test_the_manifest_tells_where_the_package_came_from(folder):
    manifest = Manifest.read(folder)
    libraries = manifest.provenance["libraries"]
    assert libraries["torch"] == version("torch")
    assert libraries["tokenizers"]
    assert manifest.provenance.get("git") == git_state(program_folder())
    assert manifest.model.parameters == sum(p.numel() for p in model().parameters())
    assert manifest.model.type == "gpt2"


def test_a_quantized_package_comes_back_nearly(tmp_path):
    config = TINY.changed(n_embd=128)
    exact = model(1, config)
    folder = tmp_path / "package"
    manifest = save(folder, exact, config, quantize="int8")
    loaded, *_ = load_model_folder(folder)
    report = GenerationInfo.load(folder / "generation_info.json").quantization
    assert report is not None
    pairs = zip(exact.parameters(), loaded.parameters(), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) == report["largest_error"] > 0
    assert report["nbytes_before"] > 3 * report["nbytes_after"] == 3 * manifest.model.nbytes
    assert (folder / "model.int8.safetensors").stat().st_size < report["nbytes_before"] / 2
    assert manifest.model.quantization == "int8"
    assert verify_package(folder).tensors == len(exact.state_dict()) + 10
    with pytest.raises(OSError, match=r"model\.safetensors"):
        hugging.transformers().GPT2LMHeadModel.from_pretrained(folder)


def test_a_configuration_is_taken_from_the_model(tmp_path):
    save(tmp_path / "ours", GPT(TINY), None)
    assert Config.load(tmp_path / "ours" / "config.json") == TINY
    save(tmp_path / "theirs", hugging.model(1), None)
    said = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert said["architectures"] == ["GPT2LMHeadModel"]


@pytest.mark.parametrize("how", ["once", "each time", "its weights, each time"])
def test_a_package_that_is_replaced_is_not_mixed_up(folder, tmp_path, how, seams):
    save(tmp_path / "other", 2)
    weights = (tmp_path / "other" / "model.safetensors").read_bytes()
    turns = itertools.count()

    def opened(call: Any, path: Any, *more: Any, **options: Any) -> Any:
        if path == folder / "tokenizer.json" and (next(turns) == 0 or how != "once"):
            if how == "its weights, each time":
                overwrite(folder / "model.safetensors", weights)
            else:
                save(folder, 2)
        return call(path, *more, **options)

    seams.system(os, open=opened)
    if how == "once":
        assert bits(load_model_folder(folder)[0]) == bits(model(2))
    else:
        with pytest.raises(errors.ChangedFile):
            load_model_folder(folder)


@pytest.mark.filterwarnings("ignore::standfast.errors.NotVerified")
def test_what_lies_at_odd_places_is_moved_to_where_torch_would_put_it(tmp_path):
    theirs = hugging.save(hugging.model(1, n_embd=6), tmp_path / "theirs")
    hugging.byte_level_bpe().save(str(theirs / "tokenizer.json"))
    mapped, _ = load_model_mmaped(theirs)
    assert any(parameter.data_ptr() % 64 for parameter in mapped.parameters())
    loaded, *_ = load_model_folder(theirs)
    assert not any(parameter.data_ptr() % 64 for parameter in loaded.parameters())


def test_of_our_own_packages_only_small_tensors_are_moved(tmp_path):
    config = TINY.changed(n_embd=24, n_layer=1)  # its biases are no multiples of 64 bytes
    save(tmp_path / "package", model(1, config), config)
    loaded, *_ = load_model_folder(tmp_path / "package")
    maps = Path("/proc/self/maps").read_text().splitlines()
    (line,) = (line for line in maps if str(tmp_path / "package" / "model.safetensors") in line)
    start, stop = (int(each, 16) for each in line.split()[0].split("-"))
    for parameter in loaded.parameters():
        assert parameter.data_ptr() % 64 == 0
        assert start <= parameter.data_ptr() < stop or parameter.ndim == 1


def test_loading_leaves_no_page_of_the_weights_in_memory(tmp_path):
    config = TINY.changed(n_embd=256, n_layer=3)
    save(tmp_path / "package", model(1, config), config)
    loaded, *_ = load_model_folder(tmp_path / "package")
    lines = Path("/proc/self/smaps").read_text().splitlines()
    path = str(tmp_path / "package/model.safetensors")
    sizes = {"Size:": 0, "Rss:": 0}
    for at in (at for at, line in enumerate(lines) if line.endswith(path)):
        for what, size in (line.split()[:2] for line in lines[at + 1 : at + 5]):
            if what in sizes:
                sizes[what] += int(size)
    assert sizes["Size:"] > 8_000
    assert sizes["Rss:"] < 1000
    assert bits(loaded) == bits(model(1, config))


def test_tied_weights_of_another_model_are_saved_under_both_names(tmp_path):
    weight = torch.rand(4, 3)
    tied = {"embed.weight": weight, "head.weight": weight, "module.weight": torch.ones(2, 2)}
    save(tmp_path / "package", tied, {"model_type": "other"})
    saved = standfast.load(tmp_path / "package" / "model.safetensors", framework="torch")
    assert bits(saved) == bits(tied)
    with pytest.raises(errors.UnsupportedFile, match="'other'"):
        load_model_folder(tmp_path / "package")


def test_what_is_mapped_is_checked_as_what_is_loaded(folder, tmp_path):
    other = tmp_path / "other"
    save(other, 2)
    (folder / "tokenizer.json").unlink()  # which it does not need
    load_model_mmaped(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(other / "model.safetensors")
    check_refused(folder, errors.UnsupportedFile, "model", load_model_mmaped)
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    check_refused(other, errors.TrailingBytes, r"config\.json.*manifest\.json", verified_map)
    (other / "config.json").unlink()
    check_refused(other, errors.MissingFile, r"config\.json", load_model_mmaped)


def test_a_file_that_is_called_as_pickles_are_is_refused(folder):
    (folder / "train.bin").write_bytes(bytes(1000))
    (folder / "notes.BIN").write_bytes(bytes(1000))
    load_model_folder(folder)
    for name in ("model.PT", "training_args.bin", "pytorch_model-00001.bin"):
        (folder / name).write_bytes(b"text")
        check_refused(folder, errors.RefusedPickle, name, load_model_folder)
        (folder / name).unlink()


def test_wrapped_models_are_unwrapped(tmp_path):
    prefixes = ("module.", "_orig_mod.", "module._orig_mod.transformer.")
    states = [{f"{prefix}{n}": t for n, t in model(1).state_dict().items()} for prefix in prefixes]
    compiled = torch.compile(model(1), backend="eager")
    for wrapped in (*states, torch.nn.DataParallel(model(1)), compiled):
        save(tmp_path / "package", wrapped, TINY if isinstance(wrapped, dict) else None)
        assert bits(load_model_folder(tmp_path / "package")[0]) == bits(model(1))


def test_a_device_that_is_not_there_is_refused(folder):
    with pytest.raises(errors.BadOption, match="cuda"):
        load_model_folder(folder, device="cuda")


def test_a_path_may_be_bytes_and_a_package_says_the_rest(folder, tmp_path):
    save_model_folder(model(2), folder, folder, os.fsencode(tmp_path / "other"))
    loaded, tokenizer, config, _ = load_model_folder(os.fsencode(tmp_path / "other"))
    assert bits(loaded) == bits(model(2))
    assert tokenizer.to_str() == hugging.byte_level_bpe().to_str()
    assert config == TINY


@pytest.mark.parametrize("load", [load_model_folder, verified_map])
def test_a_missing_optional_file_is_reported_and_the_model_loads(folder, load):
    for count, name in enumerate(OPTIONAL, 1):
        (folder / name).unlink()
        with pytest.warns(errors.NotVerified) as caught:
            loaded, *_ = load(folder)
        (warning,) = caught
        assert warning.filename == __file__
        assert all(each in str(warning.message) for each in OPTIONAL[:count])
        assert bits(loaded) == bits(model(1))
        error = errors.MissingData if count == 1 else errors.DigestMismatch  # for several files
        with pytest.raises(error, match=name):
            verify_package(folder)


def test_a_package_that_fails_gives_no_warning(folder, recwarn):
    (folder / "manifest.json").unlink()
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text()[:-10])
    check_refused(folder, errors.BadField, r"tokenizer\.json", load_model_folder)
    (folder / "config.json").write_text("{")
    check_refused(folder, errors.BadField, r"config\.json", load_model_folder, verified_map)
    assert recwarn.list == []


def test_the_configuration_that_comes_back_equals_the_one_that_was_saved(tmp_path):
    for config in (
        TINY,
        TINY.changed(tie_word_embeddings=False, eos_token_id=[1, 2], bos_token_id=0),
        TINY.changed(others={"task": {"a": [1, None]}, "architectures": ["Mine"]}),
    ):
        save(tmp_path, model(1, config), config)
        assert load_model_folder(tmp_path)[2] == config


@pytest.mark.parametrize("added", [[], ["<|a|>", "<|b|>"]])
def test_a_tokenizer_beyond_the_vocabulary_is_refused(tmp_path, added):
    tokenizer = hugging.byte_level_bpe(300 - len(added) + 1)
    tokenizer.add_tokens(added)
    size = tokenizer.get_vocab_size()
    exact = TINY.changed(vocab_size=size)
    save_model_folder(model(1, exact), tokenizer, exact, tmp_path / "exact")
    small = TINY.changed(vocab_size=size - 1)
    run = standfast.Store(tmp_path / "store").run("gpt")
    stored = run.save(1, {"model": model(1, small).state_dict()})
    for save_small in (
        lambda: save_model_folder(model(1, small), tokenizer, small, tmp_path / "small"),
        lambda: save_to_store(run, 2, model(1, small), tokenizer, small),
        lambda: export(stored, tmp_path / "small", config=small, tokenizer=tokenizer),
    ):
        with pytest.raises(errors.StateMismatch, match="vocab_size"):
            save_small()
    assert run.checkpoints() == [stored]
    assert not (tmp_path / "small").exists()

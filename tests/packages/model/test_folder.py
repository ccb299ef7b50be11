"""A package is written whole, read whole, and nothing else in its folder is lost."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
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
from standfast.packages.documents.tokenizer import read_tokenizer
from standfast.packages.model import files
from tests.kit.stores import flip
from tests.packages import hugging
from tests.packages.stored_models import TINY, bits, model


def save(folder: Any, made: Any = 1, config: Any = TINY, **options: Any) -> Manifest:
    """A package of a model, or of that of a number."""
    made = model(made) if isinstance(made, int) else made
    return save_model_folder(made, hugging.byte_level_bpe(), config, folder, **options)


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


def test_a_package_has_all_its_files_and_comes_back(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        *REQUIRED_FILES,
        "tokenizer_config.json",
        "generation_info.json",
        "dataset.json",
        "dataset.txt",
        "manifest.json",
    }
    loaded, tokenizer, config, state = load_model_folder(folder)
    assert bits(loaded) == bits(model(1))
    assert tokenizer.to_str() == hugging.byte_level_bpe().to_str()
    assert config == TINY
    assert state["wte.weight"] is loaded.wte.weight
    assert not loaded.training
    assert DatasetInfo.load(folder / "dataset.json").samples[1].text == "another text"
    assert GenerationInfo.load(folder / "generation_info.json").prompt == "recipes"
    assert "another text" in (folder / "dataset.txt").read_text()


def test_json_is_indented_and_its_keys_are_sorted(folder: Path) -> None:
    for path in folder.glob("*.json"):
        if path.name != "tokenizer.json":
            text = path.read_text()
            again = json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
            assert text == again + "\n", path


def test_what_is_written_to_the_weights_stays_in_memory(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    loaded, *_ = load_model_folder(folder)
    with torch.no_grad():
        loaded.wte.weight.zero_()
    assert (folder / "model.safetensors").read_bytes() == before
    assert bits(load_model_folder(folder)[0]) == bits(model(1))


def test_a_model_says_whether_it_was_verified(folder: Path) -> None:
    assert f"loaded from {folder}, verified" in repr(load_model_folder(folder)[0])
    assert f"loaded from {folder}, not verified" in repr(load_model_folder(folder, verify=False)[0])
    assert f"mapped from {folder}, not verified" in repr(load_model_mmaped(folder)[0])
    assert f"mapped from {folder}, verified" in repr(load_model_mmaped(folder, verify=True)[0])
    (folder / "manifest.json").unlink()
    with pytest.warns(errors.NotVerified, match="only its weights were verified"):
        loaded, *_ = load_model_folder(folder)
    assert "only its weights verified" in repr(loaded)


def test_a_package_saved_again_replaces_the_old_one_and_nothing_else(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    save(folder, 2, max_shard_size=2000)
    assert bits(load_model_folder(folder)[0]) == bits(model(2))
    assert (folder / "README.md").read_text() == "mine"
    assert not (folder / "model.safetensors").exists()
    assert not (folder / "dataset.json").exists()  # it was the other model's
    assert verify_package(folder).uncovered == ("README.md",)
    assert os.listdir(folder.parent) == [folder.name]


def test_a_folder_of_others_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "work" / "src").mkdir(parents=True)
    with pytest.raises(errors.AlreadyExists, match="src"):
        save(tmp_path / "work", 0)
    assert os.listdir(tmp_path / "work") == ["src"]


def test_the_folders_above_a_package_are_made(tmp_path: Path) -> None:
    save(tmp_path / "models" / "gpt" / "a", 0)
    assert verify_package(tmp_path / "models" / "gpt" / "a").tensors == 28
    (tmp_path / "file").write_text("text")
    with pytest.raises(errors.WriteFailed, match="file"):
        save(tmp_path / "file" / "a", 0)


UNSAVED: dict[str, tuple[Callable[[Path], object], type[errors.StandfastError]]] = {
    "scheme": (lambda path: save(path, quantize="int3"), errors.BadOption),
    "shards": (lambda path: save(path, max_shard_size="many"), errors.BadOption),
    "no configuration": (lambda path: save(path, 1, 5), errors.BadOption),
    "none of a mapping": (lambda path: save(path, model(1).state_dict(), None), errors.BadOption),
    "layers": (lambda path: save(path, 1, TINY.changed(n_layer=3)), errors.StateMismatch),
    "heads": (lambda path: save(path, 1, TINY.changed(n_head=4)), errors.StateMismatch),
    "another model": (lambda path: save(path, 1, {"model_type": "llama"}), errors.StateMismatch),
    "activation": (
        lambda path: save(path, hugging.model(1), hugging.config(activation_function="relu")),
        errors.StateMismatch,
    ),
    "no weights": (lambda path: save(path, {}, {"model_type": "other"}), errors.StateMismatch),
    "data set": (lambda path: save(path, dataset=["a"]), errors.BadOption),
    "information": (lambda path: save(path, generation_info={"prompt": "a"}), errors.BadOption),
}


@pytest.mark.parametrize("name", UNSAVED)
def test_what_cannot_be_saved_leaves_nothing(name: str, tmp_path: Path) -> None:
    action, error = UNSAVED[name]
    with pytest.raises(error):
        action(tmp_path / "package")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", REQUIRED_FILES)
def test_a_file_that_is_missing_is_named(folder: Path, name: str) -> None:
    """The seed: `return Err(anyhow!("Model file not found: {}", path.display()));`."""
    (folder / name).unlink()
    with pytest.raises(errors.MissingFile, match=name.replace(".", r"\.")):
        load_model_folder(folder)
    with pytest.raises(errors.MissingFile, match="nowhere"):
        load_model_folder(folder / "nowhere")


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "dataset.txt", "generation_info.json"]
)
def test_a_file_that_is_damaged_is_named(folder: Path, name: str) -> None:
    flip(folder / name, 10)
    for check in (load_model_folder, verify_package):
        with pytest.raises(errors.DigestMismatch, match=name.replace(".", r"\.")):
            check(folder)


def test_a_tensor_that_is_damaged_is_named(folder: Path) -> None:
    flip(folder / "model.safetensors")
    for check in (load_model_folder, verify_package):
        with pytest.raises(
            errors.DigestMismatch, match=r"model\.safetensors.*'ln_f\.bias'"
        ) as caught:
            check(folder)
        assert caught.value.tensors == ("ln_f.bias",)
    assert bits(load_model_folder(folder, verify=False)[0]) != bits(model(1))


def test_everything_that_is_damaged_is_named_at_once(folder: Path) -> None:
    save(folder, max_shard_size=5000)
    for path in sorted(folder.glob("model-*"))[:2]:
        flip(path)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(errors.DigestMismatch) as caught:
        verify_package(folder)
    for name in ("model-00001-of", "model-00002-of", "tokenizer_config.json", "3 files"):
        assert name in str(caught.value)
    assert len(caught.value.tensors) == 2


def test_the_whole_file_of_another_model_is_found_out(folder: Path, tmp_path: Path) -> None:
    save(tmp_path / "other", 2)
    os.replace(tmp_path / "other" / "model.safetensors", folder / "model.safetensors")
    for check in (load_model_folder, verify_package):
        with pytest.raises(errors.IndexMismatch, match=r"model\.safetensors"):
            check(folder)


def test_a_damaged_manifest_is_found_out(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"gpt2"', '"gpt3"'))
    for check in (load_model_folder, verify_package):
        with pytest.raises(errors.IndexMismatch, match=r"manifest\.json"):
            check(folder)


def test_a_shard_that_came_later_is_not_trusted(folder: Path) -> None:
    save(folder, max_shard_size=5000)
    whole = folder.parent / "whole"
    save(whole, 2)
    os.replace(whole / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(errors.MissingData, match=r"does not name model\.safetensors"):
        load_model_folder(folder)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "model-00001-of-00001.bin", "a/b", ""]
)
def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    package = tmp_path / "package"
    save(package, max_shard_size=5000)
    (package / "manifest.json").unlink()
    path = package / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["wpe.weight"] = name
    path.write_text(json.dumps(index))
    with pytest.raises(errors.StandfastError, match=r"model\.safetensors\.index\.json"):
        load_model_folder(package)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "notes.txt"])
def test_a_link_that_leads_out_of_the_folder_is_refused(
    folder: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "outside").mkdir()
    target = tmp_path / "outside" / name
    if (folder / name).exists():
        os.replace(folder / name, target)
    else:
        target.write_text("text")
    (folder / name).symlink_to(target)
    for check in (load_model_folder, verify_package):
        with pytest.raises(errors.UnsupportedFile, match=f"{name} is a link"):
            check(folder)


def test_a_link_within_the_folder_is_as_good_as_a_file(folder: Path) -> None:
    os.rename(folder / "config.json", folder / "c.json")
    (folder / "config.json").symlink_to("c.json")
    assert bits(load_model_folder(folder)[0]) == bits(model(1))


@pytest.mark.parametrize("how", ["torch.save", "torch.save of old", "pickle", "by name"])
def test_a_pickle_in_the_folder_is_refused_and_never_run(folder: Path, how: str) -> None:
    import pickle

    mark = folder.parent / "run"

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    if how == "pickle":
        (folder / "notes").write_bytes(pickle.dumps(Evil()))
    elif how == "by name":
        (folder / "pytorch_model.bin").write_bytes(b"")
    else:
        old = {"_use_new_zipfile_serialization": False} if how.endswith("old") else {}
        torch.save({"a": Evil()}, folder / "training_args", **old)
    with pytest.raises(errors.RefusedPickle, match="is a pickle"):
        load_model_folder(folder)
    assert bits(load_model_folder(folder, ignore_pickles=True)[0]) == bits(model(1))
    assert not mark.exists()


def test_weights_that_are_a_pickle_are_refused(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    torch.save(model(1).state_dict(), folder / "model.safetensors")
    for load in (load_model_folder, load_model_mmaped):
        with pytest.raises(errors.RefusedPickle, match=r"model\.safetensors"):
            load(folder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_layer": 3}, "h.2.ln_1.weight"),
        ({"n_layer": 1}, "h.1.ln_1.weight"),
        ({"n_layer": 16000}, "h.2.ln_1.weight"),
        ({"vocab_size": 299}, "wte.weight"),
        ({"tie_word_embeddings": False}, "lm_head.weight"),
    ],
)
@pytest.mark.filterwarnings("ignore::standfast.errors.NotVerified")
def test_weights_of_another_configuration_are_refused(
    folder: Path, changes: dict[str, Any], named: str
) -> None:
    (folder / "manifest.json").unlink()
    TINY.changed(**changes).save(folder / "config.json")
    with pytest.raises(errors.StateMismatch, match=named):
        load_model_folder(folder)


def test_the_manifest_tells_where_the_package_came_from(folder: Path) -> None:
    manifest = Manifest.read(folder)
    assert manifest is not None
    libraries = manifest.provenance["libraries"]
    assert libraries["torch"] == version("torch")
    assert libraries["tokenizers"]
    assert manifest.provenance.get("git") == git_state(program_folder())
    assert manifest.model.parameters == sum(p.numel() for p in model().parameters())
    assert manifest.model.type == "gpt2"


def test_a_quantized_package_comes_back_nearly(tmp_path: Path) -> None:
    config = TINY.changed(n_embd=128)
    exact = model(1, config)
    folder = tmp_path / "package"
    manifest = save(folder, exact, config, quantize="int8")
    loaded, *_ = load_model_folder(folder)
    report = GenerationInfo.load(folder / "generation_info.json").quantization
    assert report is not None
    largest = max(
        float((a - b).detach().abs().max())
        for a, b in zip(exact.parameters(), loaded.parameters(), strict=True)
    )
    assert largest == report["largest_error"] > 0
    assert report["nbytes_before"] > 3 * report["nbytes_after"] == 3 * manifest.model.nbytes
    assert (folder / "model.int8.safetensors").stat().st_size < report["nbytes_before"] / 2
    assert manifest.model.quantization == "int8"
    assert verify_package(folder).tensors == len(exact.state_dict()) + 10
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        hugging.transformers().GPT2LMHeadModel.from_pretrained(folder)


def test_a_configuration_is_taken_from_the_model(tmp_path: Path) -> None:
    save(tmp_path / "ours", GPT(TINY), None)
    assert Config.load(tmp_path / "ours" / "config.json") == TINY
    save(tmp_path / "theirs", hugging.model(1), None)
    said = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert said["architectures"] == ["GPT2LMHeadModel"]


def test_a_package_that_is_replaced_while_it_is_read_is_not_mixed_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(path: Path) -> Any:
        save(folder, 2)
        return read_tokenizer(path)

    monkeypatch.setattr(files, "read_tokenizer", slowly)
    with pytest.raises(errors.ChangedFile, match="replaced all the time"):
        load_model_folder(folder)
    replacements = iter([model(3)])

    def once(path: Path) -> Any:
        for other in replacements:
            save(folder, other)
        return read_tokenizer(path)

    monkeypatch.setattr(files, "read_tokenizer", once)
    assert bits(load_model_folder(folder)[0]) == bits(model(3))


@pytest.mark.filterwarnings("ignore::standfast.errors.NotVerified")
def test_what_lies_at_odd_places_is_moved_to_where_torch_would_put_it(tmp_path: Path) -> None:
    theirs = hugging.save(hugging.model(1, n_embd=6), tmp_path / "theirs")
    hugging.byte_level_bpe().save(str(theirs / "tokenizer.json"))
    mapped, _ = load_model_mmaped(theirs)
    assert any(parameter.data_ptr() % 64 for parameter in mapped.parameters())
    loaded, *_ = load_model_folder(theirs)
    assert not any(parameter.data_ptr() % 64 for parameter in loaded.parameters())


def test_of_our_own_packages_only_small_tensors_are_moved(tmp_path: Path) -> None:
    config = TINY.changed(n_embd=24, n_layer=1)  # its biases are no multiples of 64 bytes
    save(tmp_path / "package", model(1, config), config)
    loaded, *_ = load_model_folder(tmp_path / "package")
    maps = Path("/proc/self/maps").read_text().splitlines()
    (line,) = (line for line in maps if str(tmp_path / "package" / "model.safetensors") in line)
    start, stop = (int(each, 16) for each in line.split()[0].split("-"))
    for parameter in loaded.parameters():
        assert parameter.data_ptr() % 64 == 0
        assert start <= parameter.data_ptr() < stop or parameter.ndim == 1


def test_a_tensor_that_is_in_another_shard_than_the_index_says_is_missing(folder: Path) -> None:
    save(folder, max_shard_size=5000)
    (folder / "manifest.json").unlink()
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    places = index["weight_map"]
    places["wte.weight"], places["ln_f.bias"] = places["ln_f.bias"], places["wte.weight"]
    path.write_text(json.dumps(index))
    with pytest.raises(errors.MissingData, match=r"'ln_f\.bias' is missing"):
        load_model_folder(folder)


def test_loading_leaves_no_page_of_the_weights_in_memory(tmp_path: Path) -> None:
    config = TINY.changed(n_embd=512, n_layer=3)
    save(tmp_path / "package", model(1, config), config)
    loaded, *_ = load_model_folder(tmp_path / "package")
    lines = Path("/proc/self/smaps").read_text().splitlines()
    path = str(tmp_path / "package/model.safetensors")
    sizes = dict.fromkeys(("Size", "Rss"), 0)
    for at in (at for at, line in enumerate(lines) if line.endswith(path)):
        for what, size in (line.split()[:2] for line in lines[at + 1 : at + 5]):
            if what[:-1] in sizes:
                sizes[what[:-1]] += int(size)
    assert sizes["Size"] > 30_000
    assert sizes["Rss"] < 1000
    assert bits(loaded) == bits(model(1, config))


def test_what_shares_its_memory_in_another_model_is_saved_under_both_names(tmp_path: Path) -> None:
    weight = torch.rand(4, 3)
    tied = {"embed.weight": weight, "head.weight": weight}
    save(tmp_path / "package", tied, {"model_type": "other"})
    saved = standfast.load(tmp_path / "package" / "model.safetensors", framework="torch")
    assert torch.equal(saved["embed.weight"], weight)
    assert torch.equal(saved["head.weight"], weight)
    with pytest.raises(errors.UnsupportedFile, match="'other'"):
        load_model_folder(tmp_path / "package")


def test_what_is_mapped_from_a_folder_is_checked_as_what_is_loaded(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    save(other, 2)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(errors.RefusedPickle):
        load_model_mmaped(folder)
    (folder / "pytorch_model.bin").unlink()
    (folder / "tokenizer.json").unlink()  # which it does not need
    load_model_mmaped(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(other / "model.safetensors")
    with pytest.raises(errors.UnsupportedFile, match="is a link"):
        load_model_mmaped(folder)
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    with pytest.raises(errors.TrailingBytes, match=r"config\.json.* remove manifest\.json"):
        load_model_mmaped(other, verify=True)
    (other / "config.json").unlink()
    with pytest.raises(errors.MissingFile, match=r"config\.json"):
        load_model_mmaped(other)


def test_a_file_that_takes_the_place_of_another_meanwhile_is_found_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "other", 2)

    def late(*arguments: Any) -> None:
        shutil.copy(tmp_path / "other" / "model.safetensors", folder / "new")
        os.replace(folder / "new", folder / "model.safetensors")

    monkeypatch.setattr(files, "_check_files", late)
    with pytest.raises(errors.ChangedFile):
        load_model_folder(folder)


def test_a_link_in_a_circle_and_a_file_that_nobody_may_read_are_no_crash(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "circle").symlink_to("circle")
    assert bits(load_model_folder(folder)[0]) == bits(model(1))
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    with pytest.raises(errors.MissingFile, match=r"config\.json"):
        load_model_folder(folder)


@pytest.mark.parametrize(
    ("name", "content", "is_refused"),
    [
        ("train.bin", bytes(1000), False),
        ("notes.BIN", bytes(1000), False),
        ("model.PT", b"text", True),
        ("training_args.bin", b"text", True),
        ("pytorch_model-00001.bin", b"text", True),
    ],
)
def test_a_file_that_is_called_as_pickles_are_is_refused(
    folder: Path, name: str, content: bytes, is_refused: bool
) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(errors.RefusedPickle, match=name) if is_refused else nullcontext():
        load_model_folder(folder)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.transformer."])
def test_names_of_wrapped_models_are_unwrapped(tmp_path: Path, prefix: str) -> None:
    save(tmp_path / "package", {f"{prefix}{n}": t for n, t in model(1).state_dict().items()})
    assert bits(load_model_folder(tmp_path / "package")[0]) == bits(model(1))


def test_wrapped_models_are_unwrapped(tmp_path: Path) -> None:
    compiled = torch.compile(model(1), backend="eager")
    for wrapped in (torch.nn.DataParallel(model(1)), compiled):
        save(tmp_path / "package", wrapped, None)
        assert bits(load_model_folder(tmp_path / "package")[0]) == bits(model(1))


def test_a_module_called_module_keeps_its_name(tmp_path: Path) -> None:
    state = {"module.weight": torch.ones(2, 2), "head.weight": torch.ones(2, 2)}
    tokenizer = hugging.byte_level_bpe()
    save_model_folder(state, tokenizer, {"model_type": "other"}, tmp_path / "package")
    assert standfast.load(tmp_path / "package" / "model.safetensors").keys() == state.keys()


def test_a_device_that_is_not_there_is_an_error_of_ours(folder: Path) -> None:
    with pytest.raises(errors.BadOption, match="cuda"):
        load_model_folder(folder, device="cuda")


def test_a_path_may_be_bytes_and_another_package_says_the_rest(
    folder: Path, tmp_path: Path
) -> None:
    save_model_folder(model(2), folder, folder, os.fsencode(tmp_path / "other"))
    loaded, tokenizer, config, _ = load_model_folder(os.fsencode(tmp_path / "other"))
    assert bits(loaded) == bits(model(2))
    assert tokenizer.to_str() == hugging.byte_level_bpe().to_str()
    assert config == TINY


OPTIONAL = ("generation_info.json", "dataset.json", "dataset.txt", "tokenizer_config.json")


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize(
    "load", [load_model_folder, lambda path: load_model_mmaped(path, verify=True)]
)
def test_a_missing_optional_file_is_reported_and_the_model_loads(
    folder: Path, name: str, load: Any
) -> None:
    """The seed: "5. Load tokenizer / 6. Optionally load metadata"."""
    (folder / name).unlink()
    with pytest.warns(errors.NotVerified, match=f"without {name}, ".replace(".", r"\.")) as caught:
        loaded, *_ = load(folder)
    assert len(caught) == 1
    assert bits(loaded) == bits(model(1))
    with pytest.raises(errors.MissingData, match=name.replace(".", r"\.")):
        verify_package(folder)


def test_all_missing_optional_files_are_reported_at_once(folder: Path) -> None:
    for name in OPTIONAL:
        (folder / name).unlink()
    with pytest.warns(errors.NotVerified) as caught:
        load_model_folder(folder)
    (warning,) = caught
    assert warning.filename == __file__
    assert all(name in str(warning.message) for name in OPTIONAL)


def test_a_warning_says_that_a_package_was_loaded_only_if_it_was(
    folder: Path, recwarn: pytest.WarningsRecorder
) -> None:
    (folder / "manifest.json").unlink()
    text = (folder / "tokenizer.json").read_text()
    for name, wrong in (("tokenizer.json", text[:-10]), ("config.json", "{")):
        (folder / name).write_text(wrong)
        for load in (load_model_folder, lambda path: load_model_mmaped(path, verify=True)):
            if name == "config.json" or load is load_model_folder:
                with pytest.raises(errors.BadField, match=name.replace(".", r"\.")):
                    load(folder)
    assert recwarn.list == []


def test_the_configuration_that_comes_back_equals_the_one_that_was_saved(tmp_path: Path) -> None:
    """The seed, under "Round-trip Test": "assert_eq!(config.n_embd, cfg2.n_embd);"."""
    for number, config in enumerate(
        (
            TINY,
            TINY.changed(tie_word_embeddings=False, eos_token_id=[1, 2], bos_token_id=0),
            TINY.changed(others={"task": {"a": [1, None]}, "architectures": ["Mine"]}),
        )
    ):
        folder = tmp_path / str(number)
        save(folder, model(1, config), config)
        assert load_model_folder(folder)[2] == config


@pytest.mark.parametrize("added", [[], ["<|a|>", "<|b|>"]])
def test_a_tokenizer_larger_than_the_vocabulary_is_refused(
    tmp_path: Path, added: list[str]
) -> None:
    """The seed: `pub fn save_model_folder(varmap, tokenizer, config, folder) -> Result<()>`."""
    tokenizer = hugging.byte_level_bpe(300 - len(added) + 1)
    tokenizer.add_tokens(added)
    size = tokenizer.get_vocab_size()
    exact = TINY.changed(vocab_size=size)
    save_model_folder(model(1, exact), tokenizer, exact, tmp_path / "exact")
    small = TINY.changed(vocab_size=size - 1)
    with pytest.raises(errors.StateMismatch, match=rf"{size - 1}.*vocab_size is {size - 1}"):
        save_model_folder(model(1, small), tokenizer, small, tmp_path / "small")
    run = standfast.Store(tmp_path / "store").run("gpt")
    with pytest.raises(errors.StateMismatch, match="vocab_size"):
        save_to_store(run, 1, model(1, small), tokenizer, small)
    assert run.checkpoints() == []
    run.save(1, {"model": model(1, small).state_dict()})
    with pytest.raises(errors.StateMismatch, match="vocab_size"):
        export(run.checkpoint("latest"), tmp_path / "small", config=small, tokenizer=tokenizer)
    assert not (tmp_path / "small").exists()

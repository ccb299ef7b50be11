"""`list_saved_models`: the newest first, broken ones as broken, whatever lies in the folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.packages.documents.manifest import Manifest
from standfast.packages.documents.names import is_package
from standfast.packages.documents.records import GenerationInfo
from standfast.packages.listing import ModelInfo, list_saved_models
from tests.packages.saved_packages import (
    CONFIG,
    PARAMETERS,
    TENSORS,
    make_foreign,
    make_package,
    rewrite_manifest,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    info = GenerationInfo("recipes", "small", creation_date="2026-03-01T12:00:00+00:00")
    return make_package(tmp_path_factory.mktemp("original") / "recipes", info)


@pytest.fixture
def package(original: Path, tmp_path: Path) -> Path:
    """One that a test may break."""
    return Path(shutil.copytree(original, tmp_path / "recipes"))


def only(models_dir: Path) -> ModelInfo:
    [info] = list_saved_models(models_dir)
    return info


def names(models_dir: Path) -> list[str]:
    return [info.name for info in list_saved_models(models_dir)]


def test_a_package_is_whole_and_described(package: Path) -> None:
    files = sorted(package.iterdir())
    assert only(package.parent) == ModelInfo(
        name="recipes",
        path=package,
        creation_date=datetime(2026, 3, 1, 12, tzinfo=UTC),
        files=tuple(file.name for file in files),
        nbytes=sum(file.stat().st_size for file in files),
        model_type="gpt2",
        model_size="small",
        parameters=PARAMETERS,
        dtype="float32",
        integrity="whole",
    )


def test_a_folder_that_is_a_package_is_the_only_one(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert only(package).name == "recipes"
    monkeypatch.chdir(package)
    assert only(Path()).name == "recipes"


@pytest.mark.parametrize("options", [{"max_shard_size": 1000}, {"quantize": "int8"}], ids=str)
def test_shards_and_quantized_weights_count_as_many_parameters(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = make_package(tmp_path / "model", **options)
    for integrity in ("whole", "unverified"):
        info = only(tmp_path)
        assert (info.integrity, info.problem) == (integrity, "")
        assert (info.parameters, info.dtype) == (PARAMETERS, "float32")
        assert info.quantization == options.get("quantize")
        (folder / "manifest.json").unlink(missing_ok=True)


def test_a_foreign_package_is_unverified_and_its_parameters_are_counted(tmp_path: Path) -> None:
    mask = np.zeros((1, 1, 8, 8), bool)
    make_foreign(tmp_path / "gpt2", TENSORS | {"h.0.attn.bias": mask})
    info = only(tmp_path)
    assert (info.integrity, info.problem) == ("unverified", "")
    assert (info.model_type, info.parameters, info.dtype) == ("gpt2", PARAMETERS, "float32")
    assert info.model_size is None


def test_only_folders_of_models_are_listed(tmp_path: Path, original: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a folder")
    (tmp_path / "empty").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.json").write_text("{}")
    shutil.copytree(original, tmp_path / ".hidden")
    shutil.copytree(original, tmp_path / ".recipes.1a2b3c4d.standfast")
    shutil.copytree(original, tmp_path / "recipes")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "nothing").symlink_to("gone")
    assert names(tmp_path) == ["recipes"]


def test_a_manifest_of_another_program_hides_no_packages(tmp_path: Path, original: Path) -> None:
    shutil.copytree(original, tmp_path / "recipes")
    (tmp_path / "manifest.json").write_text('{"name": "web application"}')
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "manifest.json").write_text("{}")
    assert names(tmp_path) == ["recipes"]


@pytest.mark.parametrize(
    ("kept", "is_one"),
    [
        ("manifest.json", False),
        ("config.json", False),
        ("tokenizer.json", False),
        ("dataset.json", False),
        ("manifest.json config.json", True),
        ("manifest.json tokenizer.json", True),
        ("config.json tokenizer.json", True),
        ("manifest.json model.safetensors", True),
        ("manifest.json model-00001-of-00002.safetensors", True),
        ("model.safetensors", True),
        ("model.int8.safetensors", True),
        ("model.safetensors.index.json", True),
    ],
)
def test_two_files_or_weights_make_a_package(kept: str, is_one: bool) -> None:
    assert is_package(kept.split()) == is_one


def test_an_empty_folder_has_no_models(tmp_path: Path) -> None:
    assert list_saved_models(tmp_path) == []


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingFile, match=r"there is no folder .*models"):
        list_saved_models(tmp_path / "models")
    (tmp_path / "models").write_text("")
    with pytest.raises(errors.UnreadableFile, match=r"cannot list .*models"):
        list_saved_models(tmp_path / "models")


# Dates


def dated(folder: Path, date: Any) -> None:
    make_foreign(folder)
    if date is not None:
        (folder / "generation_info.json").write_text(json.dumps({"creation_date": date}))


def test_the_newest_is_first_and_equal_ones_are_by_name(tmp_path: Path) -> None:
    dated(tmp_path / "b", "2026-01-01T00:00:00+00:00")
    dated(tmp_path / "a", "2026-01-01T01:00:00+01:00")
    dated(tmp_path / "newest", "2026-01-01T00:00:00-01:00")
    dated(tmp_path / "oldest", "2025-12-31T23:59:59Z")
    assert names(tmp_path) == ["newest", "a", "b", "oldest"]


@pytest.mark.parametrize(
    ("name", "date", "expected"),
    [
        ("m_20240123_143022", "2026-01-01T12:00:00+00:00", "2026-01-01T12:00:00+00:00"),
        ("m", "2024-01-23 14:30:22.123456789 UTC", "2024-01-23T14:30:22.123456+00:00"),
        ("m", "2026-01-01T12:00:00", "2026-01-01T12:00:00"),
        ("m_20240123_143022", None, "2024-01-23T14:30:22"),
        ("m_20240123_143022", "some day", "2024-01-23T14:30:22"),
        ("m_20240123_143022", 20240123, "2024-01-23T14:30:22"),
        ("m_20249923_143022", "", "2001-09-09T01:46:40+00:00"),
        ("m", None, "2001-09-09T01:46:40+00:00"),
        ("m", "0001-01-01", "2001-09-09T01:46:40+00:00"),
    ],
)
def test_the_date_is_that_of_the_information_then_the_name_then_the_file(
    tmp_path: Path, name: str, date: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")  # the first day of all began before it did elsewhere
    time.tzset()
    try:
        dated(tmp_path / name, date)
        for file in (tmp_path / name).iterdir():
            os.utime(file, (1e9, 1e9))
        info = only(tmp_path)
        assert info.integrity == "unverified"
        assert info.creation_date.tzinfo is not None
        assert info.creation_date == datetime.fromisoformat(expected).astimezone()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_copy_is_as_old_as_its_manifest_says(tmp_path: Path) -> None:
    folder = make_package(tmp_path / "copied")
    created = json.loads((folder / "manifest.json").read_text())["created"]
    for file in folder.iterdir():
        os.utime(file, (1e9, 1e9))
    assert only(tmp_path).creation_date == datetime.fromisoformat(created)


# Broken ones

Break = Callable[[Path], object]


def edited(name: str, change: Callable[[bytes], bytes]) -> Break:
    def edit(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return edit


def cut(name: str, count: int = 1) -> Break:
    return edited(name, lambda data: data[:-count])


def flipped(name: str, at: int) -> Break:
    return edited(name, lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def removed(name: str) -> Break:
    return lambda folder: (folder / name).unlink()


def replaced_by(name: str, content: bytes) -> Break:
    return lambda folder: (folder / name).write_bytes(content)


def linked(target: str) -> Break:
    def link(folder: Path) -> None:
        (folder / "config.json").rename(folder.parent / "elsewhere.json")
        (folder / "config.json").symlink_to(target)

    return link


def made_a_pipe(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def added_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    places = dict.fromkeys(TENSORS, "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def said(**changes: Any) -> Break:
    return lambda folder: rewrite_manifest(folder, **changes)


WEIGHTS, INFORMATION = "model.safetensors", "generation_info.json"
BROKEN: dict[str, tuple[Break, str]] = {
    "no config": (removed("config.json"), "config.json is missing"),
    "no tokenizer": (removed("tokenizer.json"), "tokenizer.json is missing"),
    "no weights": (removed(WEIGHTS), "model.safetensors is missing"),
    "config changed": (flipped("config.json", 100), "config.json is damaged: its bytes"),
    "config cut": (cut("config.json", 9), "config.json has "),
    "tokenizer cut": (cut("tokenizer.json"), "tokenizer.json has "),
    "weights cut": (cut(WEIGHTS), "model.safetensors has "),
    "weights longer": (edited(WEIGHTS, lambda data: data + b"0"), "model.safetensors"),
    "header changed": (flipped(WEIGHTS, 200), "model.safetensors is damaged: its header"),
    "header too long": (
        edited(WEIGHTS, lambda d: b"\xff" * 8 + d[8:]),
        "model.safetensors: it ends",
    ),
    "manifest changed": (flipped("manifest.json", 30), "manifest.json: "),
    "manifest cut": (cut("manifest.json", 50), "manifest.json: "),
    "manifest empty": (replaced_by("manifest.json", b""), "manifest.json: "),
    "information cut": (cut(INFORMATION, 9), "generation_info.json: "),
    "link out": (linked("../elsewhere.json"), "config.json is a link that leads out of the folder"),
    "link to nothing": (linked("nothing.json"), "config.json is a link to a file that is missing"),
    "pipe": (made_a_pipe, "config.json has 0 bytes"),
    "too many parameters": (said(parameters=10**400), "manifest.json: model or created: "),
    "less than no parameters": (said(parameters=-1), "manifest.json: model or created: "),
    "too many bytes": (said(nbytes=1 << 63), "manifest.json: model or created: "),
    "weights added": (added_weights, "manifest.json does not name model-00001-of-00001"),
}
BROKEN_FOREIGN: dict[str, tuple[Break, str]] = {
    "no config": (removed("config.json"), "config.json is missing"),
    "no tokenizer": (removed("tokenizer.json"), "tokenizer.json is missing"),
    "no weights": (removed(WEIGHTS), "model.safetensors is missing"),
    "weights cut": (cut(WEIGHTS), "model.safetensors: "),
    "weights empty": (replaced_by(WEIGHTS, b""), "model.safetensors: the file has 0"),
    "a pickle": (replaced_by(WEIGHTS, b"\x80\x05N." * 9), "model.safetensors: "),
    "config cut": (cut("config.json", 9), "config.json: not the JSON"),
    "config a list": (replaced_by("config.json", b"[]"), "config.json: expected a JSON object"),
    "config of a number": (replaced_by("config.json", b'{"model_type": 3}'), "config.json: model"),
    "information a list": (replaced_by(INFORMATION, b"[1]"), "generation_info.json: expected a"),
}


@pytest.mark.parametrize(
    ("is_ours", "how"),
    [*((True, how) for how in BROKEN), *((False, how) for how in BROKEN_FOREIGN)],
)
def test_a_broken_package_is_listed_with_the_reason(
    is_ours: bool, how: str, original: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "recipes"
    act, problem = (BROKEN if is_ours else BROKEN_FOREIGN)[how]
    act(Path(shutil.copytree(original, folder)) if is_ours else make_foreign(folder))
    info = only(tmp_path)
    assert (info.name, info.integrity) == ("recipes", "broken")
    assert info.problem.startswith(problem)
    assert list_saved_models(folder) == [info]


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def sharded(folder: Path, changes: dict[str, str]) -> None:
    """A foreign package in two shards, whose index says what is changed in it."""
    make_foreign(folder)
    (folder / "model.safetensors").unlink()
    first = dict(list(TENSORS.items())[:4])
    second = dict(list(TENSORS.items())[4:])
    for shard, tensors in zip(SHARDS, (first, second), strict=True):
        standfast.save(folder / shard, tensors, extras=False)
    places = {name: SHARDS[name not in first] for name in TENSORS} | changes
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_shards_of_others_are_counted_together(tmp_path: Path) -> None:
    sharded(tmp_path / "gpt2", {})
    assert (only(tmp_path).integrity, only(tmp_path).parameters) == ("unverified", PARAMETERS)


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    sharded(tmp_path / "gpt2", {})
    (tmp_path / "gpt2" / SHARDS[1]).unlink()
    assert only(tmp_path).problem.startswith(f"{SHARDS[1]} is missing")


def test_shards_without_all_else_are_broken(tmp_path: Path) -> None:
    sharded(tmp_path / "gpt2", {})
    (tmp_path / "gpt2" / "model.safetensors.index.json").unlink()
    assert only(tmp_path).problem.startswith("model.safetensors is missing")
    (tmp_path / "gpt2" / "config.json").unlink()
    assert only(tmp_path).problem == "config.json is missing"


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    sharded(tmp_path / "gpt2", {"wte.weight": SHARDS[1]})
    assert only(tmp_path).problem.startswith(f"{SHARDS[1]} lacks the tensor 'wte.weight'")


def test_a_shard_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    sharded(tmp_path / "gpt2", {"wte.weight": "../model-00001-of-00002.safetensors"})
    assert only(tmp_path).integrity == "broken"
    assert "not the name of a shard" in only(tmp_path).problem


def test_a_folder_that_nobody_may_read_is_broken(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path) == package:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    info = only(package.parent)
    assert (info.integrity, info.parameters) == ("broken", None)
    assert info.problem.endswith("Permission denied")


def test_a_file_that_nobody_may_read_is_broken(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("model.safetensors"):
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    assert only(package.parent).problem == "cannot open model.safetensors: Permission denied"


def test_damage_inside_of_large_files_is_left_to_verify(package: Path) -> None:
    edited(WEIGHTS, lambda data: data[:-1] + b"x")(package)
    assert only(package.parent).integrity == "whole"


# Replaced while they are read


@pytest.fixture
def exchange(package: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets another package take the place of the one while it is read, so many times."""
    other = make_package(package.parent / ".other", config=CONFIG.changed(n_layer=2))
    real, left = Manifest.read, [0]

    def read(folder: Path) -> Manifest | None:
        manifest = real(folder)
        if left[0]:
            left[0] -= 1
            package.rename(other.with_name(".aside"))
            other.rename(package)
            other.with_name(".aside").rename(other)
        return manifest

    monkeypatch.setattr(Manifest, "read", read)
    return lambda times: left.__setitem__(0, times)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_package_that_is_replaced_meanwhile_is_looked_at_again(
    package: Path, exchange: Callable[[int], None], times: int
) -> None:
    now, other = only(package), only(package.parent / ".other")
    for folder in (package, package.parent):
        exchange(times)
        info = only(folder)
        assert (info.integrity, info.problem) == ("whole", "")
        now, other = (other, now) if times % 2 else (now, other)
        assert info.parameters == now.parameters
        assert info.creation_date == now.creation_date


def test_a_package_that_is_replaced_all_the_time_is_not_called_broken(
    package: Path, exchange: Callable[[int], None]
) -> None:
    exchange(1000)
    info = only(package.parent)
    assert info.integrity == "unverified"
    assert "is replaced all the time" in info.problem


def test_a_package_that_is_replaced_while_its_names_are_read_is_listed(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Path(shutil.copytree(package, package.parent / ".old"))
    real, seen = os.scandir, []

    def scandir(path: Any) -> Any:
        if Path(path) == package and not seen:
            seen.append(path)
            package.rename(package.parent / ".new")
            old.rename(package)
            return real(package.parent / ".empty")  # what is left of the old one this moment
        return real(path)

    (package.parent / ".empty").mkdir()
    monkeypatch.setattr(os, "scandir", scandir)
    assert only(package.parent).integrity == "whole"
    seen.clear()
    package.rename(old)
    (package.parent / ".new").rename(package)
    assert only(package).integrity == "whole"


# Speed


def test_a_thousand_packages_are_listed_in_a_second(tmp_path: Path) -> None:
    config = CONFIG.changed(n_layer=12)
    original = make_package(tmp_path / "original", GenerationInfo("recipes", "small"), config)
    files = list(original.iterdir())
    for number in range(1000):
        folder = tmp_path / "models" / f"recipes_{number}"
        folder.mkdir(parents=True)
        for file in files:
            os.link(file, folder / file.name)
    times = []
    for _ in range(3):
        # The time of this process: what others do on the machine is not counted.
        started = time.process_time()
        found = list_saved_models(tmp_path / "models")
        times.append(time.process_time() - started)
        assert {info.integrity for info in found} == {"whole"}
        assert len(found) == 1000
    assert min(times) < 1.0


def test_a_list_and_the_versions_of_libraries_take_no_framework(original: Path) -> None:
    program = (
        "import sys; from standfast.packages import list_saved_models; "
        "from standfast.packages.documents.manifest import provenance; provenance(); "
        f"assert list_saved_models({str(original)!r})[0].integrity == 'whole'; "
        "print(*{'torch', 'transformers', 'tokenizers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_a_folder_with_the_name_of_a_package_is_broken_if_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "recipes_20261116_120000").mkdir()
    (found,) = list_saved_models(tmp_path)
    assert found.integrity == "broken"
    assert "config.json is missing" in found.problem

"""`list_saved_models`: the newest first, broken ones as broken, whatever lies in the folder."""

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
from standfast.packages.documents.records import GenerationInfo
from standfast.packages.listing import ModelInfo, list_saved_models
from tests.kit.seams import Seams
from tests.kit.stores import flip
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


def test_a_package_is_whole_and_described(package, monkeypatch):
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
    assert only(package).name == "recipes"
    monkeypatch.chdir(package)
    assert only(Path()).name == "recipes"


@pytest.mark.parametrize("options", [{"max_shard_size": 1000}, {"quantize": "int8"}], ids=str)
def test_shards_and_quantized_weights_are_counted(tmp_path, options):
    folder = make_package(tmp_path / "model", **options)
    for integrity in ("whole", "unverified"):
        info = only(tmp_path)
        assert (info.integrity, info.problem) == (integrity, "")
        assert (info.parameters, info.dtype) == (PARAMETERS, "float32")
        assert info.quantization == options.get("quantize")
        (folder / "manifest.json").unlink(missing_ok=True)


def test_a_foreign_package_is_unverified_and_its_parameters_are_counted(tmp_path):
    mask = np.zeros((1, 1, 8, 8), bool)
    make_foreign(tmp_path / "gpt2", TENSORS | {"h.0.attn.bias": mask})
    info = only(tmp_path)
    assert (info.integrity, info.problem) == ("unverified", "")
    assert (info.model_type, info.parameters, info.dtype) == ("gpt2", PARAMETERS, "float32")
    assert info.model_size is None


def test_only_folders_of_models_are_listed(tmp_path, original):
    assert list_saved_models(tmp_path) == []
    (tmp_path / "notes.txt").write_text("not a folder")
    (tmp_path / "manifest.json").write_text('{"name": "web application"}')
    (tmp_path / "empty").mkdir()
    for folder, file in (("data", "config.json"), ("site", "manifest.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text("{}")
    for name in (".hidden", ".recipes.1a2b3c4d.standfast", "recipes"):
        shutil.copytree(original, tmp_path / name)
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "nothing").symlink_to("gone")
    assert names(tmp_path) == ["recipes"]
    (tmp_path / "recipes_20261116_120000").mkdir()  # which has the name of a package
    (found,) = (info for info in list_saved_models(tmp_path) if info.name != "recipes")
    assert found.integrity == "broken"
    assert "config.json" in found.problem


@pytest.mark.parametrize(
    ("kept", "is_one"),
    [
        ("manifest.json", False),
        ("config.json", False),
        ("manifest.json config.json", True),
        ("config.json tokenizer.json", True),
        ("manifest.json model-00001-of-00002.safetensors", True),
        ("model.safetensors", True),
        ("model.int8.safetensors", True),
        ("model.safetensors.index.json", True),
    ],
)
def test_two_files_or_weights_make_a_package(tmp_path, kept, is_one):
    (tmp_path / "m").mkdir()
    for name in kept.split():
        (tmp_path / "m" / name).touch()
    assert names(tmp_path) == ["m"] * is_one


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(errors.MissingFile, match="models"):
        list_saved_models(tmp_path / "models")
    (tmp_path / "models").write_text("")
    with pytest.raises(errors.UnreadableFile, match="models"):
        list_saved_models(tmp_path / "models")


def dated(folder: Path, date: Any) -> None:
    make_foreign(folder)
    if date is not None:
        (folder / "generation_info.json").write_text(json.dumps({"creation_date": date}))


def test_the_newest_is_first_and_equal_ones_are_by_name(tmp_path):
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
        ("m", "0001-01-01", "2001-09-09T01:46:40+00:00"),
    ],
)
def test_the_date_is_that_of_the_information_then_the_name_then_the_file(
    tmp_path, name, date, expected, monkeypatch
):
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
        folder = make_package(tmp_path / "copied")  # which is as old as its manifest says
        for file in folder.iterdir():
            os.utime(file, (1e9, 1e9))
        created = json.loads((folder / "manifest.json").read_text())["created"]
        assert only(folder).creation_date == datetime.fromisoformat(created)
    finally:
        monkeypatch.undo()
        time.tzset()


Break = Callable[[Path], object]


def edited(change: Callable[[bytes], bytes]) -> Break:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def flipped(at: int) -> Break:
    return lambda path: flip(path, at)


def linked(target: str) -> Break:
    def link(path: Path) -> None:
        path.rename(path.parent.parent / "elsewhere.json")
        path.symlink_to(target)

    return link


def made_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def said(**changes: Any) -> Break:
    return lambda path: rewrite_manifest(path.parent, **changes)


CUT, EMPTY = edited(lambda data: data[:-9]), edited(lambda _: b"")
LONGER, TOO_LONG = edited(lambda data: data + b"0"), edited(lambda data: b"\xff" * 8 + data[8:])
OTHER = said(parameters=10**400), said(parameters=-1), said(nbytes=1 << 63)
LINKS = linked("../elsewhere.json"), linked("nothing.json")
WRONG_JSON = edited(lambda _: b"[1]"), edited(lambda _: b'{"model_type": 3}')
WEIGHTS = "model.safetensors"
BROKEN: dict[str, tuple[Break, ...]] = {
    "config.json": (Path.unlink, CUT, flipped(100), made_a_pipe, *LINKS),
    "tokenizer.json": (Path.unlink, CUT),
    "generation_info.json": (CUT,),
    WEIGHTS: (Path.unlink, CUT, LONGER, TOO_LONG, flipped(200)),
    "manifest.json": (CUT, EMPTY, flipped(30), *OTHER),
}
BROKEN_FOREIGN: dict[str, tuple[Break, ...]] = {
    "config.json": (Path.unlink, CUT, *WRONG_JSON),
    "tokenizer.json": (Path.unlink,),
    "generation_info.json": (edited(lambda _: b"[1]"),),
    WEIGHTS: (Path.unlink, CUT, EMPTY, edited(lambda _: b"\x80\x05N." * 9)),
}


@pytest.mark.parametrize(
    ("name", "change", "is_ours"),
    [
        (name, change, table is BROKEN)
        for table in (BROKEN, BROKEN_FOREIGN)
        for name in table
        for change in table[name]
    ],
)
def test_a_broken_package_is_listed_with_the_reason(name, change, is_ours, original, tmp_path):
    folder = tmp_path / "recipes"
    path = (Path(shutil.copytree(original, folder)) if is_ours else make_foreign(folder)) / name
    path.touch()  # others have no generation_info.json
    change(path)
    info = only(tmp_path)
    assert (info.name, info.integrity) == ("recipes", "broken")
    assert name in info.problem
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


def test_what_may_not_be_read_is_broken(package, seams):
    def refused(call: Any, path: Any, *arguments: Any, **options: Any) -> Any:
        if Path(path) in (package, package / WEIGHTS):
            raise PermissionError(13, "Permission denied", str(path))
        return call(path, *arguments, **options)

    with Seams.until_end() as for_a_while:
        for_a_while.system(os, scandir=refused)
        assert (only(package.parent).integrity, only(package.parent).parameters) == ("broken", None)
    seams.system(os, open=refused)
    info = only(package.parent)
    assert info.integrity == "broken"
    assert WEIGHTS in info.problem


def test_damage_within_large_files_is_left_to_verify_and_other_weights_are_not(package):
    flip(package / WEIGHTS)
    assert only(package.parent).integrity == "whole"
    shard = (package / WEIGHTS).rename(package / "model-00001-of-00001.safetensors").name
    index = {"weight_map": dict.fromkeys(TENSORS, shard)}
    (package / "model.safetensors.index.json").write_text(json.dumps(index))
    info = only(package)  # with weights that the manifest does not name
    assert (info.integrity, shard in info.problem) == ("broken", True)


@pytest.fixture
def exchange(package: Path, seams: Seams) -> list[int]:
    """Lets another package take the place of the one as it is read, so often as the list says."""
    other = make_package(package.parent / ".other", config=CONFIG.changed(n_layer=2))
    left = [0]

    def opened(call: Any, path: Any, *more: Any, **options: Any) -> Any:
        fd = call(path, *more, **options)
        if left[0] and path == package / "manifest.json":
            left[0] -= 1
            package.rename(other.with_name(".aside"))
            other.rename(package)
            other.with_name(".aside").rename(other)
        return fd

    seams.system(os, open=opened)
    return left


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_package_that_is_replaced_meanwhile_is_looked_at_again(package, exchange, times):
    now, other = only(package), only(package.parent / ".other")
    for folder in (package, package.parent):
        exchange[0] = times
        info = only(folder)
        assert (info.integrity, info.problem) == ("whole", "")
        now, other = (other, now) if times % 2 else (now, other)
        assert info.parameters == now.parameters
        assert info.creation_date == now.creation_date


def test_a_package_that_is_replaced_all_the_time_is_not_called_broken(package, exchange):
    exchange[0] = 1000
    info = only(package.parent)
    assert info.integrity == "unverified"
    assert info.problem


def test_a_package_that_is_replaced_while_it_is_read_is_listed(package, seams):
    old = Path(shutil.copytree(package, package.parent / ".old"))
    (package.parent / ".empty").mkdir()
    turns = iter(())

    def scandir(scan: Any, path: Any) -> Any:
        if Path(path) == package and next(turns, None):
            package.rename(package.parent / ".new")
            old.rename(package)
            return scan(package.parent / ".empty")  # what is left of the old one this moment
        return scan(path)

    seams.system(os, scandir=scandir)
    for folder in (package.parent, package):
        turns = iter([True])
        assert only(folder).integrity == "whole"
        assert next(turns, None) is None
        package.rename(old)
        (package.parent / ".new").rename(package)


def test_a_list_and_the_versions_of_libraries_take_no_framework(original):
    program = (
        "import sys; from standfast.packages import list_saved_models; "
        "from standfast.packages.documents.manifest import provenance; provenance(); "
        f"assert list_saved_models({str(original)!r})[0].integrity == 'whole'; "
        "print(*{'torch', 'transformers', 'tokenizers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_shards_of_others_are_counted_together_and_a_broken_one_is_named(tmp_path):
    folder = tmp_path / "gpt2"

    def problem(changes: dict[str, str], *missing: str) -> str:
        shutil.rmtree(folder)
        sharded(folder, changes)
        for name in missing:
            (folder / name).unlink()
        assert only(tmp_path).integrity == "broken"
        return only(tmp_path).problem

    sharded(folder, {})
    assert (only(tmp_path).integrity, only(tmp_path).parameters) == ("unverified", PARAMETERS)
    assert SHARDS[1] in problem({}, SHARDS[1])
    assert WEIGHTS in problem({}, "model.safetensors.index.json")
    assert "config.json" in problem({}, "model.safetensors.index.json", "config.json")
    found = problem({"wte.weight": SHARDS[1]})
    assert SHARDS[1] in found
    assert "wte.weight" in found
    assert "../model" in problem({"wte.weight": "../model-00001-of-00002.safetensors"})

"""`models`: the packages of a folder as a person and a script see them."""

from pathlib import Path

import pytest

from standfast.packages.documents.records import GenerationInfo
from standfast.packages.model.config import Config
from tests.kit.cli import call
from tests.packages.saved_packages import CONFIG, PARAMETERS, make_foreign, make_package

LONG = "cooking_recipe_generator_20240123_143022"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A large one, a quantized one, one of another program."""
    folder = tmp_path_factory.mktemp("models")
    info = GenerationInfo("recipes", "tiny", creation_date="2026-03-01T12:00:00")
    wide = Config(vocab_size=30_000, n_positions=8, n_embd=32, n_layer=1, n_head=2)
    make_package(folder / "recipes", info, wide)
    old = GenerationInfo(creation_date="2024-01-23T14:30:22")
    make_package(folder / LONG, old, CONFIG, quantize="int8")
    make_foreign(folder / "gpt2_20250101_000000")
    return folder


def test_a_broken_one_is_red_and_gives_its_reason_and_exit_code(tmp_path, terminal):
    make_package(tmp_path / "whole_20260101_000000")
    (make_package(tmp_path / "cut_20250101_000000") / "tokenizer.json").unlink()
    assert call("models", tmp_path / "none").code == 2
    done = call("models", tmp_path)
    assert done.code == 1
    assert [line.split()[-1] for line in done.lines[1:3]] == ["whole", "broken"]
    assert done.lines[3].startswith("broken      cut_20250101_000000: tokenizer.json ")
    told = call("models", tmp_path, "--json")
    assert told.code == 1
    assert [bool(each["problem"]) for each in told.json] == [False, True]
    output = terminal("models", tmp_path, columns=120)
    assert "\x1b[31mcut_20250101_000000" in output
    assert "\x1b[31mwhole_" not in output


def test_a_pipe_gets_plain_columns_the_newest_first(models, monkeypatch):
    done = call("models", models)
    assert done.code == 0
    lines = [line.split() for line in done.lines]
    assert lines[0] == ["name", "parameters", "size", "weights", "created", "integrity"]
    assert [line[0] for line in lines[1:]] == ["recipes", "gpt2_20250101_000000", LONG]
    assert lines[1][1:3] == ["973.0", "k"]
    assert lines[1][5:] == ["float32", "2026-03-01", "12:00:00", "whole"]
    assert lines[2][5:] == ["float32", "2025-01-01", "00:00:00", "unverified"]
    assert lines[3][5:] == ["int8", "2024-01-23", "14:30:22", "whole"]
    first, foreign, quantized = call("models", models, "--json").json
    assert (first["name"], first["path"]) == ("recipes", str(models / "recipes"))
    assert first["creation_date"].startswith("2026-03-01T12:00:00")
    assert first["model_size"] == "tiny"
    assert first["nbytes"] == sum(file.stat().st_size for file in (models / "recipes").iterdir())
    assert "manifest.json" in first["files"]
    assert (foreign["parameters"], foreign["integrity"]) == (PARAMETERS, "unverified")
    assert (quantized["dtype"], quantized["quantization"]) == ("float32", "int8")
    assert quantized["problem"] is None
    monkeypatch.chdir(models / "recipes")
    assert [each["name"] for each in call("models", "--json").json] == ["recipes"]


def test_a_wide_terminal_shows_the_time_and_a_narrow_one_the_age(models, terminal):
    wide = terminal("models", models, columns=140)
    assert "2024-01-23 14:30:22" in wide
    assert LONG in wide
    narrow = terminal("models", models, columns=80)
    assert "2024-01-23" not in narrow
    assert "cooking_recipe" in narrow
    assert "…" in narrow
    assert len(narrow.splitlines()) == 4  # nothing is wrapped


def test_names_of_files_cannot_steer_a_terminal(tmp_path):
    folder = make_foreign(tmp_path / "evil\x1b[2J")
    (folder / "notes.txt").symlink_to("nothing.txt")
    for command in ("models", tmp_path), ("show", f"{folder}/"):
        done = call(*command)
        assert done.code == 0
        assert "evil\\x1b[2J" in done.out
        assert "\x1b" not in done.out
    assert ["notes.txt", "missing"] in [line.split() for line in done.lines]

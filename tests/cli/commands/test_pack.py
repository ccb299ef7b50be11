"""`standfast pack` and `standfast unpack`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.cli import call
from tests.kit.power import read_tree
from tests.packages.archives import make_package


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return make_package(tmp_path / "models" / "gpt")


def test_a_package_is_packed_and_unpacked(package: Path, tmp_path: Path) -> None:
    done = call("pack", package)
    path = package.with_name("gpt.tar.gz")
    assert done.code == 0, done.err
    assert done.lines == [
        f"packed      {path}: 4 files, {_size(package)} in an archive of {_of(path)}"
    ]
    done = call("unpack", path, tmp_path)
    assert done.code == 0, done.err
    assert done.lines[0].startswith(f"unpacked    {tmp_path / 'gpt'}: 4 files, ")
    assert read_tree(tmp_path / "gpt") == read_tree(package)


def _size(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in folder.iterdir()) / 1000:.3g} kB"


def _of(path: Path) -> str:
    return f"{path.stat().st_size / 1000:.3g} kB"


def test_scripts_get_json(package: Path, tmp_path: Path) -> None:
    path = tmp_path / "here.tar.zst"
    done = call("pack", package, "--to", path, "--json")
    assert done.json == {
        "source": str(package),
        "target": str(path),
        "files": 4,
        "bytes": sum(len(content) for content in read_tree(package).values()),
        "archive_bytes": path.stat().st_size,
    }
    done = call("unpack", path, tmp_path, "--json")
    assert done.json["source"] == str(path)
    assert done.json["target"] == str(tmp_path / "gpt")


def test_what_is_there_is_replaced_only_if_told(package: Path, tmp_path: Path) -> None:
    path = package.with_name("gpt.tar.gz")
    path.write_bytes(b"mine")
    done = call("pack", package)
    assert done.code == 2
    assert "is there already: --yes replaces it" in done.err
    assert path.read_bytes() == b"mine"
    assert call("pack", package, "--yes").code == 0
    done = call("unpack", path, package.parent)
    assert done.code == 2
    assert "is there already" in done.err


def test_damage_is_told_by_the_exit_code(package: Path, tmp_path: Path) -> None:
    path = package.with_name("gpt.tar.gz")
    call("pack", package)
    path.write_bytes(path.read_bytes()[:-1])
    done = call("unpack", path, tmp_path)
    assert done.code == 1
    assert "gpt.tar.gz: it ends in the middle" in done.err
    (package / "config.json").write_bytes(b"{}")
    done = call("pack", package, "--yes")
    assert done.code == 1
    assert "config.json" in done.err
    assert call("pack", tmp_path / "nowhere").code == 2
    assert call("unpack", tmp_path / "nowhere.tar.gz").code == 2

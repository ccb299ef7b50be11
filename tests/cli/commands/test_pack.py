"""`standfast pack` and `standfast unpack`."""

from pathlib import Path

import pytest

from tests.kit.cli import call
from tests.kit.power import read_tree
from tests.packages.archives import make_package


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return make_package(tmp_path / "models" / "gpt")


def test_a_package_is_packed_and_unpacked(package, tmp_path):
    path = package.with_name("gpt.tar.gz")
    done = call("pack", package)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"packed      {path}: 4 files, ")
    done = call("unpack", path, tmp_path)
    assert done.out.startswith(f"unpacked    {tmp_path / 'gpt'}: 4 files, ")
    assert read_tree(tmp_path / "gpt") == read_tree(package)
    call("unpack", path, tmp_path).fails(2, str(tmp_path / "gpt"))
    other = tmp_path / "here.tar.zst"
    assert call("pack", package, "--to", other, "--json").json == {
        "source": str(package),
        "target": str(other),
        "files": 4,
        "bytes": sum(len(content) for content in read_tree(package).values()),
        "archive_bytes": other.stat().st_size,
    }
    done = call("unpack", other, package.parent / "again", "--json")
    assert (done.json["source"], done.json["target"]) == (
        *(str(other), str(package.parent / "again" / "gpt")),
    )


def test_an_archive_is_replaced_only_with_yes(package):
    path = package.with_name("gpt.tar.gz")
    path.write_bytes(b"mine")
    call("pack", package).fails(2, "--yes")
    assert path.read_bytes() == b"mine"
    assert call("pack", package, "--yes").code == 0


def test_damage_ends_with_1_and_what_is_missing_with_2(package, tmp_path):
    path = package.with_name("gpt.tar.gz")
    call("pack", package)
    path.write_bytes(path.read_bytes()[:-1])
    call("unpack", path, tmp_path).fails(1, "gpt.tar.gz")
    (package / "config.json").write_bytes(b"{}")
    call("pack", package, "--yes").fails(1, "config.json")
    assert call("pack", tmp_path / "nowhere").code == 2
    assert call("unpack", tmp_path / "nowhere.tar.gz").code == 2

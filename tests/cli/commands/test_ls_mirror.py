"""`ls` of a store whose runs have mirrors: it says where each checkpoint is."""

import threading
from pathlib import Path
from typing import Any

import pytest

import standfast
from standfast import KeepLast, Store
from standfast.store.query.mirrors import NAME, read_mirrors, remember_mirror
from tests.cli.conftest import Cli
from tests.kit.cli import at, make_store
from tests.kit.seams import Seams


@pytest.fixture
def mirror(tmp_path: Path) -> str:
    return str(tmp_path / "mirror")


@pytest.fixture
def store(tmp_path: Path, mirror: str) -> Store:
    """Of `gpt`, steps 100 and 200 are in the mirror, and 200 and 300 here; `bert` has none."""
    store = make_store(tmp_path / "store")
    gpt = store.find_run("gpt")
    for step in (100, 200):
        gpt.checkpoint(step).copy_to(Store(mirror))
    remember_mirror(store.backend, gpt.hash, mirror)
    gpt.retain(KeepLast(2))
    return store


def where(cli: Cli, *arguments: str) -> dict[int, Any]:
    return {each["step"]: each["where"] for each in cli("ls", "--json", *arguments).json}


def test_ls_says_where_each_checkpoint_is(store, cli, mirror, terminal):
    marks = {each["step"]: each["marks"] for each in cli("ls", "gpt", "--json").json}
    assert marks == {300: ["latest"], 200: ["best"], 100: []}
    assert where(cli) == {7: ["local"], 300: ["local"], 200: ["local", mirror], 100: [mirror]}
    heading, *rows = cli("ls").lines
    assert heading.split()[-1] == "where"
    assert [row.split()[2] for row in rows] == ["7", "300", "200", "100"]
    assert [row.rpartition("  ")[2] for row in rows] == [
        *("local", "local", "local + mirror", "mirror")
    ]
    assert "local + mirror" in terminal("ls", "gpt", *at(store))
    assert "where" not in cli("ls", "bert").out
    assert "where" not in cli("ls", "bert", "--json").json[0]


def test_each_run_has_a_mirror_of_its_own(store, cli, mirror, tmp_path):
    bert, other = store.find_run("bert"), str(tmp_path / "other")
    bert.checkpoint().copy_to(Store(other))
    remember_mirror(store.backend, bert.hash, other)
    found = where(cli)
    assert (found[7], found[200]) == (["local", other], ["local", mirror])
    remember_mirror(store.backend, bert.hash, mirror)
    assert len(read_mirrors(store.backend)) == 2
    assert where(cli)[7] == ["local"]


def test_checkpoints_of_a_mirror_are_ordered_among_the_others(store, cli, terminal):
    for options, steps in (
        ("-n 3", [7, 300, 200]),
        ("--sort step --reverse", [7, 100, 200, 300]),
        ("--best loss --max", [100, 200, 300]),
        ("--best loss -n 2", [300, 200]),
    ):
        assert list(where(cli, *options.split())) == steps, options
    assert "2 older; --all" in terminal("ls", "gpt", "-n", "1", *at(store))


def test_a_run_that_only_its_mirror_has_is_listed(store, cli, mirror):
    bert = store.find_run("bert")
    bert.checkpoint().copy_to(Store(mirror))
    remember_mirror(store.backend, bert.hash, mirror)
    bert.delete_all()
    shown = cli("ls", "--json").json
    assert [each["step"] for each in shown] == [7, 300, 200, 100]
    assert (shown[0]["name"], shown[0]["marks"]) == ("bert", [])
    store.find_run("gpt").save(200, {}, replace=True)  # another one than in the mirror
    assert where(cli, "gpt") == {300: ["local"], 200: ["local"], 100: [mirror]}


def test_a_mirror_that_is_gone_or_does_not_answer_is_told(store, cli, mirror, seams):
    cli("ls")  # now its index knows what it has
    answer = threading.Event()

    def slow(version: Any, folder: str) -> Any:
        if version.__self__.url.startswith(mirror):
            answer.wait(60)
        return version(folder)

    with Seams.until_end() as until:
        until.backend(version=slow)
        until.bound("patience with places", 0.1)
        done = cli("ls", "gpt", "--json")
        answer.set()
    found = {each["step"]: each["where"] for each in done.json}
    assert found == {300: ["local"], 200: ["local", mirror], 100: [mirror]}
    (line,) = done.err.splitlines()
    assert mirror in line
    Path(mirror).rename(f"{mirror} elsewhere")
    done = cli("ls", "gpt", "--json")
    assert {each["step"]: each["where"] for each in done.json} == {300: ["local"], 200: ["local"]}
    (line,) = done.err.splitlines()
    assert mirror in line


def test_a_damaged_list_of_mirrors_is_told_and_the_rest_is_listed(store, cli):
    path = Path(store.url, NAME)
    path.write_bytes(path.read_bytes().replace(b"mirror", b"mirroR", 1))
    done = cli("ls", "gpt")
    assert done.code == 0
    assert "where" not in done.out
    assert done.err.startswith(f"{NAME}: ")
    with pytest.raises(standfast.DamagedFile):
        read_mirrors(store.backend)
    before = path.read_bytes()
    with pytest.warns(UserWarning, match=NAME):
        remember_mirror(store.backend, store.find_run("gpt").hash, "/another")
    assert path.read_bytes() == before

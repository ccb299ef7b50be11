"""`ls` of a store whose runs have mirrors: it says where each checkpoint is."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import standfast
from standfast import KeepLast, Store
from standfast.store.index import database
from standfast.store.query import locations
from standfast.store.query.mirrors import NAME, open_mirror, read_mirrors, remember_mirror
from tests.kit.cli import Done, Terminal, call, make_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Of `gpt`, steps 100 and 200 are in the mirror, and 200 and 300 here; `bert` has none."""
    store = make_store(tmp_path / "store")
    gpt = store.find_run("gpt")
    mirror = Store(tmp_path / "mirror")
    for step in (100, 200):
        gpt.checkpoint(step).copy_to(mirror)
    remember_mirror(store.backend, gpt.hash, str(tmp_path / "mirror"))
    gpt.retain(KeepLast(2))
    return store


def ls(store: Store, *arguments: str) -> Done:
    done = call("ls", *arguments, "--store", Path(store.url).parent)
    assert done.code == 0, done.err
    return done


def where(store: Store, *arguments: str) -> dict[int, Any]:
    return {each["step"]: each["where"] for each in ls(store, "--json", *arguments).json}


def test_each_checkpoint_is_said_to_be_where_it_is(
    store: Store, tmp_path: Path, terminal: Terminal
) -> None:
    mirror = str(tmp_path / "mirror")
    marks = {each["step"]: each["marks"] for each in ls(store, "gpt", "--json").json}
    assert marks == {300: ["latest"], 200: ["best"], 100: []}
    assert where(store) == {7: ["local"], 300: ["local"], 200: ["local", mirror], 100: [mirror]}
    heading, *rows = ls(store).lines
    assert heading.split()[-1] == "where"
    assert [row.split()[2] for row in rows] == ["7", "300", "200", "100"]
    assert [row.rpartition("  ")[2] for row in rows] == [
        "local",
        "local",
        "local + mirror",
        "mirror",
    ]
    assert "local + mirror" in terminal("ls", "gpt", "--store", Path(store.url).parent)


def test_a_run_without_a_mirror_says_nothing_and_each_has_its_own(
    store: Store, tmp_path: Path
) -> None:
    assert "where" not in ls(store, "bert").out
    assert "where" not in ls(store, "bert", "--json").json[0]
    bert = store.find_run("bert")
    bert.checkpoint().copy_to(Store(tmp_path / "other"))
    remember_mirror(store.backend, bert.hash, str(tmp_path / "other"))
    assert where(store)[7] == ["local", str(tmp_path / "other")]
    assert where(store)[200] == ["local", str(tmp_path / "mirror")]
    remember_mirror(store.backend, bert.hash, str(tmp_path / "mirror"))
    assert len(read_mirrors(store.backend)) == 2
    assert where(store)[7] == ["local"]


def test_those_in_the_mirror_alone_stand_in_the_order_that_was_asked_for(
    store: Store, terminal: Terminal
) -> None:
    assert list(where(store, "-n", "3")) == [7, 300, 200]
    assert list(where(store, "--sort", "step", "--reverse")) == [7, 100, 200, 300]
    assert list(where(store, "--best", "loss", "--max")) == [100, 200, 300]
    assert list(where(store, "--best", "loss", "-n", "2")) == [300, 200]
    shown = terminal("ls", "gpt", "-n", "1", "--store", Path(store.url).parent)
    assert "… and 2 older; --all lists them" in shown


def test_a_run_that_is_in_its_mirror_alone_is_listed(store: Store, tmp_path: Path) -> None:
    bert = store.find_run("bert")
    bert.checkpoint().copy_to(Store(tmp_path / "mirror"))
    remember_mirror(store.backend, bert.hash, str(tmp_path / "mirror"))
    bert.delete_all()
    shown = ls(store, "--json").json
    assert [each["step"] for each in shown] == [7, 300, 200, 100]
    assert (shown[0]["name"], shown[0]["marks"]) == ("bert", [])
    store.find_run("gpt").save(200, {}, replace=True)  # another one than in the mirror
    assert where(store, "gpt") == {
        300: ["local"],
        200: ["local"],
        100: [str(tmp_path / "mirror")],
    }


def test_a_mirror_that_is_gone_is_said_to_be(store: Store, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "mirror")
    done = ls(store, "gpt", "--json")
    assert {each["step"]: each["where"] for each in done.json} == {300: ["local"], 200: ["local"]}
    (line,) = done.err.splitlines()
    assert line.startswith(f"the mirror {tmp_path / 'mirror'} cannot be reached: ")
    assert line.endswith("there is no folder models in it; nobody here knows what it has")


def test_a_mirror_that_does_not_answer_is_not_waited_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ls(store)  # now its index knows what it has
    answer = threading.Event()

    def check_exists(self: Store) -> None:
        if self.url.startswith(str(tmp_path / "mirror")):
            answer.wait(60)

    monkeypatch.setattr(Store, "check_exists", check_exists)
    monkeypatch.setattr(locations, "PATIENCE", 0.1)
    try:
        done = ls(store, "gpt", "--json")
    finally:
        answer.set()
    mirror = str(tmp_path / "mirror")
    found = {each["step"]: each["where"] for each in done.json}
    assert found == {300: ["local"], 200: ["local", mirror], 100: [mirror]}
    (line,) = done.err.splitlines()
    known = f"{open_mirror(mirror).backend.cache}"
    assert Path(known, database.NAME).exists()
    assert "cannot be reached: no answer in time; this is what it had on 20" in line


def test_a_damaged_list_of_mirrors_is_told_and_the_rest_is_listed(store: Store) -> None:
    path = Path(store.url, NAME)
    path.write_bytes(path.read_bytes().replace(b"mirror", b"mirroR", 1))
    done = ls(store, "gpt")
    assert "where" not in done.out
    assert done.err.startswith(f"{NAME}: ")
    with pytest.raises(standfast.DamagedFile):
        read_mirrors(store.backend)
    before = path.read_bytes()
    with pytest.warns(UserWarning, match=NAME):
        remember_mirror(store.backend, store.find_run("gpt").hash, "/another")
    assert path.read_bytes() == before

"""`log`: the lineage of a store, the history of a run, and why checkpoints are kept."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from standfast import KeepLast, Store
from standfast.display.output import hash_text
from standfast.store.schema import names
from standfast.store.schema.record import Place
from standfast.store.schema.run_file import encode
from tests.cli.experiments import make_experiments
from tests.kit.cli import Terminal, at, call, copy_of, put


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_experiments(tmp_path_factory.mktemp("log") / "store")


def shortened(line: str) -> str:
    """A line without hash, time and the spaces that align it."""
    return re.sub(r"[0-9a-f]{8}(_[0-9a-f]{8}){2}|\d{4}-\d\d-\d\d .*$| {2,}", " ", line).strip()


def test_the_lineage_is_a_tree(store: Store) -> None:
    done = call("log", *at(store))
    assert done.code == 0
    assert [re.sub(" +", " ", shortened(line)) for line in done.lines] == [
        "empty no checkpoint",
        "sweep 3 checkpoints, 10–30",
        "lr 1; best 30: loss 3.333",
        "sweep 3 checkpoints, 10–30",
        "lr 0.3; best 30: loss 3.333",
        "base 4 checkpoints, 100–400",
        "│ best 400: loss 0.25",
        "├─ wide 1 checkpoint, 300",
        "│ from 200: model: 1 layer; best 300: loss 0.3333",
        "└─ low 2 checkpoints, 300–400",
        "│ from 200: lr 0.1 → 0.01; best 400: loss 0.25",
        "└─ less 1 checkpoint, 500",
        "from 400: data: 9 samples; best 500: loss 0.2",
    ]
    assert done.lines[7].split()[2] == hash_text(store.find_run("wide").hash)


def test_a_terminal_marks_the_groups_that_differ_from_the_parent(
    store: Store, terminal: Terminal
) -> None:
    wide = store.find_run("wide").hash
    shown = terminal("log", *at(store))
    assert f"\x1b[33m{wide[8:16]}\x1b[0m" in shown
    assert f"\x1b[2m{wide[16:]}\x1b[0m" in shown
    assert "… and 5 more; --all lists them" in terminal("log", "-n", "2", *at(store))


def test_the_lineage_for_scripts(store: Store) -> None:
    runs = {each["run"]: each for each in call("log", "--json", *at(store)).json}
    base, low = store.find_run("base"), store.find_run("low")
    found = runs[low.hash]
    assert found["parent"]["run"] == base.hash
    assert found["parent_is_there"]
    assert (found["checkpoints"], found["first_step"], found["last_step"]) == (2, 300, 400)
    assert found["best"]["metrics"]["loss"] == 0.25
    changed = {"lr": {"before": 0.1, "after": 0.01, "counts": True}}
    assert found["changes"]["hyperparameters"] == changed
    assert runs[base.hash]["parent"] is None
    assert len(runs) == 7


def test_the_history_of_a_run_goes_back_to_the_beginning(store: Store) -> None:
    lines = call("log", "less", *at(store)).lines
    told = [line.split()[0] for line in lines if line and not line.startswith("step")]
    assert told == "less 500 branched low 400 300 branched base 200 100".split()
    assert "branched from low@400: data: 9 samples" in lines
    assert "branched from base@200: lr 0.1 → 0.01" in lines
    lines = call("log", "less", "-n", "2", *at(store)).lines
    assert lines[-1] == "… and 3 older; --all lists them"
    found = call("log", "less", "--json", *at(store)).json
    assert [(e["name"], [c["step"] for c in e["checkpoints"]]) for e in found] == [
        ("less", [500]),
        ("low", [400, 300]),
        ("base", [200, 100]),
    ]
    assert found[0]["branched_from"]["step"] == 400


def test_a_parent_that_is_deleted_is_named(store: Store, tmp_path: Path) -> None:
    copy = copy_of(store, tmp_path / "copy")
    copy.find_run("base").delete(200)
    assert "from 200, which is deleted: lr 0.1 → 0.01" in call("log", *at(copy)).out
    assert "branched from base@200, which is gone" in call("log", "low", *at(copy)).out
    base = copy.find_run("base")
    base.delete_all()
    assert f"from {base.hash}@200, which is gone" in call("log", *at(copy)).out
    assert f"branched from {base.hash}@200, which is gone" in call("log", "low", *at(copy)).out


def test_run_files_that_lie_are_printed_all_the_same(store: Store, tmp_path: Path) -> None:
    copy = copy_of(store, tmp_path / "copy")
    base, low = copy.find_run("base"), copy.find_run("low")
    for run, parent in ((base, low.hash), (copy.find_run("wide"), "\x1b[2J")):
        file = msgspec.structs.replace(run.file, parent=Place(parent, 300, 7, "0123abcd"))
        put(Path(copy.url, names.run_file(run.hash)), encode(file))
    done = call("log", *at(copy))
    assert done.code == 0
    assert r"from \x1b[2J@300, which is gone" in done.out
    assert sum(hash_text(run.hash) in done.out for run in (base, low)) == 2
    assert call("log", "low", *at(copy)).code == 0
    assert "\x1b[2J" not in call("log", "wide", *at(copy)).out


def test_roots_of_one_name_are_told_apart_by_what_counts_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    first = store.run("run", {"a": 1, "root_log_dir": "x", "lr": 0.1})
    store.run("run", {"a": 1, "root_log_dir": "y", "lr": 0.1}, trial=2)
    store.run("run", {"a": 1, "root_log_dir": "y", "lr": 0.2})
    details = {line.strip() for line in call("log", *at(store)).lines if line.startswith(" ")}
    assert details == {
        "lr 0.1, root_log_dir 'x' (not in the hash)",
        "lr 0.1, trial 2, root_log_dir 'y' (not in the hash)",
        "lr 0.2, root_log_dir 'y' (not in the hash)",
    }
    first.save(1, {})
    store.run("again", {"a": 1, "root_log_dir": "z", "lr": 0.1}, trial=3, parent=first.checkpoint())
    text = "from 1: trial — → 3, root_log_dir 'x' → 'z' (not in the hash)"
    assert text in call("log", *at(store)).out


def test_a_narrow_terminal_cuts_what_changed_before_the_best(
    tmp_path: Path, terminal: Terminal
) -> None:
    store = Store(tmp_path / "store")
    first = store.run("first", {"schedule": "x" * 30})
    first.save(1, {})
    second = store.run(
        "second", {"schedule": "y" * 30, "other": "z" * 30}, parent=first.checkpoint()
    )
    second.save(2, {}, {"loss": 0.125}, best=True)
    (line,) = (line for line in terminal("log", *at(store)).splitlines() if "best" in line)
    assert re.search(r"from 1: schedule 'x+' → '.*…; best 2: loss 0\.125", line)


def test_a_name_stands_for_all_runs_that_have_it(store: Store) -> None:
    runs = [each.run for each in store.index.runs(name="sweep")]
    done = call("log", "sweep", *at(store))
    assert done.code == 0
    assert [line for line in done.lines if "sweep" in line] == [
        f"sweep  {hash_text(run)}" for run in runs
    ]
    assert [line.split()[0] for line in done.lines if line[:4].strip().isdecimal()] == [
        *("30", "20", "10"),
        *("30", "20", "10"),
    ]
    found = call("log", "sweep", "--json", *at(store)).json
    assert [each["history_of"] for each in found] == [each["run"] for each in found] == runs
    assert call("log", "nobody", *at(store)).code == 2
    assert call("log", "empty", *at(store)).lines[1:] == ["no checkpoint"]


def test_why_checkpoints_are_kept_and_why_others_were_deleted(store: Store, tmp_path: Path) -> None:
    assert "all checkpoints are kept" in call("log", "--retention", *at(store)).out
    copy = copy_of(store, tmp_path / "copy")
    copy.resolve("base@100").tag("paper")
    copy.find_run("base").retain(KeepLast(1))
    copy.find_run("base").set_monitor("accuracy", "max")
    assert "best 400: accuracy 0.975" in call("log", *at(copy)).out
    shown = call("show", "base@400", *at(copy)).lines
    assert "  its run keeps: the last" in shown
    assert "  kept: the latest of its run; the best of its run; the newest" in shown
    lines = call("log", "--retention", *at(copy)).lines
    assert lines[:2] == [f"base  {hash_text(copy.find_run('base').hash)}", "keeps the last"]
    told = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[3:]}
    assert told["400"] == "kept the latest of its run; the best of its run; the newest"
    assert told["100"] == "kept tagged 'paper'"
    assert re.fullmatch(
        r"deleted by policy \d{4}-\d\d-\d\d [\d:]{8} [\d.]+ kB not among those that are kept",
        told["300"],
    )
    assert list(told) == ["400", "300", "200", "100"]
    (found,) = call("log", "--retention", "--json", *at(copy)).json
    assert [each["step"] for each in found["checkpoints"]] == [400, 100]
    assert {each["step"] for each in found["deleted"]} == {300, 200}
    assert found["retention"] == {"keep": [{"policy": "last", "n": 1}]}

"""`log`: the lineage of a store, the history of a run, and why checkpoints are kept."""

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
from tests.kit.cli import at, call, copy_of, put


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_experiments(tmp_path_factory.mktemp("log") / "store")


def shortened(line: str) -> str:
    """A line without hash, time and the spaces that align it."""
    line = re.sub(r"[0-9a-f]{8}(_[0-9a-f]{8}){2}|\d{4}-\d\d-\d\d .*$", " ", line)
    return re.sub(" +", " ", line).strip()


def test_the_lineage_is_a_tree(store, cli, terminal):
    done = cli("log")
    assert done.code == 0
    assert [shortened(line) for line in done.lines] == [
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
    wide = store.find_run("wide").hash
    assert done.lines[7].split()[2] == hash_text(wide)
    shown = terminal("log", *at(store))
    assert f"\x1b[33m{wide[8:16]}\x1b[0m" in shown, "the group that differs from the parent"
    assert f"\x1b[2m{wide[16:]}\x1b[0m" in shown
    assert "5 more; --all" in terminal("log", "-n", "2", *at(store))
    runs = {each["run"]: each for each in cli("log", "--json").json}
    base, low = store.find_run("base"), runs[store.find_run("low").hash]
    assert (low["parent"]["run"], low["parent_is_there"]) == (base.hash, True)
    assert (low["checkpoints"], low["first_step"], low["last_step"]) == (2, 300, 400)
    assert low["best"]["metrics"]["loss"] == 0.25
    changed = {"lr": {"before": 0.1, "after": 0.01, "counts": True}}
    assert low["changes"]["hyperparameters"] == changed
    assert runs[base.hash]["parent"] is None
    assert len(runs) == 7


def test_the_history_of_a_run_goes_back_to_the_beginning(cli):
    lines = cli("log", "less").lines
    told = [line.split()[0] for line in lines if line and not line.startswith("step")]
    assert told == "less 500 branched low 400 300 branched base 200 100".split()
    assert "branched from low@400: data: 9 samples" in lines
    assert "branched from base@200: lr 0.1 → 0.01" in lines
    assert "3 older; --all" in cli("log", "less", "-n", "2").lines[-1]
    found = cli("log", "less", "--json").json
    assert [(e["name"], [c["step"] for c in e["checkpoints"]]) for e in found] == [
        ("less", [500]),
        ("low", [400, 300]),
        ("base", [200, 100]),
    ]
    assert found[0]["branched_from"]["step"] == 400


def test_a_parent_that_is_deleted_is_named(store, tmp_path):
    copy = copy_of(store, tmp_path / "copy")
    base = copy.find_run("base")
    base.delete(200)
    assert "from 200, which is deleted: lr 0.1 → 0.01" in call("log", *at(copy)).out
    assert "branched from base@200, which is gone" in call("log", "low", *at(copy)).out
    assert f"parent: {base.hash}@200, which is gone" in call("show", "low@300", *at(copy)).out
    base.delete_all()
    for arguments in ((), ("low",)):
        assert f"from {base.hash}@200, which is gone" in call("log", *arguments, *at(copy)).out


def test_run_files_that_lie_are_printed_all_the_same(store, tmp_path):
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


def test_roots_of_one_name_are_told_apart_by_what_counts_first(tmp_path):
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
    parent = first.save(1, {})
    store.run("again", {"a": 1, "root_log_dir": "z", "lr": 0.1}, trial=3, parent=parent)
    text = "from 1: trial — → 3, root_log_dir 'x' → 'z' (not in the hash)"
    assert text in call("log", *at(store)).out


def test_a_narrow_terminal_cuts_what_changed_before_the_best(tmp_path, terminal):
    store = Store(tmp_path / "store")
    first = store.run("first", {"schedule": "x" * 30}).save(1, {})
    second = store.run("second", {"schedule": "y" * 30, "other": "z" * 30}, parent=first)
    second.save(2, {}, {"loss": 0.125}, best=True)
    (line,) = (line for line in terminal("log", *at(store)).splitlines() if "best" in line)
    assert re.search(r"from 1: schedule 'x+' → '.*…; best 2: loss 0\.125", line)


def test_a_name_stands_for_all_runs_that_have_it(store, cli):
    runs = [each.run for each in store.index.runs(name="sweep")]
    lines = cli("log", "sweep").lines
    assert [line for line in lines if "sweep" in line] == [
        f"sweep  {hash_text(run)}" for run in runs
    ]
    steps = [line.split()[0] for line in lines if line[:4].strip().isdecimal()]
    assert steps == ["30", "20", "10"] * 2
    found = cli("log", "sweep", "--json").json
    assert [each["history_of"] for each in found] == [each["run"] for each in found] == runs
    assert cli("log", "nobody").code == 2
    assert cli("log", "empty").lines[1:] == ["no checkpoint"]


def test_why_checkpoints_are_kept_and_why_others_were_deleted(store, tmp_path):
    copy = copy_of(store, tmp_path / "copy")
    assert "all checkpoints are kept" in call("log", "--retention", *at(copy)).out
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
    assert list(told) == ["400", "300", "200", "100"]
    assert told["400"] == "kept the latest of its run; the best of its run; the newest"
    assert told["100"] == "kept tagged 'paper'"
    assert told["300"].startswith("deleted by policy 20")
    (found,) = call("log", "--retention", "--json", *at(copy)).json
    assert [each["step"] for each in found["checkpoints"]] == [400, 100]
    assert {each["step"] for each in found["deleted"]} == {300, 200}
    assert found["retention"] == {"keep": [{"policy": "last", "n": 1}]}

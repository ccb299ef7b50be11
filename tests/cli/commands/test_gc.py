"""`gc` and `restore`: what goes to the trash, what comes back, and what is freed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from standfast import Store
from standfast.display.output import size_text
from standfast.policies import KeepBest, Retention
from standfast.store.retention.trash import Trash
from standfast.store.schema import run_file
from tests.cli.commands.test_space import files, on_disk, verified
from tests.kit.cli import at, call, flip, make_store, put, record_of
from tests.kit.stores import folder
from tests.store.schema.test_versions import needing, resealed


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """`gpt` has the steps 100 to 300, of which 200 is the best; `bert` has one."""
    return make_store(tmp_path / "store")


def steps(store: Store, run: str) -> list[int]:
    return [each.step for each in store.find_run(run).checkpoints()]


def test_without_yes_it_shows_what_would_go_by_run_and_reason(store: Store) -> None:
    gpt, bert = store.find_run("gpt"), store.find_run("bert")
    gpt.save(1000, {"step": 1000})
    bert.save(8, {"step": 8})
    there = files(store)
    done = call("gc", "--keep-last", "1", *at(store))
    assert done.code == 0
    why = "not among those that are kept: the last"
    assert [re.sub("  +[0-9.]+ k?B", "  size", line) for line in done.lines[:6]] == [
        f"bert {bert.hash[:8]}: {why}",
        "    7  size",
        f"gpt {gpt.hash[:8]}: {why}",
        "  100  size",
        "  300  size",
        "total  size",
    ]
    assert "would go to the trash, to be freed after 7 days" in done.lines[6]
    assert done.lines[7] == "--yes does it"
    assert files(store) == there


def test_gc_frees_what_it_said_once_the_trash_is_emptied(store: Store) -> None:
    verified(store)
    before = on_disk(store)
    keep_last = ("gc", "--keep-last", "1")
    promised = call(*keep_last, "--json", *at(store)).json
    assert (promised["done"], promised["total_before"]) == (False, before)
    done = call(*keep_last, "--yes", "--json", *at(store)).json
    assert done["done"] is True
    assert done["bytes"] == promised["bytes"] == promised["to_trash"]
    assert [line["step"] for line in done["lines"]] == [100]
    held = done["in_trash"]
    done = call(*keep_last, "--yes", *at(store))
    total = size_text(on_disk(store))
    assert (done.code, done.lines) == (
        0,
        [f"nothing to do: the store takes {total}, 268 kB of it in the trash"],
    )
    emptied = call("gc", "--empty", "--yes", "--json", *at(store)).json
    assert emptied["bytes"] == held
    assert before - on_disk(store) == promised["bytes"] > 0
    assert call("verify", "--all", *at(store)).code == 0


def test_what_was_done_is_said(store: Store) -> None:
    assert call("gc", "--keep-last", "1", "--yes", *at(store)).lines[3:] == [
        "1 checkpoint deleted",
        "the trash holds 268 kB, to be freed after 7 days, or by `standfast gc --empty --yes`",
    ]


def test_what_is_kept_can_be_said(store: Store) -> None:
    for options, going in (
        ("--keep-best loss:max", []),
        ("--keep-best loss", [100]),
        ("--keep-every 100", []),
        ("--keep-every 150", [100]),
        ("--keep-tagged", [100]),
        ("--keep-tagged --keep-best loss:max", []),
        ("--keep-last 1", [100]),
        ("bert --keep-last 1", []),
    ):
        found = call("gc", *options.split(), "--json", *at(store)).json
        assert [line["step"] for line in found["lines"]] == going, options


def test_wrong_options_are_refused(store: Store) -> None:
    for options in (
        ["--keep-best", "loss:up"],
        ["--keep-best", ":max"],
        ["--keep-last", "0"],
        ["--to", "lots"],
        ["--empty", "--keep-last", "1"],
        ["nobody"],
    ):
        done = call("gc", *options, "--yes", *at(store))
        assert (done.code, done.out) == (2, ""), options
    assert steps(store, "gpt") == [100, 200, 300]


def test_a_store_is_brought_down_to_a_number_of_bytes(store: Store) -> None:
    verified(store)
    done = call("gc", "--to", "300kB", *at(store))
    assert done.lines[0].endswith("the space is needed, and the oldest go first")
    promised = done.lines[4]
    done = call("gc", "--to", "300kB", "--yes", *at(store))
    assert done.code == 0
    total = size_text(on_disk(store))
    assert done.lines[3:] == [
        "1 checkpoint deleted, 268 kB freed",
        f"the store takes {total}, the trash included",
    ]
    assert promised == f"the store would take {total}, the trash included"
    assert on_disk(store) <= 300_000


def test_what_cannot_be_reached_is_said(store: Store) -> None:
    call("rm", "gpt@100", "--yes", *at(store))
    done = call("gc", "--to", "1kB", "--yes", *at(store))
    assert done.code == 2
    assert done.lines[-3:] == [
        f"short       {size_text(on_disk(store) - 1000)} over 1 kB",
        "            2 checkpoints stay: the latest of its run",
        "            1 checkpoint stays: the best of its run",
    ]
    assert Trash(store.backend).entries() == []
    again = call("gc", "--to", "1kB", "--json", *at(store))
    assert (again.code, again.json["lines"]) == (2, [])
    assert again.json["short"] == again.json["total_before"] - 1000


def test_the_budget_of_the_store_counts_unless_runs_are_named(store: Store) -> None:
    store.budget = 1000
    done = call("gc", "gpt", "--yes", *at(store))
    assert done.code == 0
    assert "`standfast gc` without a run brings it down to that" in done.lines[0]
    assert done.lines[1].startswith("nothing goes")
    assert steps(store, "gpt") == [100, 200, 300]
    store.budget = 300_000
    assert call("gc", *at(store)).lines[0].endswith(", its budget is 300 kB")
    assert call("gc", "--json", *at(store)).json["to"] == 300_000
    assert call("gc", "--to", "1MB", *at(store)).lines[0].startswith("nothing ")
    assert call("gc", "--yes", *at(store)).code == 0
    assert on_disk(store) <= 300_000
    put(Path(store.url, "store.json"), b"nothing")
    done = call("gc", "--keep-last", "1", *at(store))
    assert done.code == 1
    assert done.lines[0].startswith("let be      the budget of the store: store.json: ")


def test_a_metric_that_no_checkpoint_has_is_in_doubt(store: Store) -> None:
    gpt, bert = store.find_run("gpt"), store.find_run("bert")
    done = call("gc", "gpt", "--keep-best", "los", "--to", "1kB", "--yes", *at(store))
    assert done.code == 2
    assert done.lines[0].startswith(f"in doubt    {gpt.hash}: nobody knows which is the best")
    assert done.lines[1].startswith("nothing goes")
    assert steps(store, "gpt") == [100, 200, 300]
    for step in (8, 9):
        bert.save(step, {}, {"los": step})
    found = call("gc", "--keep-best", "los", "--json", *at(store))
    assert (found.code, list(found.json["problems"])) == (0, [gpt.hash])
    assert [line["step"] for line in found.json["lines"]] == [7]
    gpt.set_retention(Retention((KeepBest(1, "bleu"),)))  # which may come yet
    done = call("gc", "gpt", *at(store))
    assert (done.code, done.lines[0][:8]) == (0, "in doubt")


# restore


def test_what_rm_deleted_is_restored(store: Store) -> None:
    verified(store)
    there = files(store)
    gpt, bert = store.find_run("gpt").hash, store.find_run("bert").hash
    call("rm", "gpt@100", "bert", "--yes", *at(store))
    done = call("restore", "gpt@100", "bert", *at(store))
    assert done.code == 0
    assert done.lines == [f"restored    {gpt}@100", f"restored    {bert}@7"]
    assert files(store) == there
    assert call("verify", "--all", *at(store)).code == 0
    assert call("restore", *at(store)).lines == ["the trash is empty"]


def test_restore_lists_the_trash(store: Store) -> None:
    call("rm", "gpt@100", "--yes", *at(store))
    call("rm", "bert", "--yes", *at(store))
    lines = call("restore", *at(store)).lines
    assert lines[0].split() == "run hash steps holds age by goes in why".split()
    nbytes = Trash(store.backend).nbytes()
    assert lines[1].startswith("bert ")
    assert "the run, 1 checkpoint" in lines[1]
    assert lines[2].split()[::2][:2] == ["gpt", "100"]
    assert " rm  7 d " in lines[2]
    assert lines[3].startswith(f"{size_text(nbytes)} in all: ")
    found = call("restore", "--json", *at(store)).json
    assert [entry["steps"] for entry in found["entries"]] == [[7], [100]]
    assert [entry["whole_run"] for entry in found["entries"]] == [True, False]
    assert call("du", "--json", *at(store)).json["trash"] == found["bytes"] == nbytes
    assert call("du", *at(store)).lines[-1].startswith(f"the trash holds {size_text(nbytes)} more")


def test_restore_refuses_what_it_does_not_have(store: Store) -> None:
    call("rm", "gpt@100", "--yes", *at(store))
    for ref in ("bert", "gpt@200", "gpt@latest", "gpt@²", "nobody", "gpt@" + "9" * 50):
        done = call("restore", ref, *at(store))
        assert (done.code, done.out) == (2, ""), ref
    assert steps(store, "gpt") == [200, 300]


def test_a_damaged_checkpoint_stays_in_the_trash(store: Store) -> None:
    call("rm", "gpt", "--yes", *at(store))
    (entry,) = Trash(store.backend).entries()
    flip(Path(store.url, entry.path, f"{entry.run}_step_000100.json"), 30)
    done = call("restore", "gpt", *at(store))
    assert done.code == 1
    assert done.lines[:2] == [f"restored    {entry.run}@{step}" for step in (200, 300)]
    assert done.lines[2].startswith(f"in the trash {entry.run}@100: ")
    assert call("restore", "gpt@100", *at(store)).code == 1
    assert steps(store, "gpt") == [200, 300]


def test_the_trash_is_emptied_when_that_is_meant(store: Store) -> None:
    assert call("gc", "--empty", "--yes", *at(store)).lines == ["the trash is empty"]
    call("rm", "gpt@100", "--yes", *at(store))
    assert call("gc", "--empty", *at(store)).lines == [
        "would go    1 deletion in the trash",
        "            268 kB would be freed; --yes empties it",
    ]
    assert len(Trash(store.backend).entries()) == 1
    assert call("gc", "--empty", "--yes", *at(store)).lines == [
        "emptied     the trash: 268 kB freed"
    ]
    assert Trash(store.backend).entries() == []
    assert call("restore", "gpt@100", *at(store)).code == 2


@pytest.mark.parametrize("newer", ["record", "run file"])
def test_a_run_that_is_too_new_is_let_be_and_not_called_damaged(store: Store, newer: str) -> None:
    """docs/format.md: "Too new is not damage." """
    run = store.find_run("gpt")
    record = record_of(store, "gpt@200")
    if newer == "record":
        needing(record)
    else:
        path = folder(run) / f"{run.hash}_run.json"
        resealed(path, run_file.FORMAT, "standfast run 2")
    there = files(store)
    for more in ([], ["--yes"]):
        done = call("gc", "--keep-last", "1", *more, *at(store))
        assert done.code == 2
        assert done.lines[0].startswith(f"let be      {run.hash}: too new: models/")
        assert "damaged" not in done.out
    told = call("gc", "--keep-last", "1", "--json", *at(store)).json
    assert (told["lines"], list(told["problems"])) == ([], [run.hash])
    assert told["problems"][run.hash].startswith("too new: ")
    assert files(store) == there
    if newer == "record":
        put(record, b"nothing")
        done = call("gc", "--keep-last", "1", "--yes", *at(store))
        assert done.code == 1
        let_be = f"let be      {run.hash}: its record of step 200 cannot be read"
        assert done.lines[0].startswith(let_be)
    else:
        assert call("log", "--retention", "gpt", *at(store)).lines[1].startswith("too new: ")

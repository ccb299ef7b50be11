"""`gc` and `restore`: what goes to the trash, what comes back, and what is freed."""

import re
from pathlib import Path

import pytest

from standfast import Store
from standfast.display.output import size_text
from standfast.policies import KeepBest, Retention
from standfast.store.retention.trash import Trash
from standfast.store.schema import run_file
from tests.cli.commands.test_space import files, on_disk, verified
from tests.kit.cli import flip, put, record_of
from tests.kit.stores import folder
from tests.store.schema.test_versions import needing, resealed


def steps(store: Store, run: str) -> list[int]:
    return [each.step for each in store.find_run(run).checkpoints()]


def test_without_yes_it_shows_what_would_go_by_run_and_reason(store, cli):
    gpt, bert = store.find_run("gpt"), store.find_run("bert")
    gpt.save(1000, {"step": 1000})
    bert.save(8, {"step": 8})
    there = files(store)
    done = cli("gc", "--keep-last", "1")
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
    assert files(store) == there


def test_gc_frees_what_it_said_once_the_trash_is_emptied(store, cli):
    verified(store)
    before = on_disk(store)
    keep_last = ("gc", "--keep-last", "1")
    promised = cli(*keep_last, "--json").json
    assert (promised["done"], promised["total_before"]) == (False, before)
    done = cli(*keep_last, "--yes", "--json").json
    assert (done["done"], done["bytes"]) == (True, promised["bytes"])
    assert [line["step"] for line in done["lines"]] == [100]
    (line,) = cli(*keep_last, "--yes").lines
    assert size_text(on_disk(store)) in line
    (line, freed) = cli("gc", "--empty").lines
    assert size_text(done["in_trash"]) in freed
    assert len(Trash(store.backend).entries()) == 1
    assert cli("gc", "--empty", "--yes", "--json").json["bytes"] == done["in_trash"]
    assert before - on_disk(store) == promised["bytes"] > 0
    assert cli("verify", "--all").code == 0
    assert cli("restore", "gpt@100").code == 2
    assert cli("restore").lines == cli("gc", "--empty", "--yes").lines == ["the trash is empty"]


def test_options_say_what_is_kept(cli):
    for options, going in (
        *(("--keep-best loss:max", []), ("--keep-best loss", [100]), ("--keep-every 100", [])),
        *(("--keep-every 150", [100]), ("--keep-tagged --keep-best loss:max", [])),
        *(("--keep-tagged", [100]), ("bert --keep-last 1", [])),
    ):
        found = cli("gc", *options.split(), "--json").json
        assert [line["step"] for line in found["lines"]] == going, options


def test_wrong_options_are_refused(store, cli):
    for options in (
        *("--keep-best loss:up", "--keep-best :max", "--keep-last 0", "--to lots"),
        *("--empty --keep-last 1", "nobody"),
    ):
        done = cli("gc", *options.split(), "--yes")
        assert (done.code, done.out) == (2, ""), options
    assert steps(store, "gpt") == [100, 200, 300]


def test_a_store_is_brought_down_to_a_number_of_bytes(store, cli):
    verified(store)
    promised = cli("gc", "--to", "300kB").lines[4]
    done = cli("gc", "--to", "300kB", "--yes")
    assert done.code == 0
    assert on_disk(store) <= 300_000
    assert "1 checkpoint deleted, 268 kB freed" in done.lines
    for line in (promised, done.lines[-1]):
        assert size_text(on_disk(store)) in line
    done = cli("gc", "--to", "1kB", "--yes")
    assert done.code == 2
    assert done.lines[-3:] == [
        f"short       {size_text(on_disk(store) - 1000)} over 1 kB",
        "            2 checkpoints stay: the latest of its run",
        "            1 checkpoint stays: the best of its run",
    ]
    again = cli("gc", "--to", "1kB", "--json")
    assert (again.code, again.json["lines"]) == (2, [])
    assert again.json["short"] == again.json["total_before"] - 1000


def test_the_budget_of_the_store_counts_unless_runs_are_named(store, cli):
    store.budget = 300_000
    assert cli("gc", "gpt", "--yes").code == 0
    assert steps(store, "gpt") == [100, 200, 300]
    assert "300 kB" in cli("gc").lines[0]
    assert cli("gc", "--json").json["to"] == 300_000
    assert cli("gc", "--to", "1MB", "--json").json["lines"] == []
    assert cli("gc", "--yes").code == 0
    assert on_disk(store) <= 300_000
    put(Path(store.url, "store.json"), b"nothing")
    done = cli("gc", "--keep-last", "1")
    assert done.code == 1
    assert "store.json" in done.lines[0]


def test_a_metric_that_no_checkpoint_has_is_in_doubt(store, cli):
    gpt, bert = store.find_run("gpt"), store.find_run("bert")
    done = cli("gc", "gpt", "--keep-best", "los", "--to", "1kB", "--yes")
    assert done.code == 2
    assert done.lines[0].startswith(f"in doubt    {gpt.hash}: ")
    assert steps(store, "gpt") == [100, 200, 300]
    for step in (8, 9):
        bert.save(step, {}, {"los": step})
    found = cli("gc", "--keep-best", "los", "--json")
    assert (found.code, list(found.json["problems"])) == (0, [gpt.hash])
    assert [line["step"] for line in found.json["lines"]] == [7]
    gpt.set_retention(Retention((KeepBest(1, "bleu"),)))  # which may come yet
    done = cli("gc", "gpt")
    assert (done.code, done.lines[0][:8]) == (0, "in doubt")


def test_what_rm_deleted_is_listed_and_restored(store, cli):
    verified(store)
    there = files(store)
    gpt, bert = store.find_run("gpt").hash, store.find_run("bert").hash
    cli("rm", "gpt@100", "--yes")
    cli("rm", "bert", "--yes")
    lines = cli("restore").lines
    nbytes = Trash(store.backend).nbytes()
    assert lines[0].split() == "run hash steps holds age by goes in why".split()
    assert lines[1].startswith("bert ")
    assert "the run, 1 checkpoint" in lines[1]
    assert lines[2].split()[::2][:2] == ["gpt", "100"]
    assert " rm  7 d " in lines[2]
    assert size_text(nbytes) in lines[3]
    found = cli("restore", "--json").json
    assert [entry["steps"] for entry in found["entries"]] == [[7], [100]]
    assert [entry["whole_run"] for entry in found["entries"]] == [True, False]
    assert cli("du", "--json").json["trash"] == found["bytes"] == nbytes
    assert size_text(nbytes) in cli("du").lines[-1]
    for ref in ("gpt@200", "gpt@latest", "gpt@²", "nobody", "gpt@" + "9" * 50):
        done = cli("restore", ref)
        assert (done.code, done.out) == (2, ""), ref
    done = cli("restore", "gpt@100", "bert")
    assert done.lines == [f"restored    {gpt}@100", f"restored    {bert}@7"]
    assert files(store) == there
    assert cli("verify", "--all").code == 0


def test_a_damaged_checkpoint_stays_in_the_trash(store, cli):
    cli("rm", "gpt", "--yes")
    (entry,) = Trash(store.backend).entries()
    flip(Path(store.url, entry.path, f"{entry.run}_step_000100.json"), 30)
    done = cli("restore", "gpt")
    assert done.code == 1
    assert done.lines[:2] == [f"restored    {entry.run}@{step}" for step in (200, 300)]
    assert done.lines[2].startswith(f"in the trash {entry.run}@100: ")
    assert cli("restore", "gpt@100").code == 1
    assert steps(store, "gpt") == [200, 300]


@pytest.mark.parametrize("newer", ["record", "run file"])
def test_a_run_that_is_too_new_is_left_alone_and_not_called_damaged(store, cli, newer):
    run, record = store.find_run("gpt"), record_of(store, "gpt@200")
    if newer == "record":
        needing(record)
    else:
        resealed(folder(run) / f"{run.hash}_run.json", run_file.FORMAT, "standfast run 2")
    there = files(store)
    for more in ([], ["--yes"]):
        done = cli("gc", "--keep-last", "1", *more)
        assert done.code == 2
        assert done.lines[0].startswith(f"let be      {run.hash}: too new: models/")
        assert "damaged" not in done.out
    told = cli("gc", "--keep-last", "1", "--json").json
    assert (told["lines"], list(told["problems"])) == ([], [run.hash])
    assert files(store) == there
    if newer == "record":
        put(record, b"nothing")
        done = cli("gc", "--keep-last", "1", "--yes")
        assert done.code == 1
        assert done.lines[0].startswith(f"let be      {run.hash}: its record of step 200 ")
    else:
        assert cli("log", "--retention", "gpt").lines[1].startswith("too new: ")

"""`rm`, `du` and `doctor`: what a store takes, and what may go."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast import Store
from standfast.policies import Retention
from standfast.store.backends.local import LocalBackend
from standfast.store.retention.pins import pinned
from tests.kit.cli import at, call, data_files, flip_in, make_store, put


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


def on_disk(store: Store) -> int:
    """The bytes of all files of runs and of the trash, each once."""
    found = {}
    for top in ("models", "HP", "data", ".standfast/trash"):
        for path in Path(store.url, top).rglob("*"):
            status = path.stat()
            if path.is_file():
                found[status.st_ino] = status.st_size
    return sum(found.values())


def files(store: Store) -> set[str]:
    return {str(path) for path in Path(store.url, "models").rglob("*")}


def verified(store: Store) -> None:
    """So that no deletion verifies a checkpoint, and adds its marks to the files."""
    for run in store.runs():
        for checkpoint in run.checkpoints():
            checkpoint.verify()


# rm


@pytest.mark.parametrize("refs", [["gpt@100", "gpt@200"], ["gpt", "bert"]], ids=" ".join)
def test_rm_frees_what_it_said_once_the_trash_is_emptied(store: Store, refs: list[str]) -> None:
    verified(store)
    before, there = on_disk(store), files(store)
    promised = call("rm", *refs, "--json", *at(store)).json
    assert promised["deleted"] is False
    assert files(store) == there
    done = call("rm", *refs, "--yes", "--json", *at(store))
    assert done.code == 0
    assert done.json["deleted"] is done.json["in_trash"] is True
    assert on_disk(store) > before
    assert call("gc", "--empty", "--yes", *at(store)).code == 0
    assert before - on_disk(store) == promised["bytes"] == done.json["bytes"] > 0
    assert call("verify", "--all", *at(store)).code == (2 if refs == ["gpt", "bert"] else 0)


def test_rm_shows_what_would_go(store: Store) -> None:
    gpt, bert = store.find_run("gpt").hash, store.find_run("bert").hash
    done = call("rm", "gpt@300", "gpt@200", "bert", *at(store))
    assert done.code == 0
    assert done.lines[:3] == [
        f"would go    {gpt}@300 (gpt): the latest of its run",
        f"would go    {gpt}@200 (gpt): the best of its run",
        f"would go    run {bert} (bert) with 1 checkpoint",
    ]
    assert done.lines[3].endswith("would be free once the trash is emptied; --yes moves it there")
    done = call("rm", "gpt@100", "--yes", *at(store))
    assert done.lines[0] == f"deleted     {gpt}@100 (gpt)"
    assert "`standfast restore gpt@100` brings it back; the whole trash holds 26" in done.lines[1]
    assert [c.step for c in store.find_run("gpt").checkpoints()] == [200, 300]


def test_rm_refuses_what_is_protected_or_in_use(store: Store) -> None:
    store.resolve("gpt@200").tag("paper")
    gpt, there = store.find_run("gpt"), files(store)

    def refused(ref: str, why: str) -> None:
        for options, done in (((), "out"), (("--yes",), "err")):
            found = call("rm", ref, *options, *at(store))
            assert found.code == 2
            assert why in getattr(found, done), (ref, options)

    for ref in ("gpt@200", "paper", "gpt"):
        refused(ref, "'paper'")
    refused("bert@7", "intact")
    with pinned(store.backend, gpt.hash, 100):
        refused("gpt@100", f"step 100 of run {gpt.hash} is in use")
    assert files(store) == there
    gpt.checkpoint(200).untag("paper")
    with gpt:
        refused("gpt", "writes into it; end that first")
    assert call("rm", "gpt", *at(store)).code == 0


def test_rm_foretells_where_it_stops(store: Store) -> None:
    gpt, bert = store.find_run("gpt").hash, store.find_run("bert").hash
    store.resolve("gpt@200").tag("paper")
    refs = ("bert", "gpt@300", "gpt@200")
    done = call("rm", *refs, *at(store))
    assert done.code == 2
    assert done.lines[:4] == [
        f"would go    run {bert} (bert) with 1 checkpoint",
        f"refused     step 200 of run {gpt} is tagged 'paper': remove the tag first",
        f"would stay  {gpt}@300 (gpt)",
        f"would stay  {gpt}@200 (gpt)",
    ]
    found = call("rm", *refs, "--json", *at(store))
    assert (found.code, [each["run"] for each in found.json["what"]]) == (2, [bert])
    assert found.json["refused"] == [done.lines[1].removeprefix("refused     ")]
    alone = call("rm", "bert", "--json", *at(store)).json
    assert (alone["bytes"], alone["refused"]) == (found.json["bytes"], [])
    done = call("rm", *refs, "--yes", *at(store))
    assert done.code == 2
    assert done.lines[0].startswith("deleted     run")
    assert "`standfast restore bert`" in done.lines[1]
    assert [run.hash for run in store.runs()] == [gpt]
    assert len(store.find_run("gpt").checkpoints()) == 3


def test_rm_says_so_where_there_is_no_trash(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalBackend, "link", lambda *_, **__: False)
    promised = call("rm", "gpt@100", "--json", *at(store)).json["bytes"]
    before = on_disk(store)
    done = call("rm", "gpt@100", "--yes", *at(store))
    assert done.lines[1].endswith(" freed: without hard links there is no trash here")
    assert before - on_disk(store) == promised


def test_rm_wants_runs_and_steps(store: Store) -> None:
    there = files(store)
    for ref in ("latest", "gpt@latest", "gpt@best", "gpt@999", "nobody", "gpt@", "gpt@²"):
        done = call("rm", ref, "--yes", *at(store))
        assert (done.code, done.out) == (2, ""), ref
    assert files(store) == there
    assert call("rm", *at(store)).code == 2


# du


def test_du_counts_every_file_once(store: Store) -> None:
    report = call("du", "--json", *at(store)).json
    bert, gpt = report["runs"]
    total = report["total"]
    assert total["on_disk"] == on_disk(store)
    assert bert["on_disk"] + gpt["on_disk"] > total["on_disk"]
    assert (gpt["name"], gpt["checkpoints"], total["checkpoints"]) == ("gpt", 3, 4)
    weight = 128 * 256 * 4
    assert gpt["logical"] == 3 * (2 * weight + 16)
    assert gpt["saved"] == 2 * weight
    assert total["saved"] == 3 * weight
    assert report["orphans"] == {}


def test_du_prints_a_table_what_has_no_record_and_budgets(store: Store) -> None:
    first, *_ = data_files(store, "gpt")
    orphan = first.with_name(first.name.replace("000100", "000999"))
    orphan.write_bytes(bytes(1000))
    lines = call("du", *at(store)).lines
    assert lines[0].split() == ["run", "hash", "checkpoints", "logical", "disk", "saved"]
    assert lines[3].split()[:4] == ["total", "4", "918", "kB"]
    assert lines[4] == "1 file without a record, 1 kB: `standfast doctor` lists them"
    store.find_run("bert").set_retention(Retention(budget=2_000_000))
    store.budget = "5GB"
    lines = call("du", *at(store)).lines
    assert [line.split()[-2:] for line in lines[1:4:2]] == [["2", "MB"], ["5", "GB"]]
    report = call("du", "--json", *at(store)).json
    assert [run["budget"] for run in report["runs"]] == [2_000_000, None]
    assert (report["total"]["budget"], report["problem"]) == (5_000_000_000, None)
    put(Path(store.url, "store.json"), b"nothing")
    done = call("du", *at(store))
    assert (done.code, done.lines[3][:5]) == (1, "total")
    assert done.lines[4].startswith("damaged     the budget of the store: store.json: ")
    assert call("du", "--json", *at(store)).json["problem"].startswith("store.json")


# doctor


def test_doctor_of_a_sound_store(store: Store) -> None:
    done = call("doctor", *at(store))
    assert done.code == 0
    assert done.lines == [
        "4 checkpoints of 2 runs, 655 kB read; index and manifest were made again"
    ]


def test_doctor_lists_what_it_finds_and_deletes_what_is_ours(store: Store) -> None:
    first, *_ = data_files(store, "gpt")
    orphan = first.with_name(first.name.replace("000100", "000999"))
    orphan.write_bytes(bytes(1000))
    foreign = first.with_name("notes.txt")
    foreign.write_text("mine")
    done = call("doctor", *at(store))
    assert done.code == 0
    assert f"no record   models/{first.parent.name}/{orphan.name}: 1 kB" in done.lines
    name = f"models/{first.parent.name}/notes.txt"
    assert f"foreign     {name}: it is not ours, and was let be" in done.lines
    assert done.lines[-1] == "--yes deletes the files without a record, 1 kB"
    assert orphan.exists()
    done = call("doctor", "--yes", "--json", *at(store))
    assert list(done.json["deleted"]) == [f"models/{first.parent.name}/{orphan.name}"]
    assert not orphan.exists()
    assert foreign.exists()


def test_doctor_reports_what_it_restored_and_what_it_could_not(store: Store) -> None:
    path = flip_in(store, "gpt@100", "model.bias")
    run = path.parent.name
    put(path.with_name(f"{run}_run.json"), b"{}")
    done = call("doctor", *at(store))
    assert done.code == 1
    assert any(line.startswith(f"restored    models/{run}/{run}_run.json") for line in done.lines)
    (damaged,) = (line for line in done.lines if line.startswith("damaged"))
    assert damaged.startswith(f"damaged     {run}@100: ")
    assert "'model.bias'" in damaged
    report = call("doctor", "--json", *at(store)).json
    assert report["sound"] is False
    assert list(report["damaged"]) == [f"{run}@100"]

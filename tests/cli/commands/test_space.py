"""`rm`, `du` and `doctor`: what a store takes, and what may go."""

from pathlib import Path

import pytest

from standfast import Store
from standfast.policies import Retention
from standfast.store.retention.pins import pinned
from tests.kit.cli import data_files, flip_in, put


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


def orphan_of(store: Store) -> Path:
    """A data file of 1 kB without a record."""
    first, *_ = data_files(store, "gpt")
    orphan = first.with_name(first.name.replace("000100", "000999"))
    orphan.write_bytes(bytes(1000))
    return orphan


@pytest.mark.parametrize("refs", [["gpt@100", "gpt@200"], ["gpt", "bert"]], ids=" ".join)
def test_rm_frees_what_it_said_once_the_trash_is_emptied(store, cli, refs):
    verified(store)
    before, there = on_disk(store), files(store)
    promised = cli("rm", *refs, "--json").json
    assert promised["deleted"] is False
    assert files(store) == there
    done = cli("rm", *refs, "--yes", "--json")
    assert done.code == 0
    assert done.json["deleted"] is done.json["in_trash"] is True
    assert on_disk(store) > before
    assert cli("gc", "--empty", "--yes").code == 0
    assert before - on_disk(store) == promised["bytes"] == done.json["bytes"] > 0
    assert cli("verify", "--all").code == (2 if refs == ["gpt", "bert"] else 0)


def test_rm_shows_what_would_go(store, cli):
    gpt, bert = store.find_run("gpt").hash, store.find_run("bert").hash
    done = cli("rm", "gpt@300", "gpt@200", "bert")
    assert done.code == 0
    assert done.lines[:3] == [
        f"would go    {gpt}@300 (gpt): the latest of its run",
        f"would go    {gpt}@200 (gpt): the best of its run",
        f"would go    run {bert} (bert) with 1 checkpoint",
    ]
    done = cli("rm", "gpt@100", "--yes")
    assert done.lines[0] == f"deleted     {gpt}@100 (gpt)"
    assert "`standfast restore gpt@100`" in done.lines[1]
    assert [c.step for c in store.find_run("gpt").checkpoints()] == [200, 300]


def test_rm_refuses_what_is_protected_or_in_use(store, cli):
    store.resolve("gpt@200").tag("paper")
    gpt, there = store.find_run("gpt"), files(store)

    def refused(ref: str, why: str) -> None:
        for options, stream in (((), "out"), (("--yes",), "err")):
            found = cli("rm", ref, *options)
            assert found.code == 2
            assert why in getattr(found, stream), (ref, options)

    for ref in ("gpt@200", "paper", "gpt"):
        refused(ref, "'paper'")
    refused("bert@7", "intact")
    with pinned(store.backend, gpt.hash, 100):
        refused("gpt@100", gpt.hash)
    assert files(store) == there
    gpt.checkpoint(200).untag("paper")
    with gpt:
        refused("gpt", gpt.hash)
    assert cli("rm", "gpt").code == 0


def test_rm_foretells_where_it_stops(store, cli):
    gpt, bert = store.find_run("gpt").hash, store.find_run("bert").hash
    store.resolve("gpt@200").tag("paper")
    refs = ("bert", "gpt@300", "gpt@200")
    done = cli("rm", *refs)
    assert done.code == 2
    assert [line[:12].strip() for line in done.lines[:4]] == [
        *("would go", "refused", "would stay", "would stay")
    ]
    assert "'paper'" in done.lines[1]
    found = cli("rm", *refs, "--json")
    assert (found.code, [each["run"] for each in found.json["what"]]) == (2, [bert])
    assert found.json["refused"] == [done.lines[1].removeprefix("refused     ")]
    alone = cli("rm", "bert", "--json").json
    assert (alone["bytes"], alone["refused"]) == (found.json["bytes"], [])
    done = cli("rm", *refs, "--yes")
    assert done.code == 2
    assert "`standfast restore bert`" in done.lines[1]
    assert [run.hash for run in store.runs()] == [gpt]
    assert len(store.find_run("gpt").checkpoints()) == 3


def test_rm_without_hard_links_frees_at_once(store, cli, seams):
    seams.backend(link=lambda link, *_, **__: False)
    promised = cli("rm", "gpt@100", "--json").json["bytes"]
    before = on_disk(store)
    assert "freed" in cli("rm", "gpt@100", "--yes").lines[1]
    assert before - on_disk(store) == promised


def test_rm_wants_runs_and_steps(store, cli):
    there = files(store)
    for refs in ("latest", "gpt@latest", "gpt@best", "gpt@999", "nobody", "gpt@", "gpt@²", ""):
        done = cli("rm", *refs.split(), "--yes")
        assert (done.code, done.out) == (2, ""), refs
    assert files(store) == there


def test_du_counts_every_file_once(store, cli):
    report = cli("du", "--json").json
    bert, gpt = report["runs"]
    total = report["total"]
    assert total["on_disk"] == on_disk(store)
    assert bert["on_disk"] + gpt["on_disk"] > total["on_disk"]
    assert (gpt["name"], gpt["checkpoints"], total["checkpoints"]) == ("gpt", 3, 4)
    weight = 128 * 256 * 4
    assert gpt["logical"] == 3 * (2 * weight + 16)
    assert (gpt["saved"], total["saved"]) == (2 * weight, 3 * weight)
    assert report["orphans"] == {}


def test_du_prints_a_table_files_without_a_record_and_budgets(store, cli):
    orphan_of(store)
    lines = cli("du").lines
    assert lines[0].split() == ["run", "hash", "checkpoints", "logical", "disk", "saved"]
    assert lines[3].split()[:4] == ["total", "4", "918", "kB"]
    assert "1 file without a record, 1 kB" in lines[4]
    store.find_run("bert").set_retention(Retention(budget=2_000_000))
    store.budget = "5GB"
    lines = cli("du").lines
    assert [line.split()[-2:] for line in lines[1:4:2]] == [["2", "MB"], ["5", "GB"]]
    report = cli("du", "--json").json
    assert [run["budget"] for run in report["runs"]] == [2_000_000, None]
    assert (report["total"]["budget"], report["problem"]) == (5_000_000_000, None)
    put(Path(store.url, "store.json"), b"nothing")
    done = cli("du")
    assert (done.code, done.lines[3][:5], done.lines[4][:7]) == (1, "total", "damaged")
    assert cli("du", "--json").json["problem"].startswith("store.json")


def test_doctor_lists_what_it_finds_and_deletes_only_files_without_a_record(store, cli):
    done = cli("doctor")
    assert (done.code, len(done.lines)) == (0, 1)
    assert done.out.startswith("4 checkpoints of 2 runs, 655 kB")
    orphan = orphan_of(store)
    foreign = orphan.with_name("notes.txt")
    foreign.write_text("mine")
    done, home = cli("doctor"), f"models/{orphan.parent.name}"
    assert done.code == 0
    assert f"no record   {home}/{orphan.name}: 1 kB" in done.lines
    assert any(line.startswith(f"foreign     {home}/notes.txt: ") for line in done.lines)
    assert orphan.exists()
    assert list(cli("doctor", "--yes", "--json").json["deleted"]) == [f"{home}/{orphan.name}"]
    assert not orphan.exists()
    assert foreign.exists()


def test_doctor_reports_what_it_restored_and_what_it_could_not(store, cli):
    path = flip_in(store, "gpt@100", "model.bias")
    run = path.parent.name
    put(path.with_name(f"{run}_run.json"), b"{}")
    done = cli("doctor")
    assert done.code == 1
    assert any(line.startswith(f"restored    models/{run}/{run}_run.json") for line in done.lines)
    (damaged,) = (line for line in done.lines if line.startswith(f"damaged     {run}@100: "))
    assert "'model.bias'" in damaged
    report = cli("doctor", "--json").json
    assert (report["sound"], list(report["damaged"])) == (False, [f"{run}@100"])

"""`ls`, `show` and `diff` inside a store."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast import Store
from standfast.display.output import age_text, hash_text
from standfast.errors import FellBack
from tests.cli.test_cli import STANDFAST
from tests.kit.cli import at, call, copy_of, flip, flip_in, make_store, put, record_of, weights
from tests.store.schema.test_versions import needing, of_version_2


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = make_store(tmp_path_factory.mktemp("reading") / "store")
    store.resolve("gpt@200").tag("paper")
    store.resolve("gpt@200").note("looks \x1b[2J good")
    return store


def test_ls_lists_the_newest_first(store, cli, tmp_path):
    heading, *rows = (line.split() for line in cli("ls").lines)
    assert heading == "run hash step epoch loss accuracy size written saved marks".split()
    found = [(row[0], row[2]) for row in rows]
    assert found == [("bert", "7"), ("gpt", "300"), ("gpt", "200"), ("gpt", "100")]
    assert rows[0][-1] == "latest"
    assert rows[2][-2:] == ["best,", "paper"]
    assert rows[2][3:8] == ["2", "0.5", "0.25", "262", "kB"]
    assert rows[0][3:5] == ["131", "kB"]  # without metrics
    run = store.find_run("gpt").hash
    assert cli("ls", run[:6]).lines == cli("ls", "gpt").lines
    listed = cli("ls", "--json").json
    best = listed[2]
    assert (best["ref"], best["name"]) == (f"{run}@200", "gpt")
    assert best["metrics"] == {"loss": 0.5, "accuracy": 0.25}
    assert best["marks"] == ["best", "paper"]
    token = store.checkpoint(run, 100).head.token
    assert best["parent"] == {"run": run, "step": 100, "sequence": 1, "token": token}
    assert best["nbytes"] == 2 * 128 * 256 * 4 + 16
    assert [each["written"] > 200_000 for each in listed] == [False, False, True, True]
    Store(tmp_path).run("empty")
    assert call("ls", "--store", tmp_path).code == 0
    assert call("ls", "--json", "--store", tmp_path).json == []


def test_ls_lists_as_many_as_are_asked_for(tmp_path):
    store = Store(tmp_path / "store")
    with store.run("many") as run:
        for step in range(53):
            run.save(step, {}, best=step < 3)
    listed = call("ls", "--all", "--json", *at(store)).json
    assert [each["step"] for each in listed if "best" in each["marks"]] == [2]
    assert len(listed) == 53
    assert len(call("ls", "--json", *at(store)).json) == 50
    assert [each["step"] for each in call("ls", "-n", "2", "--json", *at(store)).json] == [52, 51]


def test_ls_reads_only_heads_and_shows_those_that_are_damaged(store, tmp_path):
    copy = copy_of(store, tmp_path / "copy")
    cut = record_of(copy, "gpt@100")
    put(cut, cut.read_bytes().partition(b"\n")[0] + b"\n")
    put(record_of(copy, "gpt@200"), b"nothing")
    lines = call("ls", *at(copy)).lines
    assert lines[-1].split()[2:] == ["200", "damaged,", "paper"]
    listed = call("ls", "--json", *at(copy)).json
    assert [each["step"] for each in listed if "damaged" in each] == [200]
    assert call("show", "gpt@100", *at(copy)).code == 1


def test_ls_fits_a_terminal_and_says_what_it_left_out(tmp_path, terminal):
    store = Store(tmp_path / "store")
    metrics = {"loss": 0.5, "validation perplexity": 12.5, "accuracy": 1, "x" * 60: 2}
    with store.run("a run with a longish name") as run:
        for step in (1, 2, 3):
            run.save(step, {}, metrics=metrics)
    shown = terminal("ls", "-n", "2", *at(store))
    assert "\x1b[1m" in shown  # a bold heading
    assert "1 older; --all" in shown
    assert "0.5                   12.5         1" in shown
    assert "xxx" not in shown
    assert "1 more metric; --json" in shown
    assert all(len(line) <= 100 for line in shown.splitlines() if "\x1b" not in line)
    assert "x" * 60 in call("ls", *at(store)).out
    with store.run("hostile") as run:
        run.save(1, {"x\x1b[2J": 1}, metrics={"\x1b[2Jgone": float("nan")})
    for arguments in (("ls", "hostile", *at(store)), ("show", "hostile", *at(store))):
        for shown in (call(*arguments).out, terminal(*arguments)):
            assert "\x1b[2J" not in shown
            assert r"\x1b[2Jgone" in shown


def test_a_pipe_that_is_closed_early_is_no_error(store):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([STANDFAST, "ls", *at(store)], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_show_prints_what_a_checkpoint_is_and_holds(store, cli, terminal):
    lines, run = cli("show", "gpt@200").lines, store.find_run("gpt").hash
    assert lines[:2] == ["gpt@200", "262 kB in 3 tensors, 266 kB written for it"]
    for line in (
        f"  run: {run[:8]}_{run[8:16]}_{run[16:]}",
        "  metric loss: 0.5",
        f"  parent: {run}@100",
        "  kept: the best of its run; tagged 'paper'; all are kept",
        "  best: saved as the best of its run",
        "  optimizer.lr: 0.5",
        r"  key: b'\x00\x01'",
        "  order: [3, 1, 2]",
        "model.weight      float32  128×256  131 kB",
        "model            2  131 kB",
        f"{store.resolve('gpt@200').head.files[0].name}  266 kB  262 kB  262 kB",
    ):
        assert line in lines, line
    assert any(line.endswith(r": looks \x1b[2J good") for line in lines)
    assert any(line.startswith("  software: python") for line in lines)
    assert not any("written by" in line for line in lines)
    shown = terminal("show", "gpt@200", *at(store))
    assert "4 plain values; --all" in shown
    assert "optimizer.lr" not in shown
    assert "optimizer.lr: 0.5" in terminal("show", "gpt@200", "--all", *at(store))
    found = cli("show", "paper", "--json").json
    assert found["ref"] == store.resolve("gpt@200").ref
    assert (found["name"], found["step"], found["epoch"]) == ("gpt", 200, 2)
    assert found["metrics"] == {"loss": 0.5, "accuracy": 0.25}
    assert (found["tags"], found["notes"][0]["text"]) == (["paper"], "looks \x1b[2J good")
    assert (found["values"]["order"], found["values"]["key"]) == ([3, 1, 2], r"b'\x00\x01'")
    assert found["parts"] == ["model", "optimizer"]
    assert found["tensors"][0]["name"] == "model.weight"


def test_a_damaged_run_file_hides_no_checkpoint(store, tmp_path):
    copy = copy_of(store, tmp_path / "copy")
    run = copy.find_run("gpt").hash
    put(Path(copy.url, "models", run, f"{run}_run.json"), b"nothing")
    for command in ("show paper", "diff paper paper", f"export paper {tmp_path / 'x'}"):
        with pytest.warns(FellBack):
            assert call(*command.split(), *at(copy)).code == 0


def test_show_says_on_one_line_that_it_fell_back(store, tmp_path):
    copy = copy_of(store, tmp_path / "copy")
    bert = copy.resolve("bert")
    Path(copy.url, "models", bert.head.run, bert.head.files[0].name).unlink()
    command = [STANDFAST, "show", "latest", *at(copy)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("gpt@300\n")
    (line,) = done.stderr.splitlines()
    assert bert.head.files[0].name in line
    assert copy.resolve("gpt@300").ref in line
    record = record_of(copy, "gpt@200")
    put(record, record.read_bytes()[:-40])
    call("show", "gpt@200", *at(copy)).fails(1, record.name)


def test_diff_of_two_checkpoints(store, cli):
    done = cli("diff", "gpt@200", "gpt@300")
    assert done.code == 3
    run = hash_text(store.find_run("gpt").hash)
    assert done.lines == [
        f"gpt@200, epoch 2  {run}",
        f"gpt@300, epoch 3  {run}",
        "metrics",
        "  loss: 0.5 → 0.333333",
        "values",
        "  step: 200 → 300",
        "tensor      what     dtype and shape  max  mean  elements",
        "model.bias  changed  float32 4        100   100    100.0%",
        "2 tensors have the same digests in both (verify reads them)",
    ]
    report = cli("diff", "gpt@200", "gpt@300", "--json").json
    assert (report["before"], report["equal_digests"]) == ("gpt@200", 2)
    assert report["metadata"]["epoch"] == {"before": 2, "after": 3}


def test_diff_of_a_file_and_a_checkpoint(cli, tmp_path):
    path = tmp_path / "model.pt"
    standfast.save(path, {"model.weight": weights(1) + 1, "other": np.ones(2)}, {"step": 200})
    done = cli("diff", path, "gpt@200")
    assert done.code == 3
    assert "model.weight      changed  float32 128×256    1     1    100.0%" in done.lines
    assert "model.bias        new      float32 4" in done.lines
    assert "other             gone     float64 2" in done.lines
    assert not any(line.startswith("metadata step") for line in done.lines)
    assert cli("diff", "gpt@200", path).code == 3


@pytest.mark.guarantee("G9")
def test_a_damaged_file_of_equal_digests_is_damage(store, tmp_path):
    paths = [tmp_path / "a.npz", tmp_path / "b.pt"]
    for path in paths:
        standfast.save(path, {"w": np.arange(50.0)})
    assert call("diff", *paths).code == 0
    flip(paths[0], paths[0].read_bytes().index(np.arange(50.0).tobytes()))
    for each in (paths, paths[::-1]):
        done = call("diff", *each)
        assert (done.code, "'w'" in done.err) == (1, True)
    copy = copy_of(store, tmp_path / "copy")
    flip_in(copy, "gpt@300", "model.bias")
    for before in ("gpt@200", "gpt@300"):
        done = call("diff", before, "gpt@300", *at(copy))
        assert (done.code, "'model.bias'" in done.err) == (1, True)


def test_ages_are_told_in_one_unit():
    for time, age in (
        *(("15T11:59:30.000000Z", "30 s"), ("15T11:48:00.000000Z", "12 min")),
        *(("14T09:00:00.000000Z", "27 h"), ("01T12:00:00.000000Z", "14 d")),
        *(("15T13:00:00.000000Z", "0 s"), ("15T11:00:00", "?"), ("never", "?")),
    ):
        assert age_text(f"2026-11-{time}", datetime(2026, 11, 15, 12, 0, tzinfo=UTC)) == age


@pytest.mark.parametrize("newer", [needing, of_version_2])
def test_a_record_that_is_too_new_is_not_listed_as_damaged(store, tmp_path, newer):
    copy = copy_of(store, tmp_path / "copy")
    newer(record_of(copy, "gpt@200"))
    for command in (["ls"], ["log", "gpt"]):
        done = call(*command, *at(copy))
        (line,) = (line for line in done.lines if "too new" in line)
        assert line.endswith("paper")
        assert "damaged" not in done.out
        told = call(*command, "--json", *at(copy)).json
        listed = told if command == ["ls"] else told[0]["checkpoints"]
        assert [each["step"] for each in listed if "too_new" in each] == [200]

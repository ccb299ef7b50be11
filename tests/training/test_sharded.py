"""Checkpointers of programs on several ranks: killed, resumed, and moved to other numbers of ranks.

All programs run in one start, and the tests look at what they left.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import standfast
from tests import ROOT

STEPS = 8
KILLED = 5
SAVED = 4


class Ran:
    """What the programs left: a store and the results of each rank, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: list[Any] = []
        self.names: list[str] = []
        self.codes: dict[str, list[int]] = {}

    def add(self, name: str, ranks: int, store: str, steps: int, *options: str) -> None:
        self.names.append(name)
        places = [str(self.folder / f"{store} store"), str(self.folder / name)]
        self.jobs.append({"ranks": ranks, "arguments": [*places, str(steps), *options]})

    def copy(self, store: str, to: str) -> None:
        paths = [str(self.folder / f"{each} store") for each in (store, to)]
        self.jobs.append({"copy": paths})

    def add_kill_and_resume(self, kind: str) -> None:
        """A run that is not stopped, one that is killed, and the same when it goes on."""
        self.add(f"{kind} whole", 2, f"{kind} whole", STEPS, "--kind", kind, "--sync")
        self.add(f"{kind} killed", 2, kind, STEPS, "--kind", kind, "--kill-at", str(KILLED))
        self.copy(kind, f"{kind} copy")
        self.add(f"{kind} resumed", 2, kind, STEPS, "--kind", kind)

    def run(self) -> None:
        command = [sys.executable, "-m", "tests.training.programs.sharded_jobs"]
        done = subprocess.run(
            [*command, json.dumps(self.jobs)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        self.stderr = done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        self.codes = dict(zip(self.names, found, strict=True))

    def results(self, name: str) -> list[Any]:
        assert set(self.codes[name]) == {0}, self.stderr[-3000:]
        files = sorted((self.folder / name).iterdir())
        return [torch.load(file, weights_only=True) for file in files]

    def store(self, name: str) -> standfast.Store:
        return standfast.Store(self.folder / f"{name} store")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    ran = Ran(tmp_path_factory.mktemp("ran"))
    ran.add_kill_and_resume("fsdp")
    ran.copy("fsdp copy", "other")
    ran.add("three", 3, "other", SAVED + 2, "--lenient", "--sync")
    ran.add("one", 1, "fsdp copy", SAVED, "--kind", "none", "--lenient", "--sync")
    options = ("--signal-at", "3", "--every", "10min", "--sync", "--by-hand")
    ran.add("asked", 2, "asked", 1_000_000, *options)
    ran.run()
    return ran


@pytest.fixture(scope="module")
def ran_all(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    ran = Ran(tmp_path_factory.mktemp("ran all"))
    ran.add_kill_and_resume("ddp")
    ran.add_kill_and_resume("tp")
    ran.copy("tp copy", "fsdp")
    ran.add("fsdp", 2, "fsdp", SAVED)
    ran.add("refused", 3, "tp copy", SAVED)
    ran.add("hsdp", 4, "hsdp", 2, "--kind", "hsdp", "--sync")
    ran.run()
    return ran


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from leaves(value, f"{path}.{number}")
    else:
        yield path, tree


def differing(one: Any, other: Any) -> list[str]:
    a, b = dict(leaves(one)), dict(leaves(other))
    return [
        path
        for path in {**a, **b}
        if path not in a
        or path not in b
        or not (torch.equal(a[path], b[path]) if torch.is_tensor(a[path]) else a[path] == b[path])
    ]


def check_resumed(ran: Ran, kind: str) -> None:
    assert ran.codes[f"{kind} killed"][1] == -9
    assert ran.codes[f"{kind} killed"][0] == 1
    resumed = ran.results(f"{kind} resumed")
    assert [each["resumed"] for each in resumed] == [SAVED, SAVED]
    for rank, (whole, again) in enumerate(zip(ran.results(f"{kind} whole"), resumed, strict=True)):
        assert again["exact"], again["inexact"]
        assert again.pop("seen") == whole.pop("seen")[SAVED:]
        assert differing(whole, again) == [".resumed"], rank
    own = [tuple(each["drawn"]["values"]) for each in resumed]
    assert len(set(own)) == 2, "each rank draws other numbers"


@pytest.mark.long
def test_a_run_that_was_killed_goes_on_exactly(ran: Ran) -> None:
    check_resumed(ran, "fsdp")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "tp"])
def test_a_run_of_another_kind_that_was_killed_goes_on_exactly(ran_all: Ran, kind: str) -> None:
    check_resumed(ran_all, kind)


def state_in(ran: Ran, store: str, step: int) -> Any:
    """What one process finds."""
    state = ran.store(store).resolve(f"run@{step}").state()
    return {"model": dict(state["model"]), "optimizer": state["optimizer"]}


def check_tensors(ran: Ran, name: str, store: str, step: int) -> None:
    expected = state_in(ran, store, step)
    for found in ran.results(name):
        assert found["resumed"] == SAVED
        state = {"model": dict(found["model"]), "optimizer": found["optimizer"]}
        assert differing(expected, state) == []


def test_one_process_goes_on_with_the_same_tensors(ran: Ran) -> None:
    check_tensors(ran, "one", "fsdp", SAVED)


def test_another_number_of_ranks_goes_on_with_the_same_tensors_and_samples(ran: Ran) -> None:
    check_tensors(ran, "three", "other", SAVED + 2)
    before, after = ran.results("fsdp whole"), ran.results("three")
    for step in (0, 1):
        expected = [number for rank in before for number in rank["seen"][SAVED + step]]
        assert [number for rank in after for number in rank["seen"][step]] == expected


@pytest.mark.long
def test_another_layout_goes_on_exactly(ran_all: Ran) -> None:
    check_tensors(ran_all, "fsdp", "tp", SAVED)
    assert all(each["exact"] for each in ran_all.results("fsdp"))


@pytest.mark.long
def test_what_was_the_ranks_own_is_refused_on_another_number(ran_all: Ran) -> None:
    assert ran_all.codes["refused"] == [1, 1, 1]
    lines = ran_all.stderr.splitlines()
    assert len([line for line in lines if "drawn: 2 ranks saved it, 3 go on" in line]) >= 3


def test_a_change_of_the_number_of_ranks_is_told(ran: Ran) -> None:
    for found in ran.results("three"):
        first, second = found["inexact"]
        assert first == "2 ranks saved it, 3 go on: random numbers are not those of before"
        assert second.startswith("drawn: 2 ranks saved it, 3 go on")


@pytest.mark.long
def test_replicas_of_shards_are_written_once(ran_all: Ran) -> None:
    found = ran_all.results("hsdp")
    checkpoint = ran_all.store("hsdp").resolve("run@2")
    checkpoint.verify()
    state = state_in(ran_all, "hsdp", 2)
    assert differing(state, {"model": found[0]["model"], "optimizer": found[0]["optimizer"]}) == []
    held = sum(file.held for file in checkpoint.head.files)
    assert held == checkpoint.nbytes


def test_a_signal_to_one_rank_stops_all_at_one_step(ran: Ran) -> None:
    found = ran.results("asked")
    assert [each["stopped"] for each in found] == [True, True]
    checkpoint = ran.store("asked").resolve("run@latest")
    assert checkpoint.step >= 3
    assert differing(state_in(ran, "asked", checkpoint.step)["model"], found[0]["model"]) == []


def test_what_torchs_own_functions_give_is_saved_and_filled_by_every_rank(ran: Ran) -> None:
    state = ran.store("asked").resolve("by hand@1").state()
    assert any("exp_avg" in path for path, _ in leaves(state))
    for found in ran.results("asked"):
        by_hand = found["by hand"]
        assert differing(by_hand["before"], by_hand["after"]) == []
        assert differing(by_hand["before"], state) == []


def test_only_rank_0_speaks_and_writes_the_log(ran: Ran) -> None:
    assert ran.stderr.count("continues after step 4, exactly as it was") == 1
    assert ran.stderr.count("continues after step 4, which may not be exact") == 2
    log = next((ran.folder / "fsdp store").rglob("*_metrics.jsonl"))
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [*range(1, 9)]

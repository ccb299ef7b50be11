"""Checkpointers of programs on several ranks: killed, resumed, and moved to other numbers of ranks.

All programs run in one start, and the tests look at what they left.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import keystr, tree_leaves_with_path

import standfast
from tests import ROOT
from tests.kit.parallel_ranks import run_ranks
from tests.kit.stores import same

MPI = Path(__file__).with_name("programs") / "mpi_walk.py"
KINDS = ("fsdp", "ddp", "tp")
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

    def add_kill(self, kind: str) -> None:
        """A run that is not stopped, and one that is killed."""
        self.add(f"{kind} whole", 2, f"{kind} whole", STEPS, "--kind", kind, "--sync")
        self.add(f"{kind} killed", 2, kind, STEPS, "--kind", kind, "--kill-at", str(KILLED))

    def add_kill_and_resume(self, kind: str) -> None:
        """These, and the one that was killed when it goes on."""
        self.add_kill(kind)
        self.copy(kind, f"{kind} copy")
        self.add(f"{kind} resumed", 2, kind, STEPS, "--kind", kind)

    def run(self) -> None:
        command = [sys.executable, "-m", "tests.training.programs.sharded_jobs"]
        done = subprocess.run(
            [*command, json.dumps(self.jobs)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=500,
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
    ran.add_kill("fsdp")
    ran.copy("fsdp", "other")
    ran.add("three", 3, "other", SAVED + 2, "--lenient", "--sync")
    ran.add("one", 1, "fsdp", SAVED, "--kind", "none", "--lenient", "--sync")
    options = ("--signal-at", "3", "--every", "10min", "--sync", "--by-hand")
    ran.add("asked", 2, "asked", 1_000_000, *options)
    ran.run()
    return ran


@pytest.fixture(scope="module")
def ran_all(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    ran = Ran(tmp_path_factory.mktemp("ran all"))
    for kind in KINDS:
        ran.add_kill_and_resume(kind)
    ran.copy("tp copy", "other layout")
    ran.add("other layout", 2, "other layout", SAVED)
    ran.add("refused", 3, "tp copy", SAVED)
    ran.add("hsdp", 4, "hsdp", 2, "--kind", "hsdp", "--sync")
    ran.run()
    return ran


def leaves(tree: Any) -> dict[str, Any]:
    return {keystr(path): leaf for path, leaf in tree_leaves_with_path(tree)}


def differing(one: Any, other: Any) -> list[str]:
    a, b = leaves(one), leaves(other)
    nothing = object()
    return [path for path in {**a, **b} if not same(a.get(path, nothing), b.get(path))]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_goes_on_exactly(ran_all, kind):
    assert ran_all.codes[f"{kind} killed"][1] == -9
    assert ran_all.codes[f"{kind} killed"][0] == 1
    resumed = ran_all.results(f"{kind} resumed")
    assert [each["resumed"] for each in resumed] == [SAVED, SAVED]
    for rank, (whole, again) in enumerate(
        zip(ran_all.results(f"{kind} whole"), resumed, strict=True)
    ):
        assert again["exact"], again["inexact"]
        assert again.pop("seen") == whole.pop("seen")[SAVED:]
        assert differing(whole, again) == ["['resumed']"], rank
    own = [tuple(each["drawn"]["values"]) for each in resumed]
    assert len(set(own)) == 2, "each rank draws other numbers"


def check_tensors(ran: Ran, name: str, store: str, step: int, resumed: int = SAVED) -> Any:
    """One process finds what each rank ended with; returns the checkpoint."""
    checkpoint = ran.store(store).resolve(f"run@{step}")
    state = checkpoint.state()
    expected = {"model": dict(state["model"]), "optimizer": state["optimizer"]}
    for found in ran.results(name):
        assert found["resumed"] == resumed
        ended = {"model": dict(found["model"]), "optimizer": found["optimizer"]}
        assert differing(expected, ended) == []
    return checkpoint


def test_one_process_goes_on_with_the_same_tensors(ran):
    check_tensors(ran, "one", "fsdp", SAVED)


def test_another_number_of_ranks_goes_on_with_the_same_tensors_and_samples(ran):
    check_tensors(ran, "three", "other", SAVED + 2)
    before, after = ran.results("fsdp whole"), ran.results("three")
    for step in (0, 1):
        expected = [number for rank in before for number in rank["seen"][SAVED + step]]
        assert [number for rank in after for number in rank["seen"][step]] == expected
    for found in after:
        generators, drawn = found["inexact"]
        assert "2 ranks saved it, 3 go on" in generators
        assert drawn.startswith("drawn: 2 ranks saved it, 3 go on")


@pytest.mark.long
def test_another_layout_goes_on_exactly(ran_all):
    check_tensors(ran_all, "other layout", "tp", SAVED)
    assert all(each["exact"] for each in ran_all.results("other layout"))


@pytest.mark.long
def test_what_was_the_ranks_own_is_refused_on_another_number(ran_all):
    assert ran_all.codes["refused"] == [1, 1, 1]
    lines = ran_all.stderr.splitlines()
    assert len([line for line in lines if "drawn: 2 ranks saved it, 3 go on" in line]) >= 3


@pytest.mark.long
def test_replicas_of_shards_are_written_once(ran_all):
    checkpoint = check_tensors(ran_all, "hsdp", "hsdp", 2, resumed=0)
    checkpoint.verify()
    assert sum(file.held for file in checkpoint.head.files) == checkpoint.nbytes


def test_a_signal_to_one_rank_stops_all_at_one_step(ran):
    assert [each["stopped"] for each in ran.results("asked")] == [True, True]
    step = ran.store("asked").resolve("run@latest").step
    assert step >= 3
    check_tensors(ran, "asked", "asked", step, resumed=0)


def test_what_torchs_own_functions_give_is_saved_and_filled_by_every_rank(ran):
    state = ran.store("asked").resolve("by hand@1").state()
    assert any("exp_avg" in path for path in leaves(state))
    for found in ran.results("asked"):
        by_hand = found["by hand"]
        assert differing(by_hand["before"], by_hand["after"]) == []
        assert differing(by_hand["before"], state) == []


def test_only_rank_0_speaks_and_writes_the_log(ran):
    assert ran.stderr.count("continues after step 4") == 2
    log = next((ran.folder / "other store").rglob("*_metrics.jsonl"))
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [*range(1, 7)]


def walked(folder: Path, store: Path, steps: int, kill_at: int = 0) -> list[Any]:
    folder.mkdir()
    arguments = (str(store), str(folder), str(steps), str(kill_at))
    run_ranks(2, MPI, *arguments, timeout=300, check=not kill_at)
    return [json.loads(file.read_text()) for file in sorted(folder.iterdir())]


def test_a_program_of_mpi_that_was_killed_goes_on_exactly(tmp_path):
    whole = walked(tmp_path / "whole", tmp_path / "a", 7)
    assert walked(tmp_path / "killed", tmp_path / "b", 7, kill_at=5) == []
    resumed = walked(tmp_path / "resumed", tmp_path / "b", 7)
    assert [each.pop("resumed") for each in resumed] == [4, 4]
    assert [each.pop("resumed") for each in whole] == [0, 0]
    assert resumed == whole
    assert whole[0]["here"] != whole[1]["here"]
    assert whole[0]["common"] == whole[1]["common"]
    state = standfast.Store(tmp_path / "b").resolve("walk@latest").state()
    assert state["walk"]["common"].tobytes().hex() == whole[0]["common"]
    own = [each["here"].tobytes().hex() for each in state["walk"]["position"]]
    assert own == [each["here"] for each in whole]

"""What is wrong for one rank is refused on all of them, in the same words, and nothing is saved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from standfast import Store
from standfast.amr import Snapshot
from standfast.errors import IncompatibleCheckpoint, StateMismatch, WrongRankCount
from tests.amr.restart.refusals import HEAT
from tests.kit.parallel_ranks import run_ranks

COUNT = 3
PROGRAM = Path(__file__).with_name("refusals.py")
FRONTENDS = {
    "dimension": "nd: expected 3, found 2",
    "block size": "block_size: expected 8, found 4",
    "dtype": "dtype: expected 'float32', found 'float64'",
    "topology": r"topology: expected {'boundary': \['periodic'.*found {'boundary': \['open'",
    "extents": r"topology: expected .*\[16.0, 8.0\]}, found .*\[16.0, 16.0\]}",
    "kind": "kind: expected 'gauge', found 'scalar'",
    "group": "n_gauge: expected 2, found 1",
    "spinor": "n_spinor: expected 2, found 1",
}
OTHERS = {
    "rank count": ("WrongRankCount", "saved by 1 rank, and is loaded by 3: pass reshard=True"),
    "no snapshot": ("RefNotFound", "has no checkpoint yet"),
    "no step": ("RefNotFound", "has no checkpoint of step 77"),
    "which snapshot": ("RanksDisagree", "ranks 0, 2 have .* 1], and rank 1 has .*'latest'"),
    "step": ("RanksDisagree", "the step: ranks 0, 2 have 2, and rank 1 has 3; "),
    "step and time": ("RanksDisagree", "the step: ranks 0, 2 have 2, and rank 1 has 3; "),
    "time": ("RanksDisagree", "the time: ranks 0, 2 have 0.25, and rank 1 has 0.5"),
    "values": ("RanksDisagree", "the values"),
    "values of one type": ("RanksDisagree", "the values"),
    "metrics": ("RanksDisagree", "the metrics: ranks 0, 2 have {'loss': 0.25}"),
    "replace": ("RanksDisagree", "`replace`"),
    "run": ("RanksDisagree", "the run"),
    "saved frontend": ("RanksDisagree", "the frontend: .*'float64'.*rank 1 has .*'float32'"),
    "levels": ("RanksDisagree", r"the levels of the tree: ranks 0, 2 have \[1.0, 6, 2\]"),
    "step exists": ("StepExists", "has a checkpoint of step 1 already"),
    "inside apply": ("GhostsInUse", "^rank 1 of 3: .*a kernel is being applied"),
    "busy": ("RunBusy", "^rank 0 of 3: .* writes into it"),
    "random": ("RefusedState", "^rank 1 of 3: .*no random generator"),
    "infinite": ("BadOption", "^rank 1 of 3: .*time=inf"),
    "unsound": ("BadBlock", "^rank 1 of 3: .*a slot for each live block"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks have left their store, and each what it was refused."""
    folder = tmp_path_factory.mktemp("refusals")
    run_ranks(COUNT, PROGRAM, str(folder / "store"), str(folder))
    return folder


def _told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(COUNT)]


def test_every_refusal_is_of_one_kind_and_in_one_text_on_all_ranks(folder: Path) -> None:
    told = _told(folder)
    expected = {
        f"frontend: {name}, {who}": (
            "IncompatibleCheckpoint",
            f"^{'all 3 ranks' if who == 'all' else 'rank 1 of 3'}: .*{text}",
        )
        for name, text in FRONTENDS.items()
        for who in ("all", "one")
    }
    expected |= OTHERS
    assert set(told[0]) == {*expected, "damaged", "fell back", "after"}
    for case, (kind, text) in expected.items():
        found, words, steps = told[0][case]
        assert found == kind, (case, words)
        assert re.search(text, words), (case, words)
        assert all(each[case] == told[0][case] for each in told), case
        assert steps == ([] if case in ("no snapshot", "busy") else [1]), case


def test_the_latest_falls_back_on_all_ranks_and_a_later_save_is_found(folder: Path) -> None:
    told = _told(folder)
    for each in told:
        assert each["damaged"] == told[0]["damaged"]
        assert each["fell back"][0] == 1
        assert each["after"] == 30
    assert re.search("^rank 1 of 3: .*'rank1.blocks' is damaged", told[0]["damaged"][1])
    warned = [len(each["fell back"][1]) for each in told]
    assert warned == [1, 0, 0], "who reads along is told once"


def test_one_process_refuses_what_several_ranks_have_saved(folder: Path) -> None:
    run = Store(folder / "store").run("heat")
    with pytest.raises(WrongRankCount, match="saved by 3 ranks, and is loaded by 1: pass reshard"):
        Snapshot.load(run, 1)
    with pytest.raises(IncompatibleCheckpoint, match="nd: expected 3"):
        Snapshot.load(run, 1, frontend=HEAT["dimension"], reshard=True)
    alone = Snapshot.load(run, 1, reshard=True)
    with pytest.raises(StateMismatch, match="random states of kicks, and no generators were given"):
        alone.restore_random()

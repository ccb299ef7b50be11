"""Real programs, killed and resumed, end with the same bytes as if nobody had touched them.

And, as a proof that cannot fail proves nothing: what happens when a part is not saved.
"""

import importlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast.training.beginning import PROOF
from standfast.training.proof.comparison import Comparison, compare_stores
from standfast.training.proof.proof import prove
from tests.kit.cases import kept

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

PROGRAMS = Path(__file__).parents[1] / "programs"
LENET = {
    "python": "step 5, metrics.loss",
    "numpy": "step 5, metrics.loss",
    "torch": "step 5, metrics.loss",
    "loader": "step 5, metrics.loss",
    "scheduler": "step 5, metrics.lr",
    "momentum": "step 6, metrics.loss",
}
"""What is first to differ if a part is not saved, in a run that is resumed after step 4.

Momentum changes the weights in step 5, and so the loss of step 6.
"""
GPT = {
    "python": "step 5, metrics.loss",
    "numpy": "step 5, metrics.loss",
    "torch": "step 5, metrics.loss",
    "sampler": "step 5, metrics.loss",
    "moments": "step 6, metrics.loss",
}
CONTROLS = [(name, part) for name, parts in (("lenet", LENET), ("gpt", GPT)) for part in parts]

Load = Callable[[str], Any]


@pytest.mark.long
@pytest.mark.guarantee("G20")
@pytest.mark.parametrize(
    ("program", "steps", "kills", "in_saves"),
    [("lenet", 20, 3, 3), ("gpt", 20, 2, 0), ("lenet", 120, 20, None), ("gpt", 120, 20, None)],
)
def test_a_program_that_is_killed_is_exact(program, steps, kills, in_saves):
    command = [sys.executable, str(PROGRAMS / f"{program}.py"), "--steps", str(steps)]
    proof = prove(command, kills=kills, in_saves=in_saves, seed=20, patience=60, say=print)
    assert proof.exact, proof
    assert len(proof.kills) == kills
    # A save is short: of few kills that are meant for one, all may miss it on a busy machine.
    assert proof.in_saves >= (kills > 3), proof.kills
    assert proof.compared.checkpoints == steps // 5
    assert proof.compared.lines == steps  # losses, learning rates and the order of the data
    assert proof.compared.only_whole == proof.compared.only_killed == []
    assert proof.unseeded == [] or program == "lenet"


# The controls: whole, and stopped in the middle, in this process


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a program, and puts back afterwards what it does to the whole process."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(PROGRAMS))

    def load(name: str) -> Any:
        monkeypatch.delitem(sys.modules, name, raising=False)  # an example of the same name
        return importlib.import_module(name)

    yield load
    torch.set_num_threads(threads)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def stopped(
    program: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> Comparison:
    """Ten steps in one go, beside four steps and then the other six."""
    arguments = ["--steps", "10", "--every", "2", "--wait", "--workers", "0", *options]
    for store, more in (("whole", []), ("killed", ["--stop-at", "4"]), ("killed", [])):
        monkeypatch.setenv(PROOF, str(folder / store))
        program.main([*arguments, *more])
    return compare_stores(folder / "whole", folder / "killed")


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize("name", kept(["lenet", "gpt"], "lenet"))
def test_nothing_differs_with_nothing_left_out(name, load, tmp_path, monkeypatch):
    found = stopped(load(name), tmp_path, monkeypatch)
    assert found.differences == []
    assert (found.checkpoints, found.lines) == (5, 10)


@pytest.mark.parametrize(("name", "part"), CONTROLS, ids=map("-".join, CONTROLS))
def test_a_part_that_is_left_out_is_missed(name, part, load, tmp_path, monkeypatch):
    found = stopped(load(name), tmp_path, monkeypatch, "--leave-out", part)
    expected = (LENET if name == "lenet" else GPT)[part]
    assert str(found.differences[0]).startswith(f"{expected}: ")
    first_tensor = next(each for each in found.differences if each.is_tensor)
    assert (first_tensor.step, first_tensor.what.partition(".")[0]) == (6, "model")
    # The order of the data is another one if nobody knows how far it was, and only then.
    orders = [each.step for each in found.differences if each.what == "metrics.order"]
    assert sorted({*orders}) == ([5, 6, 7, 8, 9, 10] if part in ("loader", "sampler") else [])


def test_the_controls_leave_out_every_part_that_there_is(load):
    assert tuple(LENET) == load("lenet").PARTS
    assert tuple(GPT) == load("gpt").PARTS

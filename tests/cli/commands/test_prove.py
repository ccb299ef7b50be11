"""`standfast prove`: what it prints, and its exit codes."""

import re
import sys
from pathlib import Path

import pytest

from standfast import Store
from tests import ROOT
from tests.kit.cli import call

WALK = ROOT / "tests" / "training" / "programs" / "walk.py"


def prove(*options: str | Path, program: tuple[str | Path, ...] = ()) -> tuple[str | Path, ...]:
    return ("prove", *options, "--", sys.executable, *program)


def walk(*options: str) -> tuple[str | Path, ...]:
    # Steps long enough for a kill to come before the last one on a machine that is busy.
    return (WALK, "--steps", "12", "--wait", "--pause", "0.15", *options)


@pytest.mark.long  # `tests/training/proof` has a short one
def test_a_proof_says_what_was_proved_and_keeps_what_it_is_told_to(tmp_path):
    kept = tmp_path / "kept"
    done = call(*prove("--kills", "1", "--seed", "4", "--keep", kept, program=walk()))
    assert done.code == 0, done
    first, kill, last = done.lines
    assert first.endswith(" s, with 3 checkpoints; seed 4")
    assert kill.startswith("kill 1 of 1 after ")
    assert last.startswith("proved: 3 checkpoints × 4 tensors and the metrics of 12 steps ")
    for name in ("whole", "killed"):
        assert Store(kept / name).resolve("latest").step == 12
        assert "walked 12 steps" in (kept / f"{name}.log").read_text()
    call(*prove("--keep", kept, program=walk())).fails(2, str(kept))


@pytest.mark.long
def test_a_program_that_is_not_exact_ends_with_1_and_the_first_difference():
    options = ("--kills", "1", "--seed", "4")  # a kill before the last save, by far
    done = call(*prove(*options, "--json", program=walk("--leave-out", "generator")))
    assert done.code == 1, done
    found = done.json
    resumed = found["kills"][0]["step"]
    assert (found["exact"], found["seed"]) == (False, 4)
    first, tensor = found["first"], found["first_tensor"]
    assert (first["step"], first["what"]) == (resumed + 1, "metrics.distance")
    assert (tensor["step"], tensor["what"]) == (resumed + 4, "model.position")
    assert found["differences"][0] == first
    done = call(*prove(*options, program=walk("--leave-out", "restoring")))
    assert done.code == 1, done
    keep, verdict, first = done.lines[2:]
    assert keep.startswith("--keep FOLDER")
    assert "3 checkpoints × 4 tensors" in verdict
    # The kill may come before step 8 is saved or after it.
    assert re.search(r" step (8|12), count\.drawn: ", first)


def test_a_program_that_fails_is_shown_with_its_last_words():
    done = call(*prove(program=("-c", "print('about\\x1b[1m to fail'); raise SystemExit(5)")))
    assert done.code == 2
    assert done.err.startswith("    about\\x1b[1m to fail\n")
    assert done.err.endswith(" 5\n")
    done = call("prove", sys.executable, "-c", "import sys; print(sys.argv)", "--kills", "--json")
    assert done.code == 2
    assert "['-c', '--kills', '--json']" in done.err, "a command needs no dashes before it"
    for arguments in ([], ["--kills", "0", "--", "true"], ["--seed", "x", "true"]):
        assert call("prove", *arguments).code == 2

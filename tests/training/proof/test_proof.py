"""The proof itself: that it finds what differs, says so, and is not fooled."""

import json
import sys
import textwrap
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast.errors import BadOption, ProofFailed
from standfast.store.maintenance.verify import verify_store
from standfast.training.proof.comparison import Difference, compare_stores
from standfast.training.proof.moments import draw_moments, look_at
from standfast.training.proof.proof import Proof, prove
from tests.kit.stores import flip

WALK = Path(__file__).parents[1] / "programs" / "walk.py"
RUN = "0123456789abcdefghijklmn"


def walk(*options: str, kills: int = 2, folder: Path | None = None) -> Proof:
    command = [sys.executable, str(WALK), "--steps", "24", "--wait", *options]
    return prove(command, kills=kills, seed=3, folder=folder)


def program(text: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


# A program that uses no store, and yet looks as if: quick to start, and to be killed.
PRETENDER = f"""
    import os, pathlib, sys, time
    folder = pathlib.Path(os.environ["_STANDFAST_PROOF_STORE"], "checkpoints", "models", "{RUN}")
    folder.mkdir(parents=True, exist_ok=True)
    done = len(list(folder.glob("*_step_*")))
    {{resumed}}
    for step in range(done + 1, 7):
        time.sleep(0.03)
        (folder / f"{RUN}_step_{{{{step:06d}}}}.json").touch()
        print("step", step, flush=True)
"""


def pretender(resumed: str) -> list[str]:
    """Commits six steps; if it was killed in between, it does what `resumed` says."""
    return program(PRETENDER.format(resumed=f"if done: {resumed}"))


# What is found


@pytest.mark.guarantee("G20")
def test_a_program_that_resumes_exactly_is_proved_to(tmp_path):
    lines: list[str] = []
    command = [sys.executable, str(WALK), "--steps", "24"]
    proof = prove(command, kills=2, in_saves=2, seed=3, folder=tmp_path / "kept", say=lines.append)
    assert proof.exact, proof
    assert proof.compared.checkpoints == 6
    assert proof.compared.tensors == 6 * 4
    assert proof.compared.lines == 24
    assert proof.compared.verified > 0
    assert len(proof.kills) == 2
    assert len(lines) == 3
    assert "2 of 2" in lines[2]
    # The kills were real: the log has three starts, and two of them resumed.
    log = (tmp_path / "kept" / "killed.log").read_text()
    assert sum(line.startswith("run ") for line in log.splitlines()) == 3
    assert log.count("restored: ") == 2
    assert log.count("walked 24 steps") == 1


def test_a_generator_that_is_not_saved_is_found():
    proof = walk("--leave-out", "generator", kills=1)
    assert not proof.exact
    assert proof.first is not None
    assert proof.first_tensor is not None
    resumed = proof.kills[0].step
    assert (proof.first.step, proof.first.what) == (resumed + 1, "metrics.distance")
    assert (proof.first_tensor.step, proof.first_tensor.what) == (resumed + 4, "model.position")
    assert "float64 [4, 5], 100.0%" in proof.first_tensor.how
    assert not proof.is_unsteady


def test_a_program_that_never_does_the_same_is_told_from_one_that_resumes_badly():
    proof = walk("--leave-out", "seed", kills=1)
    assert {each.what for each in proof.compared.differences} == {"random.python.words"}
    # Nothing depends on it. What differs besides counts, and alone says how.
    assert proof.exact
    assert "random.python" in str(proof)
    for step, unsteady in ((24, False), (1, True)):
        other = Difference(RUN, step, "model.position", "somehow", is_tensor=True)
        found = sorted([*proof.compared.differences, other], key=lambda each: each.step)
        faulty = replace(proof, compared=replace(proof.compared, differences=found))
        assert not faulty.exact
        assert faulty.first == other
        assert faulty.is_unsteady is unsteady
        assert ("random.python" in str(faulty)) is unsteady


def test_a_step_that_one_run_has_alone_is_listed_and_the_last_must_be_shared(tmp_path):
    for name, steps in (("a", (1, 2, 4)), ("b", (1, 3, 4)), ("c", (1, 2))):
        run = standfast.Store(tmp_path / name).run("r")
        for step in steps:
            run.save(step, {"w": np.full(3, step)})
        run.close()
    found = compare_stores(tmp_path / "a", tmp_path / "b")
    assert (found.checkpoints, found.differences) == (2, [])
    assert [ref.partition("@")[2] for ref in (*found.only_whole, *found.only_killed)] == ["2", "3"]
    found = compare_stores(tmp_path / "a", tmp_path / "c")
    assert [each.step for each in found.differences] == [2]
    assert "4" in found.differences[0].how


@pytest.mark.parametrize(
    ("after", "what"),
    [
        ({"w": np.array([0.0, 1.0]), "lr": 0.5, "more": 0.0}, "w"),
        ({"w": np.array([-0.0, 1.0], np.float32), "lr": 0.5, "more": 0.0}, "w"),
        ({"w": np.array([-0.0, 1.0]), "lr": np.nextafter(0.5, 1).item(), "more": 0.0}, "lr"),
        ({"w": np.array([-0.0, 1.0]), "lr": 0.5, "more": -0.0}, "more"),
        ({"w": np.array([-0.0, 1.0]), "lr": 0.5, "more": None}, "more"),
        ({"w": np.array([-0.0, 1.0]), "more": 0.0, "lr": 0.5}, "state"),
        ({"w": np.array([-0.0, 1.0]), "lr": 0.5, "more": 0.0, "new": np.zeros(1)}, "new"),
    ],
    ids=["sign", "dtype", "value", "zero", "none", "order", "added"],
)
def test_the_smallest_difference_counts(tmp_path, after, what):
    before = {"w": np.array([-0.0, 1.0]), "lr": 0.5, "more": 0.0}
    for name, state in (("a", before), ("b", after), ("c", before)):
        run = standfast.Store(tmp_path / name).run("r")
        run.save(1, state, {"loss": 0.5})
        run.close()
    assert compare_stores(tmp_path / "a", tmp_path / "c").differences == []
    found = compare_stores(tmp_path / "a", tmp_path / "b").differences
    assert [each.what for each in found] == [what]


def test_damage_in_a_store_is_no_proof(tmp_path):
    for name in ("a", "b"):
        run = standfast.Store(tmp_path / name).run("r")
        run.save(1, {"w": np.arange(1000.0)})
        run.close()
    flip(next((tmp_path / "b").rglob("*.safetensors")))
    assert verify_store(standfast.Store(tmp_path / "b")).damaged
    found = compare_stores(tmp_path / "a", tmp_path / "b").differences
    assert len(found) == 1


def logged(folder: Path, saved: tuple[int, ...], **metrics: dict[str, float]) -> Path:
    """A store with these checkpoints, and with a log that has metrics by step."""
    run = standfast.Store(folder).run("r")
    for step in saved:
        run.save(step, {"w": np.zeros(3)})
    run.close()
    (folder / "logs").mkdir()
    lines = [
        {"step": int(step[1:]), "epoch": None, "time": _time(), "metrics": values}
        for step, values in metrics.items()
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "logs" / f"{run.hash}_metrics.jsonl").write_text(text)
    return folder


def _time() -> str:
    return datetime.now(UTC).isoformat()


def test_metrics_between_checkpoints_count_and_their_times_do_not(tmp_path):
    whole = logged(tmp_path / "a", (9,), _7={"loss": 0.5}, _8={"loss": 0.25})
    same = logged(tmp_path / "b", (9,), _7={"loss": 0.5}, _8={"loss": 0.25})
    other = logged(tmp_path / "c", (9,), _7={"loss": -0.5}, _8={"loss": 0.25, "late": 1})
    assert compare_stores(whole, same).differences == []
    assert compare_stores(whole, same).lines == 2
    assert [str(each) for each in compare_stores(whole, other).differences] == [
        "step 7, metrics.loss: 0.5 and -0.5",
        "step 8, metrics.late: in the run with kills alone",
    ]


def test_metrics_that_come_with_a_save_are_compared_where_both_saved(tmp_path):
    whole = logged(tmp_path / "a", (7, 9), _7={"loss": 0.5, "validation": 1}, _8={"loss": 0.5})
    killed = logged(tmp_path / "b", (8, 9), _7={"loss": 0.5}, _8={"loss": 0.25, "validation": 1})
    assert [str(each) for each in compare_stores(whole, killed).differences] == [
        "step 8, metrics.loss: 0.5 and 0.25"
    ]


# Programs of which nothing can be proved


FAILING = {
    "it fails": ("print('one'); print('two'); raise SystemExit(3)", "3", "one\ntwo"),
    "it dies by a signal": ("import os; os.kill(os.getpid(), 11)", "SIGSEGV", ""),
    "it never ends": ("import time; time.sleep(60)", "whole", ""),
    "it has no checkpoint": ("print('trained')", "store", "trained"),
    "it ignores the store": (
        "import standfast; standfast.Store('{}').run('r').save(1, dict())",
        "store",
        "",
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_program_that_cannot_be_proved_is_refused_with_what_it_printed(case, tmp_path):
    text, name, output = FAILING[case]
    with pytest.raises(ProofFailed, match=name) as failed:
        prove(program(text.format(tmp_path)), patience=0.3 if "ends" in case else 60)
    assert failed.value.output == output


def test_a_program_that_fails_when_it_is_resumed_is_found():
    with pytest.raises(ProofFailed, match="7") as error:
        prove(pretender("print('no resume'); sys.exit(7)"), kills=2, in_saves=0, seed=1)
    assert error.value.output.endswith("no resume")


def test_a_program_that_gets_stuck_when_it_is_resumed_is_ended(tmp_path):
    note = tmp_path / "process"
    stuck = f"pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(600)"
    with pytest.raises(ProofFailed):
        prove(pretender(stuck), kills=2, in_saves=2, seed=1, patience=5)
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_a_program_that_saves_at_its_end_alone_is_refused():
    with pytest.raises(ProofFailed, match="`every`"):
        walk("--every", "10min", "--steps", "2")


def test_no_command_no_kills_and_a_used_folder_are_refused(tmp_path):
    (tmp_path / "whole").mkdir()
    for command, options in (
        ([], {}),
        (["true"], {"kills": 0}),
        (["true"], {"folder": tmp_path}),
    ):
        with pytest.raises(BadOption):
            prove(command, **options)
    with pytest.raises(ProofFailed, match="/no/such"):
        prove(["/no/such"])


# Moments and kills


def test_moments_follow_from_the_seed_and_come_in_order():
    moments = draw_moments(20, 50, seed=1, aimed=None)
    assert moments == draw_moments(20, 50, seed=1, aimed=None)
    assert moments != draw_moments(20, 50, seed=2, aimed=None)
    positions = [moment.checkpoints + moment.share for moment in moments]
    assert positions == sorted(positions)
    assert positions[0] >= 1
    assert positions[-1] < 49.5
    assert sum(moment.aimed for moment in moments) == 7


@pytest.mark.parametrize("kills", [1, 2, 5])
def test_of_few_kills_one_is_aimed_at_a_save(kills):
    assert sum(moment.aimed for moment in draw_moments(kills, 2, seed=1, aimed=None)) >= 1


def test_files_without_a_record_are_a_save_that_is_not_finished(tmp_path):
    run = standfast.Store(tmp_path).run("r")
    run.save(1, {"w": np.zeros(10)})
    run.close()
    assert look_at(tmp_path).committed == {(run.hash, 1)}
    assert look_at(tmp_path).unfinished == frozenset()
    folder = tmp_path / "checkpoints" / "models" / run.hash
    left = f"{run.hash}_step_000002.0123abcd.w.safetensors"
    (folder / left).touch()
    (folder / ".0123abcd.standfast").touch()
    (folder / "notes.txt").touch()
    assert look_at(tmp_path).unfinished == {left, ".0123abcd.standfast"}


def test_children_of_the_program_are_killed_with_it(tmp_path):
    note = tmp_path / "children"
    child = "import time; time.sleep(60)"
    start = f"""
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", {child!r}])
        open({str(note)!r}, "a").write(f"{{child.pid}}\\n")
        raise SystemExit(1)
    """
    with pytest.raises(ProofFailed):
        prove(program(start))
    (number,) = note.read_text().split()
    assert not _is_running(int(number))


def _is_running(number: int) -> bool:
    try:
        status = Path(f"/proc/{number}/status").read_text()
    except FileNotFoundError:
        return False
    return "\nState:\tZ" not in status

"""A name tells runs of equal settings apart, whenever and wherever their programs start."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import AmbiguousRef, DamagedFile, FellBack, TooNew
from standfast.store.schema.run_file import FORMAT
from tests.kit.cases import kept
from tests.kit.walk import Walk, checkpointer
from tests.store.schema.test_versions import resealed


def job(store: Path, name: str, steps: int = 4, **options: Any) -> tuple[str, str, int, str]:
    """A job of an array: its run, label, the step it went on from, and the weights at its end."""
    np.random.seed(int(name.removeprefix("seed")) if "seed" in name else 9)
    program, hp = Walk(), {"lr": 0.1}
    with checkpointer(store, program.state, name=name, hp=hp, every=2, **options) as ckpt:
        for step in ckpt.steps(steps):
            program.train()
            ckpt.step(step)
    weights = program.weights.tobytes().hex()
    return ckpt.run.hash, ckpt.run.name, ckpt.resume_report.step, weights


def whole(folder: Path, name: str, steps: int) -> str:
    """The weights of a job that was alone and never stopped."""
    return job(folder / f"alone-{name}-{steps}", name, steps)[3]


def test_each_seed_of_an_array_is_a_run_of_its_own(tmp_path, capsys):
    store = tmp_path / "store"
    ended = {name: job(store, name) for name in ("seed0", "seed1")}
    assert ended["seed0"][0] != ended["seed1"][0]
    for name, end in ended.items():
        assert end[1:] == (name, 0, whole(tmp_path, name, 4))
    again = job(store, "seed1", 6)
    assert again == (ended["seed1"][0], "seed1", 4, whole(tmp_path, "seed1", 6))
    capsys.readouterr()
    job(store, "seed2", quiet=False)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "'seed0'" in line]
    assert "'seed1'" in line


@pytest.mark.long
def test_a_seed_goes_on_from_its_own_checkpoint_of_the_mirror(tmp_path):
    mirror = tmp_path / "mirror"
    for name in ("seed0", "seed1"):
        job(tmp_path / "first", name, mirror=mirror)
    for name in ("seed1", "seed0"):
        end = job(tmp_path / "second", name, 6, mirror=mirror)
        assert end[1:] == (name, 4, whole(tmp_path, name, 6))


@pytest.mark.parametrize(
    ("name", "is_mirrored"),
    kept([(n, m) for n in ("seed0", "better") for m in (False, True)], ("better", True)),
)
def test_a_renamed_run_goes_on_under_the_name_it_began_with_and_its_label(
    tmp_path, name, is_mirrored
):
    store, mirror = tmp_path / "store", tmp_path / "mirror" if is_mirrored else None
    run, *_ = job(store, "seed0", 2, mirror=mirror)
    job(store, "seed1", 2)
    standfast.Store(store).open_run(run).rename("better")
    if is_mirrored:
        job(store, "seed0", 3, mirror=mirror)
        store = tmp_path / "another"
    step = 3 if is_mirrored else 2
    assert job(store, name, 4, mirror=mirror)[:3] == (run, "better", step)


def train(store: Path, **options: Any) -> standfast.Checkpointer:
    program = Walk()
    with checkpointer(store, program.state, every=1, **options) as ckpt:
        ckpt.step(value=program.train())
    return ckpt


def test_a_label_is_followed_only_where_all_else_is_equal(tmp_path):
    first = train(tmp_path, name="a", hp={"lr": 1}).run
    first.rename("b")
    assert train(tmp_path, name="b", hp={"lr": 2}).run.hash != first.hash
    assert train(tmp_path, name="b", hp={"lr": 1}).run.hash == first.hash
    assert train(tmp_path, name="b", hp={"lr": 1}, data=[1]).run.hash != first.hash


def test_a_label_of_several_equal_runs_is_ambiguous(tmp_path):
    runs = [train(tmp_path, name="a", hp={"lr": 1}, trial=trial).run.hash for trial in (1, 2)]
    with pytest.raises(AmbiguousRef) as caught:
        train(tmp_path, name="a", hp={"lr": 1})
    assert all(run in str(caught.value) for run in runs)


def test_a_trial_identifies_whatever_the_name_is(tmp_path):
    first = train(tmp_path, name="a", hp={"lr": 1}, trial=7).run
    again = train(tmp_path, name="b", hp={"lr": 1}, trial=7)
    assert (again.run.hash, again.run.name, again.resume_report.step) == (first.hash, "a", 1)


def run_file(store: Path) -> Path:
    """The file of the one run of a store."""
    (path,) = store.glob("checkpoints/models/*/*_run.json")
    return path


HARM: dict[str, Callable[[Path], Any]] = {
    "damaged": lambda path: path.write_bytes(b"x"),
    "missing": Path.unlink,
    "too new": lambda path: resealed(path, FORMAT, needs=["packed"]),
}


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize(
    ("harm", "is_mirrored"),
    kept(
        [(harm, m) for harm in HARM for m in (False, True)],
        *[(harm, False) for harm in HARM],
        ("missing", True),
    ),
)
def test_a_label_is_followed_to_a_run_whose_file_cannot_be_read(tmp_path, harm, is_mirrored):
    """Its config has the label too: a new run would begin at step 0, and nobody would notice."""
    place, new = tmp_path / "place", tmp_path / "new"
    first = train(place, name="a", hp={"lr": 1}).run
    first.rename("b")
    HARM[harm](run_file(place))

    def found() -> standfast.Run:
        if is_mirrored:
            return train(new, name="b", hp={"lr": 1}, mirror=place, mirror_wait=0).run
        return standfast.Store(place).run("b", hp={"lr": 1})

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if harm == "too new":
            with pytest.raises(TooNew):
                found()
        else:
            run = found()
            assert run.hash == first.hash
            assert run.load()["walk"]["steps"] == (2 if is_mirrored else 1)
            assert FellBack in {each.category for each in said}
    runs = [path.parent.name for path in tmp_path.glob("*/checkpoints/models/*/*.json")]
    assert set(runs) == {first.hash}


def test_a_run_or_branch_of_the_name_in_the_mirror_goes_before_a_label_here(tmp_path):
    """A name given later "is looked up among identities first, then among labels"."""
    mirror, here, there = tmp_path / "mirror", tmp_path / "here", tmp_path / "there"
    base = train(here, name="base").run
    shutil.copytree(here, there)
    options: dict[str, Any] = {"name": "seed1", "hp": {"lr": 1}}
    other = train(here, **options | {"name": "seed0"}).run
    other.rename("seed1")
    run = train(there, **options, mirror=mirror).run
    again = train(here, **options, mirror=mirror)
    assert (again.run.hash, again.resume_report.step) == (run.hash, 1)
    assert [each.step for each in other.checkpoints()] == [1]

    options |= {"hp": {"lr": 2}, "resume": "base@1"}
    train(here, **options | {"name": "seed0"}).run.rename("seed1")
    branch = train(there, **options, mirror=mirror).run
    found = train(here, **options, mirror=mirror).run
    assert (found.hash, found.parent and found.parent.run) == (branch.hash, base.hash)


def test_a_label_stands_for_no_run_of_the_mirror_that_cannot_be_used(tmp_path):
    mirror, here = tmp_path / "mirror", tmp_path / "here"
    other = train(here, name="seed0", hp={"lr": 1}).run
    other.rename("seed1")
    train(tmp_path / "there", name="seed1", hp={"lr": 1}, mirror=mirror)
    for path in mirror.glob("checkpoints/models/*/*.safetensors"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DamagedFile):
        train(here, name="seed1", hp={"lr": 1}, mirror=mirror)
    assert [each.step for each in other.checkpoints()] == [1]

"""A short soak, and proof that the checks of a soak can fail."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fuse import CannotMount
from tests.kit.fuse.fixtures import NOT_RUN
from tests.kit.stores import flip
from tests.soak.campaign import KINDS, soak
from tests.soak.journal import now, read
from tests.soak.model import Model, operations
from tests.soak.reader import read_store
from tests.soak.states import difference, mismatch, state
from tests.soak.worker import RUNS, Settings, Worker

LONG = [pytest.param(kind, 60.0, 0, 4, marks=pytest.mark.long) for kind in KINDS]


@pytest.mark.parametrize(
    ("kind", "seconds", "operations", "workers"), [("tmpfs", 0.0, 40, 2), *LONG]
)
def test_no_promise_is_broken(kind, seconds, operations, workers, tmp_path):
    try:
        report = soak(kind, 20, seconds, operations=operations, workers=workers, folder=tmp_path)
    except CannotMount as error:
        pytest.skip(f"{NOT_RUN}{error}")
    assert not report.wrong, str(report)
    assert report.done["save"] > 0
    assert report.disturbances
    assert not any(tmp_path.iterdir())


# The checks


class Saved:
    """A store into which some checkpoints were saved, and the journal of that."""

    def __init__(self, path: Path) -> None:
        self.path = path / "store"
        self._journal = path / "journal"
        other = str(path / "other")
        settings = Settings(str(self.path), other, str(self._journal), "", 1, 1000, 0, True)
        self.worker = Worker(settings)
        for step in (1, 2, 3):
            assert self.worker.save("alpha", step, replace=False)
        first, second, self.last = self.worker.store.run("alpha").checkpoints()
        for name, action, told in (
            ("tag", lambda: first.tag("x0"), {"writes": {"tag x0": self.number(first)}}),
            ("note", lambda: second.note("a"), {"word": "a", "about": self.number(second)}),
        ):
            assert self.worker.do(name, action, **told)
        self.first, self.second = first, second
        self.folder = self.path / "checkpoints" / "models" / first.head.run
        self.names = {first.head.run: "alpha"}

    def number(self, checkpoint: Any) -> int:
        return int(checkpoint.head.metrics["number"])

    def file(self, end: str) -> Path:
        (found,) = self.folder.glob(f"*{end}")
        return found

    def broken(self) -> set[str]:
        """The promises that are broken, by the checks that follow a phase."""
        self.worker.close()
        model = Model()
        wrong = model.take([*operations("worker", [*read(self._journal)], now())], [])
        disk = read_store(self.path)
        wrong += [*disk.wrong, *model.compare(disk, self.names)]
        return {each.promise for each in wrong} | ({"G16"} if disk.leftovers else set())


DAMAGES: dict[str, tuple[Callable[[Saved], object], str]] = {
    "nothing": (lambda saved: None, ""),
    "a checkpoint that was acknowledged is gone": (
        lambda saved: [path.unlink() for path in saved.folder.glob("*_step_000003.*")],
        "G2",
    ),
    "a checkpoint was replaced by one that nobody saved": (
        lambda saved: saved.worker.store.run("alpha").save(
            3, state(55), metrics={"number": 55}, replace=True
        ),
        "G1",
    ),
    "a tag is on another checkpoint": (
        lambda saved: (saved.worker.store.untag("x0"), saved.second.tag("x0")),
        "G12",
    ),
    "a note is gone": (lambda saved: saved.file("_000002.marks.json").unlink(), "G12"),
    "a note is on another checkpoint": (lambda saved: saved.last.note("b"), "G12"),
    "a file that no record refers to": (
        lambda saved: shutil.copy(
            data := next(saved.folder.glob("*.safetensors")),
            str(data).replace(data.name.split(".")[1], "0123abcd"),
        ),
        "G16",
    ),
    "a file of a record is gone": (
        lambda saved: next(saved.folder.glob("*_000003.*.safetensors")).unlink(),
        "G14",
    ),
    "a byte of a tensor is another": (
        lambda saved: flip(next(saved.folder.glob("*_000003.*.safetensors"))),
        "G9",
    ),
    "a byte of a record is another": (lambda saved: flip(saved.file("_000003.json"), 500), "G9"),
    "a state is not that of its number": (
        lambda saved: saved.worker.do(
            "save",
            lambda: {
                "saved": saved.worker.store.run("alpha")
                .save(4, state(65), metrics={"number": 55})
                .step
            },
            writes={"alpha@4": 55},
            number=55,
            replace=False,
        ),
        "G4",
    ),
    "a deletion left nothing in the trash": (
        lambda saved: saved.worker.do(
            "rm",
            lambda: saved.worker.store.run("alpha").delete(3),
            writes={"alpha@3": None},
            trash=True,
        ),
        "G15",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_what_is_wrong_with_a_store_is_found(what, tmp_path):
    saved = Saved(tmp_path)
    act, promise = DAMAGES[what]
    act(saved)
    broken = saved.broken()
    assert promise in broken if promise else not broken


def _saved(t: float, number: int, *, done: bool = True, op: int = 0) -> list[dict[str, Any]]:
    """The entries of a save that took a second."""
    begin = {"t": t, "op": op or number, "kind": "save", "number": number, "replace": True}
    begin["writes"] = {f"alpha@{number % 10}": number}
    return [begin, {"t": t + 1, "op": op or number}] if done else [begin]


def _read(t: float, **said: Any) -> list[dict[str, Any]]:
    return [{"t": t, "op": 99, "kind": "load"}, {"t": t + 1, "op": 99, **said}]


READS: dict[str, tuple[list[dict[str, Any]], set[str]]] = {
    "the newest": ([*_saved(1, 11), *_saved(3, 12), *_read(5, latest=["alpha", 12])], set()),
    "an older one": ([*_saved(1, 11), *_saved(3, 12), *_read(5, latest=["alpha", 11])], {"G7"}),
    "an older one, while the newer is saved": (
        [*_saved(1, 11), *_saved(3, 12), *_read(3.5, latest=["alpha", 11])],
        set(),
    ),
    "an older one, after a kill": (
        [*_saved(1, 11), *_saved(3, 12, done=False), *_read(5, latest=["alpha", 11])],
        set(),
    ),
    "none": ([*_saved(1, 11), *_read(3, latest=["alpha", None])], {"G7"}),
    "a state that was replaced": (
        [*_saved(1, 11), *_saved(3, 21), *_read(5, reads={"alpha@1": 11})],
        {"G1"},
    ),
    "a checkpoint that is said not to be": (
        [*_saved(1, 11), *_read(3, listed={"alpha": {}})],
        {"G2"},
    ),
    "an error that is no answer": (
        [*_saved(1, 11), *_read(3, refused="MissingData")],
        {"an error that is not allowed"},
    ),
    "no space on a disk that has some": (
        [_saved(1, 11)[0], {"t": 2, "op": 11, "refused": "WriteFailed", "free": 1 << 40}],
        {"an error that is not allowed"},
    ),
}


@pytest.mark.parametrize("what", READS)
def test_what_a_process_was_told_is_checked(what):
    entries, promises = READS[what]
    found = Model().take([*operations("worker", entries, 9.0)], [])
    assert {each.promise for each in found} == promises


def test_a_state_follows_from_its_number_and_differences_are_found():
    assert difference(state(13), state(13)) == ""
    assert mismatch(state(13)) == ""
    assert "other bytes" in difference(state(13), state(23))
    untied = state(13)
    untied["model"]["head"] = untied["model"]["wte"].copy()
    assert "not tied" in mismatch(untied)
    assert RUNS

"""`gc` deletes what it says, frees what it says, and lets be what it should."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Run, Store
from standfast.policies import KeepLast, KeepTagged, Retention
from standfast.store.backends.local import LocalBackend
from standfast.store.backends.memory import MemoryBackend
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.collection import Plan, carry_out, plan
from standfast.store.retention.history import read_deletions
from standfast.store.retention.pins import pin, pinned
from standfast.store.retention.trash import Trash
from standfast.store.retention.trash_entry import encode
from standfast.store.schema import names
from tests.kit.stores import before_lock, folder, overwrite, record_path, same
from tests.store.retention.test_space import on_disk

LAST = Retention((KeepLast(1),))
BASE = np.random.default_rng(0).random((128, 256))


def state(step: int, seed: int = 0) -> dict[str, Any]:
    head = np.random.default_rng([seed, step]).random((96, 100))
    return {"base": {"frozen": BASE}, "head": {"w": head}, "step": step}


def filled(store: Store, *runs: str, steps: int = 3) -> Store:
    """The runs take turns, so that their commits alternate."""
    for step in range(1, steps + 1):
        for number, name in enumerate(runs):
            store.run(name).save(step, state(step, number))
    return store


def verified(store: Store) -> Store:
    """So that no deletion verifies one, and adds its marks to what the store takes."""
    for run in store.runs():
        run.checkpoint().verify()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return filled(Store(tmp_path), "a", "b")


def steps(run: Run) -> list[int]:
    return [each.step for each in run.checkpoints()]


def going(store: Store, made: Plan) -> list[tuple[str | None, int]]:
    return [
        (store.find_run(line.run).name, line.step)
        for line in made.lines
        if line.kind == "checkpoint"
    ]


def test_deleting_all_but_the_last_of_fifty_frees_what_was_announced(tmp_path: Path) -> None:
    store = verified(filled(Store(tmp_path), "a", steps=50))
    before = on_disk(store)
    made = plan(store, retention=LAST)
    assert len(made.lines) == 49
    announced = sum(line.nbytes for line in made.lines)
    assert made.trashed == announced
    assert (made.total, made.after) == (before, before)
    carry_out(store, made)
    assert Trash(store.backend).empty() > 0
    assert before - on_disk(store) == announced > 48 * 96 * 100 * 8
    run = store.find_run("a")
    assert same(run.load(), state(50))
    run.checkpoint(50).verify()


def test_what_goes_is_in_the_trash_and_in_the_history(store: Store) -> None:
    made = plan(store, retention=LAST)
    assert going(store, made) == [("b", 1), ("b", 2), ("a", 1), ("a", 2)]
    done = carry_out(store, made)
    assert (len(done.lines), done.stayed, done.problems) == (4, {}, {})
    assert done.trashed == made.trashed + _entry_files(store) > 0
    assert done.total == on_disk(store)
    for name in ("a", "b"):
        run = store.find_run(name)
        assert steps(run) == [3]
        (entry,) = Trash(store.backend).entries(run.hash)
        assert (entry.steps, entry.by) == ([1, 2], "gc")
        assert "the last" in entry.why
        assert [(each.step, each.by) for each in read_deletions(store, run.hash)] == [
            (2, "gc"),
            (1, "gc"),
        ]


def _entry_files(store: Store) -> int:
    found = Path(store.url, names.TRASH).rglob("entry.json")
    return sum(path.stat().st_size for path in found)


def test_again_there_is_nothing_to_do(store: Store) -> None:
    carry_out(store, plan(store, retention=LAST))
    made = plan(store, retention=LAST)
    assert (made.lines, made.problems, made.after) == ([], {}, made.total)
    assert carry_out(store, made).lines == []


def test_a_dry_run_deletes_nothing(store: Store) -> None:
    before = sorted(str(path) for path in Path(store.url, "models").rglob("*"))
    plan(store, retention=LAST, to=0)
    assert sorted(str(path) for path in Path(store.url, "models").rglob("*")) == before
    assert Trash(store.backend).entries() == []


def test_without_a_retention_that_of_each_run_counts(store: Store) -> None:
    assert plan(store).lines == []
    store.find_run("a").set_retention(LAST)
    assert going(store, plan(store)) == [("a", 1), ("a", 2)]


def test_only_the_runs_that_are_named(store: Store) -> None:
    made = plan(store, [store.find_run("b").hash], LAST)
    assert going(store, made) == [("b", 1), ("b", 2)]


def test_what_became_protected_meanwhile_stays(store: Store) -> None:
    made = plan(store, retention=LAST)
    a, b = store.find_run("a"), store.find_run("b")
    a.checkpoint(1).tag("paper")
    b.save(2, state(22), replace=True)
    b.delete(1)
    done = carry_out(store, made)
    assert steps(a) == [1, 3]
    assert steps(b) == [3, 2]
    assert "'paper'" in done.stayed[made.lines[2]]
    assert done.stayed[made.lines[1]] == "it was saved again meanwhile"
    assert [(line.run, line.step) for line in done.lines] == [(a.hash, 2)]


def test_what_is_being_read_stays(store: Store) -> None:
    run = store.find_run("a")
    with pinned(store.backend, run.hash, 2):
        made = plan(store, [run.hash], LAST)
        assert going(store, made) == [("a", 1)]
    assert going(store, plan(store, [run.hash], LAST)) == [("a", 1), ("a", 2)]


@pytest.mark.guarantee("G16")
def test_what_a_crash_left_goes_unless_somebody_writes(store: Store) -> None:
    run = store.find_run("a")
    orphan = folder(run) / names.data_file(run.hash, 9, "0" * 8, "x")
    orphan.write_bytes(bytes(1000))
    with store.run("a") as writer:
        writer.save(4, state(4))
        orphan.write_bytes(bytes(1000))
        assert plan(store).lines == []
    made = plan(store)
    assert [(line.kind, line.nbytes) for line in made.lines] == [("leftovers", 1000)]
    done = carry_out(store, made)
    assert done.freed == 1000
    assert not orphan.exists()
    assert plan(store).lines == []


def test_a_run_with_a_record_that_cannot_be_read_is_let_be(store: Store) -> None:
    run = store.find_run("a")
    overwrite(record_path(run, 1), b"nothing")
    made = plan(store, retention=LAST)
    assert list(made.problems) == [run.hash]
    assert "step 1" in made.problems[run.hash]
    assert going(store, made) == [("b", 1), ("b", 2)]
    carry_out(store, made)
    assert steps(store.find_run("b")) == [3]
    assert record_path(run, 2).exists()


def test_a_run_that_fails_does_not_keep_the_others(store: Store) -> None:
    a, b = store.find_run("a"), store.find_run("b")
    for path in folder(b).glob(f"{b.hash}_step_000003.*.safetensors"):
        overwrite(path, bytes(path.stat().st_size))
    made = plan(store, retention=LAST)
    done = carry_out(store, made)
    assert list(done.problems) == [b.hash]
    assert "intact" in done.problems[b.hash]
    assert steps(b) == [1, 2, 3]
    assert steps(a) == [3]


def test_the_trash_goes_when_its_time_is_over(store: Store) -> None:
    store.find_run("a").delete(1, trash="rm")
    later = datetime.now(UTC) + timedelta(days=8)
    assert plan(store).lines == []
    made = plan(store, now=later)
    assert [(line.kind, line.why) for line in made.lines] == [
        ("trash", "it has been in the trash for its time")
    ]
    before = on_disk(store)
    done = carry_out(store, made)
    assert before - on_disk(store) == done.freed == sum(line.nbytes for line in made.lines) > 0
    assert Trash(store.backend).entries() == []


# Down to a number of bytes


def test_first_the_trash_goes_then_the_oldest(store: Store) -> None:
    store.find_run("a").delete(1, trash="rm")
    total = plan(store).total
    made = plan(store, to=total)
    assert made.lines == []
    made = plan(store, to=total - 1)
    assert [line.kind for line in made.lines] == ["trash"]
    made = plan(store, to=made.after - 1)
    assert [line.kind for line in made.lines] == ["trash", "checkpoint"]
    assert going(store, made) == [("b", 1)]
    made = plan(store, to=made.after - 1)
    assert going(store, made) == [("b", 1), ("a", 2)]


def test_the_store_takes_no_more_than_it_should(store: Store) -> None:
    verified(store).find_run("a").delete(1, trash="rm")
    to = int(plan(store).total * 0.75)
    made = plan(store, to=to)
    assert made.short == 0
    done = carry_out(store, made)
    assert done.total == on_disk(store) == made.after <= to
    assert plan(store, to=to).lines == []
    assert examine(store.backend, store.index).sound


def test_what_became_protected_stays_however_little_space_there_is(store: Store) -> None:
    made = plan(store, to=0)
    run = store.find_run("a")
    run.checkpoint(2).tag("paper")
    done = carry_out(store, made)
    assert steps(run) == [2, 3]
    assert [(line.run, line.step) for line in done.stayed] == [(run.hash, 2)]


def test_what_a_policy_deletes_stays_in_the_trash_if_there_is_room(store: Store) -> None:
    made = plan(store, retention=LAST)
    roomy = plan(store, retention=LAST, to=made.total + 10_000)
    assert (roomy.trashed, roomy.after) == (made.trashed, made.total)
    carry_out(store, roomy)
    assert len(Trash(store.backend).entries()) == 2
    tight = plan(store, retention=LAST, to=made.total - 10)
    assert [line.kind for line in tight.lines] == ["trash"]


def test_what_cannot_be_reached_says_by_how_much_and_why(store: Store) -> None:
    verified(store).find_run("a").checkpoint(1).tag("paper")
    made = plan(store, to=1000)
    assert going(store, made) == [("b", 1), ("a", 2), ("b", 2)]
    assert made.short == made.after - 1000 > 0
    assert made.protecting == {"tagged 'paper'": 1, "the latest of its run": 2}
    done = carry_out(store, made)
    assert done.total == on_disk(store) == made.after


def test_tagged_ones_alone(store: Store) -> None:
    store.find_run("a").checkpoint(1).tag("paper")
    made = plan(store, retention=Retention((KeepTagged(),)))
    assert going(store, made) == [("b", 1), ("b", 2), ("a", 2)]


def test_where_there_are_no_links_it_goes_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalBackend, "link", lambda *_, **__: False)
    before = on_disk(verified(store))
    made = plan(store, retention=LAST)
    done = carry_out(store, made)
    assert before - on_disk(store) == done.freed == made.trashed
    assert done.trashed == 0


def test_a_store_in_memory() -> None:
    store = filled(Store(MemoryBackend()), "a")
    done = carry_out(store, plan(store, retention=LAST))
    assert [line.step for line in done.lines] == [1, 2]
    assert same(store.find_run("a").load(), state(3))
    assert Trash(store.backend).entries()[0].steps == [1, 2]
    carry_out(store, plan(store, to=0))
    assert Trash(store.backend).entries() == []


def test_what_is_put_into_the_trash_holds_what_an_older_entry_has(tmp_path: Path) -> None:
    store = Store(tmp_path / "shared")
    run = store.run("a")
    base = np.random.default_rng(0).standard_normal(200_000)
    for step in range(4):
        run.save(step, {"base": base, "head": np.full(30_000, float(step))})
    run.save(10, {"head": np.full(30_000, 10.0)})
    run.delete(0, trash="rm")
    for to in (None, 1_500_000, 900_000):
        made = plan(store, None, LAST, to=to)
        done = carry_out(store, made)
        entries = Trash(store.backend).entries()
        said = sum(len(encode(entry)) for entry in entries[1:])  # what entries say of themselves
        assert done.total == made.after + (said if to is None else 0)
        assert len(entries) == (2 if to is None else 0)


def test_what_comes_into_use_while_one_is_read_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.find_run("a")
    made = plan(store, [run.hash], LAST)
    assert going(store, made) == [("a", 1), ("a", 2)]
    locks = []

    def slow(store: Store, hash: str, steps: object, locked: bool = False) -> int:
        """Reading takes its time, in which somebody reads one and finds another to be best."""
        if not locks:
            locks.append(pin(store.backend, hash, 1))
            run.checkpoint(2).add_metrics({"loss": 0.0}, best=True)
        return 3

    monkeypatch.setattr("standfast.store.retention.collection.intact_before", slow)
    done = carry_out(store, made)
    assert done.lines == []
    assert sorted(each.step for each in run.checkpoints()) == [1, 2, 3]
    assert sorted(done.stayed.values()) == [
        "in use: it is being read, or a run that is running came from it",
        "the best of its run",
    ]
    for lock in locks:
        assert lock is not None
        lock.release()


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("change", ["saved again", "kept"])
def test_what_changes_just_before_the_lock_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    run = store.find_run("a")
    if change == "kept":
        run.set_retention(LAST)
    made = plan(store, [run.hash], None if change == "kept" else LAST)
    assert going(store, made) == [("a", 1), ("a", 2)]
    other = Store(Path(store.url).parent).open_run(run.hash)

    def interfere() -> None:
        if change == "kept":
            other.set_retention(Retention((KeepLast(3),)))
        else:
            for step in (1, 2):
                other.save(step, {"new": step}, replace=True)

    before_lock(store, monkeypatch, run.hash, interfere)
    done = carry_out(store, made)
    assert (done.lines, done.problems) == ([], {})
    assert steps(run) == ([1, 2, 3] if change == "kept" else [3, 1, 2])
    other.close()


@pytest.mark.guarantee("G13")
def test_a_retention_that_is_changed_just_before_the_lock_counts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.find_run("a")
    run.set_retention(LAST)
    other = Store(Path(store.url).parent).open_run(run.hash)
    before_lock(
        store, monkeypatch, run.hash, lambda: other.set_retention(Retention((KeepLast(3),)))
    )
    assert run.retain().deleted == []
    assert steps(run) == [1, 2, 3]

"""`gc` deletes what it says, frees what it says, and lets be what it should."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Run, Store
from standfast.policies import KeepLast, KeepTagged, Retention
from standfast.store.backends.memory import MemoryBackend
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.collection import Plan, carry_out, plan
from standfast.store.retention.history import read_deletions
from standfast.store.retention.pins import pin, pinned
from standfast.store.retention.trash import Trash
from standfast.store.retention.trash_entry import encode
from standfast.store.schema import names
from tests.kit.stores import before_lock, folder, overwrite, record_path, same
from tests.store.retention.states import OWN, on_disk, state, steps

LAST = Retention((KeepLast(1),))


def filled(store: Store, *runs: str, steps: int = 3) -> Store:
    """The runs take turns, so that their commits alternate."""
    for step in range(1, steps + 1):
        for number, name in enumerate(runs):
            store.run(name).save(step, state(step + 1000 * number))
    return store


def verified(store: Store) -> Store:
    """So that no deletion verifies one, and adds its marks to what the store takes."""
    for run in store.runs():
        run.checkpoint().verify()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return filled(Store(tmp_path), "a", "b")


@pytest.fixture
def a(store: Store) -> Run:
    return store.find_run("a")


@pytest.fixture
def b(store: Store) -> Run:
    return store.find_run("b")


def going(store: Store, made: Plan) -> list[tuple[str | None, int]]:
    return [
        (store.find_run(line.run).name, line.step)
        for line in made.lines
        if line.kind == "checkpoint"
    ]


def kinds(made: Plan) -> list[str]:
    return [line.kind for line in made.lines]


def test_deleting_all_but_the_last_of_fifty_frees_what_was_announced(tmp_path):
    store = verified(filled(Store(tmp_path), "a", steps=50))
    before = on_disk(store)
    made = plan(store, retention=LAST)
    assert len(made.lines) == 49
    announced = sum(line.nbytes for line in made.lines)
    assert made.trashed == announced
    assert (made.total, made.after) == (before, before)
    carry_out(store, made)
    assert Trash(store.backend).empty() > 0
    assert before - on_disk(store) == announced > 48 * OWN
    run = store.find_run("a")
    assert same(run.load(), state(50))
    run.checkpoint(50).verify()


def test_what_goes_is_in_the_trash_and_in_the_history(store):
    before = sorted(Path(store.url, "models").rglob("*"))
    made = plan(store, retention=LAST)
    assert sorted(Path(store.url, "models").rglob("*")) == before, "a plan deletes nothing"
    assert going(store, made) == [("b", 1), ("b", 2), ("a", 1), ("a", 2)]
    done = carry_out(store, made)
    assert (len(done.lines), done.stayed, done.problems) == (4, {}, {})
    entries = Path(store.url, names.TRASH).rglob("entry.json")
    assert done.trashed == made.trashed + sum(path.stat().st_size for path in entries)
    assert done.total == on_disk(store)
    for name in ("a", "b"):
        run = store.find_run(name)
        assert steps(run) == [3]
        (entry,) = Trash(store.backend).entries(run.hash)
        assert (entry.steps, entry.by) == ([1, 2], "gc")
        history = [(each.step, each.by) for each in read_deletions(store, run.hash)]
        assert history == [(2, "gc"), (1, "gc")]
    again = plan(store, retention=LAST)
    assert (again.lines, again.problems, again.after) == ([], {}, again.total)
    assert carry_out(store, again).lines == []


def test_which_runs_and_which_checkpoints(store, a, b):
    assert plan(store).lines == []
    assert going(store, plan(store, [b.hash], LAST)) == [("b", 1), ("b", 2)]
    a.set_retention(LAST)
    assert going(store, plan(store)) == [("a", 1), ("a", 2)], "each run has its own"
    with pinned(store.backend, a.hash, 2):
        assert going(store, plan(store)) == [("a", 1)], "what is being read stays"
    a.checkpoint(1).tag("paper")
    made = plan(store, retention=Retention((KeepTagged(),)))
    assert going(store, made) == [("b", 1), ("b", 2), ("a", 2)]


def test_what_became_protected_meanwhile_stays(store, a, b):
    made = plan(store, retention=LAST)
    a.checkpoint(1).tag("paper")
    b.save(2, state(22), replace=True)
    b.delete(1)
    done = carry_out(store, made)
    assert steps(a) == [1, 3]
    assert steps(b) == [3, 2]
    assert "paper" in done.stayed[made.lines[2]]
    assert made.lines[1] in done.stayed
    assert [(line.run, line.step) for line in done.lines] == [(a.hash, 2)]


@pytest.mark.guarantee("G16")
def test_what_a_crash_left_goes_unless_a_process_writes(store, a):
    orphan = folder(a) / names.data_file(a.hash, 9, "0" * 8, "x")
    with store.run("a") as writer:
        writer.save(4, state(4))
        orphan.write_bytes(bytes(1000))
        assert plan(store).lines == []
    made = plan(store)
    assert [(line.kind, line.nbytes) for line in made.lines] == [("leftovers", 1000)]
    assert carry_out(store, made).freed == 1000
    assert not orphan.exists()
    assert plan(store).lines == []


def test_a_run_with_a_record_that_cannot_be_read_is_let_be(store, a, b):
    overwrite(record_path(a, 1), b"nothing")
    made = plan(store, retention=LAST)
    assert list(made.problems) == [a.hash]
    assert going(store, made) == [("b", 1), ("b", 2)]
    carry_out(store, made)
    assert steps(b) == [3]
    assert record_path(a, 2).exists()


def test_a_run_that_fails_does_not_keep_the_others(store, a, b):
    for path in folder(b).glob(f"{b.hash}_step_000003.*.safetensors"):
        overwrite(path, bytes(path.stat().st_size))
    done = carry_out(store, plan(store, retention=LAST))
    assert list(done.problems) == [b.hash]
    assert steps(b) == [1, 2, 3]
    assert steps(a) == [3]


def test_the_trash_goes_when_its_time_is_over(store, a):
    a.delete(1, trash="rm")
    assert plan(store).lines == []
    made = plan(store, now=datetime.now(UTC) + timedelta(days=8))
    assert kinds(made) == ["trash"]
    before = on_disk(store)
    done = carry_out(store, made)
    assert before - on_disk(store) == done.freed == sum(line.nbytes for line in made.lines) > 0
    assert Trash(store.backend).entries() == []


# Down to a number of bytes


def test_first_the_trash_goes_then_the_oldest(store, a):
    a.delete(1, trash="rm")
    total = plan(store).total
    assert plan(store, to=total).lines == []
    made = plan(store, to=total - 1)
    assert kinds(made) == ["trash"]
    made = plan(store, to=made.after - 1)
    assert kinds(made) == ["trash", "checkpoint"]
    assert going(store, made) == [("b", 1)]
    made = plan(store, to=made.after - 1)
    assert going(store, made) == [("b", 1), ("a", 2)]


def test_the_store_takes_no_more_than_it_should(store, a):
    verified(store)
    a.delete(1, trash="rm")
    to = int(plan(store).total * 0.75)
    made = plan(store, to=to)
    assert made.short == 0
    done = carry_out(store, made)
    assert done.total == on_disk(store) == made.after <= to
    assert plan(store, to=to).lines == []
    assert examine(store.backend, store.index).sound


def test_what_became_protected_stays_however_little_space_there_is(store, a):
    made = plan(store, to=0)
    a.checkpoint(2).tag("paper")
    done = carry_out(store, made)
    assert steps(a) == [2, 3]
    assert [(line.run, line.step) for line in done.stayed] == [(a.hash, 2)]


def test_what_a_policy_deletes_stays_in_the_trash_if_there_is_room(store):
    made = plan(store, retention=LAST)
    roomy = plan(store, retention=LAST, to=made.total + 10_000)
    assert (roomy.trashed, roomy.after) == (made.trashed, made.total)
    carry_out(store, roomy)
    assert len(Trash(store.backend).entries()) == 2
    assert kinds(plan(store, retention=LAST, to=made.total - 10)) == ["trash"]


def test_what_cannot_be_reached_says_by_how_much_and_why(store, a):
    verified(store)
    a.checkpoint(1).tag("paper")
    made = plan(store, to=1000)
    assert going(store, made) == [("b", 1), ("a", 2), ("b", 2)]
    assert made.short == made.after - 1000 > 0
    assert sorted(made.protecting.values()) == [1, 2]
    done = carry_out(store, made)
    assert done.total == on_disk(store) == made.after


def test_where_there_are_no_links_it_goes_at_once(store, seams):
    seams.backend(link=lambda link, *_, **__: False)
    before = on_disk(verified(store))
    made = plan(store, retention=LAST)
    done = carry_out(store, made)
    assert before - on_disk(store) == done.freed == made.trashed
    assert done.trashed == 0


def test_a_store_in_memory():
    store = filled(Store(MemoryBackend()), "a")
    done = carry_out(store, plan(store, retention=LAST))
    assert [line.step for line in done.lines] == [1, 2]
    assert same(store.find_run("a").load(), state(3))
    assert Trash(store.backend).entries()[0].steps == [1, 2]
    carry_out(store, plan(store, to=0))
    assert Trash(store.backend).entries() == []


def test_what_is_put_into_the_trash_holds_what_an_older_entry_has(tmp_path):
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


def test_what_comes_into_use_while_one_is_read_stays(store, a, seams):
    made = plan(store, [a.hash], LAST)
    assert going(store, made) == [("a", 1), ("a", 2)]
    locks: list[Any] = []

    def slowly(open: Callable[[str], Any], name: str) -> Any:
        """Before the data is verified, one is read, and another is found to be best."""
        if name.endswith(".safetensors") and not locks:
            locks.append(pin(store.backend, a.hash, 1))
            a.checkpoint(2).add_metrics({"loss": 0.0}, best=True)
        return open(name)

    seams.backend(store.backend, open=slowly)
    done = carry_out(store, made)
    assert done.lines == []
    assert steps(a) == [1, 2, 3]
    assert len(done.stayed) == 2
    (lock,) = locks
    lock.release()


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("change", ["saved again", "kept"])
def test_what_changes_just_before_the_lock_stays(store, a, monkeypatch, change):
    if change == "kept":
        a.set_retention(LAST)
    made = plan(store, [a.hash], None if change == "kept" else LAST)
    assert going(store, made) == [("a", 1), ("a", 2)]
    other = Store(Path(store.url).parent).open_run(a.hash)

    def interfere() -> None:
        if change == "kept":
            other.set_retention(Retention((KeepLast(3),)))
        else:
            for step in (1, 2):
                other.save(step, {"new": step}, replace=True)

    before_lock(store, monkeypatch, a.hash, interfere)
    done = carry_out(store, made)
    assert (done.lines, done.problems) == ([], {})
    assert steps(a) == ([1, 2, 3] if change == "kept" else [3, 1, 2])
    other.close()


@pytest.mark.guarantee("G13")
def test_a_retention_that_is_changed_just_before_the_lock_counts(store, a, monkeypatch):
    a.set_retention(LAST)
    other = Store(Path(store.url).parent).open_run(a.hash)
    change = lambda: other.set_retention(Retention((KeepLast(3),)))  # noqa: E731
    before_lock(store, monkeypatch, a.hash, change)
    assert a.retain().deleted == []
    assert steps(a) == [1, 2, 3]

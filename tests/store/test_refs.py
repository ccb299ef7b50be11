"""References: what each means, in which order they are tried, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import KeepLast, Run, Store
from standfast.errors import (
    AmbiguousRef,
    BadLabel,
    DamagedFile,
    FellBack,
    MissingData,
    NotAStore,
    RefNotFound,
)
from standfast.store.backends.memory import MemoryBackend
from standfast.store.schema import names
from standfast.store.schema.record import encode_head
from tests.kit.stores import (
    QUERIES,
    before_lock,
    data_path,
    flip,
    folder,
    random_bytes,
    record_path,
    same,
)


def _saved(store: Store, name: str, *steps: int, **options: Any) -> Run:
    run = store.run(name)
    for step in steps:
        run.save(step, {"who": name, "step": step, "x": np.full(3, step)}, **options)
    return run


# What each means


@pytest.mark.guarantee("G7")
def test_latest_is_the_last_commit_whatever_the_step_and_the_clock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _saved(store, "a", 500)
    monkeypatch.setattr("standfast.store.save.saving.now", lambda: "1970-01-01T00:00:00.000000Z")
    _saved(store, "b", 7)
    assert store.resolve("latest").state()["who"] == "b"
    _saved(store, "a", 3)
    assert store.resolve("latest").step == 3
    assert store.run("a").load()["step"] == 3
    assert store.run("b").load("latest")["step"] == 7


def test_sequences_count_through_all_runs(store: Store) -> None:
    a, b = _saved(store, "a", 1, 2), _saved(store, "b", 1)
    a.save(3, {})
    assert [each.sequence for each in a.checkpoints()] == [1, 2, 4]
    assert [each.sequence for each in b.checkpoints()] == [3]


def test_of_two_equal_sequences_the_higher_hash_is_later(tmp_path: Path) -> None:
    """Two stores that were merged by hand have numbers twice."""
    runs = []
    for name in ("a", "b", "c"):
        run = _saved(Store(tmp_path / name), name, 1)
        shutil.copytree(folder(run), tmp_path / "all" / "checkpoints" / "models" / run.hash)
        runs.append(run.hash)
    store = Store(tmp_path / "all")
    assert {each.checkpoints()[0].sequence for each in store.runs()} == {1}
    assert store.resolve("latest").head.run == max(runs)
    assert _saved(store, "new", 1).checkpoint().sequence == 2


def test_a_run_is_meant_by_its_name_its_hash_and_the_beginning_of_it(store: Store) -> None:
    run = _saved(store, "my run", 1, 2)
    for ref in ("my run", run.hash, run.hash[:4], run.hash[:8] + "_" + run.hash[8:16]):
        assert store.resolve(ref).ref == f"{run.hash}@2"
        assert store.resolve(f"{ref}@1").ref == f"{run.hash}@1"
        assert store.find_run(ref).hash == run.hash
    with pytest.raises(RefNotFound):
        store.resolve(run.hash[:3])


def test_a_step_may_be_latest_best_or_a_tag(store: Store) -> None:
    run = _saved(store, "a", 1)
    run.save(2, {"step": 2}, best=True)
    run.save(3, {"step": 3}).tag("paper")
    run.save(4, {"step": 4})
    for ref, step in (("latest", 4), ("best", 2), ("paper", 3), ("1", 1), ("000002", 2)):
        assert store.resolve(f"a@{ref}").step == step
        assert run.load(ref)["step"] == step
        assert run.checkpoint(ref).step == step
    assert store.resolve("paper").step == 3


def test_best_is_the_last_that_was_saved_so(store: Store) -> None:
    run = _saved(store, "a", 1)
    with pytest.raises(RefNotFound, match="was the best"):
        run.load("best")
    run.save(5, {"step": 5}, best=True)
    run.save(2, {"step": 2}, best=True)
    run.save(9, {"step": 9})
    assert run.load("best")["step"] == 2
    with pytest.raises(RefNotFound, match="RUN@best"):
        store.resolve("best")


def test_parents_lead_back_through_the_history(store: Store) -> None:
    run = _saved(store, "a", 10, 20, 5)
    third = run.checkpoint(5)
    assert third.parent == run.checkpoint(20)
    assert third.parent is not None
    assert third.parent.parent == run.checkpoint(10)
    assert run.checkpoint(10).parent is None
    run.delete(20)
    assert run.checkpoint(5).parent is None, "it is gone"


def test_a_replaced_checkpoint_is_not_its_own_parent(store: Store) -> None:
    run = _saved(store, "a", 1, 2)
    run.save(2, {}, replace=True)
    assert run.checkpoint(2).parent == run.checkpoint(1)
    run.save(1, {}, replace=True)
    assert run.checkpoint(2).parent is None, "what it came from is no more"


# In which order


def test_a_tag_comes_before_a_name_and_a_name_before_a_hash(store: Store) -> None:
    first, second, third = (_saved(store, name, 1) for name in ("a", "b", "c"))
    third.rename(first.hash[:6])
    assert store.resolve(first.hash[:6]).head.run == third.hash
    second.checkpoint(1).tag("later")
    third.rename("later")
    assert store.resolve("later").head.run == second.hash
    store.untag("later")
    assert store.resolve("later").head.run == third.hash
    assert store.resolve(first.hash[:6]).head.run == first.hash


def test_a_tag_hides_no_step_and_no_run(store: Store) -> None:
    run = _saved(store, "a", 1)
    run.save(300, {})
    for tag, said in (("300", "a step"), ("a", "hide run"), (run.hash[:6], "hide run")):
        with pytest.raises(BadLabel, match=said):
            run.checkpoint(1).tag(tag)
    assert store.resolve("a@300").step == 300
    assert run.checkpoint("300").step == 300


def test_a_step_that_is_gone_says_why(store: Store) -> None:
    run = _saved(store, "a", 1)
    run.save(2, {})
    run.retain(KeepLast(1))
    with pytest.raises(RefNotFound, match=r"step 1 \(it was deleted by policy on 20.*the last\)"):
        store.resolve("a@1")


def test_a_hash_that_is_too_short_is_said_to_be(store: Store) -> None:
    run = _saved(store, "a", 1)
    with pytest.raises(RefNotFound, match="at least 4 characters"):
        store.resolve(run.hash[:3])


def test_latest_comes_before_all(store: Store) -> None:
    _saved(store, "a", 1)
    run = _saved(store, "b", 1)
    store.run("a").save(2, {})
    assert store.resolve("latest").step == 2
    assert run.checkpoint().step == 1


# What is refused


@pytest.mark.parametrize(
    "ref",
    [
        *("", "nobody", "ffffffff", "a@7", "a@nobody", "nobody@1", "@", "@1", "a@", "a@1@2"),
        *("a@-1", "a@1.0", "\0", "a@" + "9" * 5000, "x" * 5000, "%", "____"),
        "'; DROP TABLE records; --",
    ],
)
def test_what_refers_to_nothing_is_not_found(store: Store, ref: str) -> None:
    _saved(store, "a", 1)
    with pytest.raises((RefNotFound, AmbiguousRef)) as caught:
        store.resolve(ref)
    assert type(caught.value) is RefNotFound
    assert store.resolve("a").step == 1


def test_two_runs_of_one_name_are_ambiguous(store: Store) -> None:
    runs = [store.run("same", hp={"lr": lr}) for lr in (1, 2)]
    for run in runs:
        run.save(1, {})
    with pytest.raises(AmbiguousRef) as caught:
        store.resolve("same")
    assert all(run.hash in str(caught.value) for run in runs)
    assert store.resolve(runs[0].hash).head.run == runs[0].hash


def test_a_prefix_of_two_hashes_is_ambiguous(store: Store) -> None:
    hp = {"lr": 1}
    runs = [store.run(hp=hp, data=data) for data in ("a", "b")]
    for run in runs:
        run.save(1, {})
    prefix = runs[0].hash[:8]
    assert runs[1].hash.startswith(prefix)
    with pytest.raises(AmbiguousRef, match="2 runs go by"):
        store.resolve(prefix)
    assert store.resolve(runs[1].hash).head.run == runs[1].hash


def test_a_tag_on_two_checkpoints_is_ambiguous(tmp_path: Path) -> None:
    """So it is where two stores were merged by hand."""
    for name in ("a", "b"):
        run = _saved(Store(tmp_path / name), name, 1)
        run.checkpoint().tag("paper")
        shutil.copytree(folder(run), tmp_path / "all" / "checkpoints" / "models" / run.hash)
    store = Store(tmp_path / "all")
    with pytest.raises(AmbiguousRef, match="remove it from one"):
        store.resolve("paper")
    store.untag("paper")
    with pytest.raises(RefNotFound):
        store.resolve("paper")


def test_a_tag_of_another_run_is_not_loaded_from_this_one(store: Store) -> None:
    _saved(store, "a", 1).checkpoint().tag("paper")
    with pytest.raises(RefNotFound, match="in another run"):
        _saved(store, "b", 1).load("paper")


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_query_of_what_is_no_store_says_so_and_writes_nothing(
    kind: str, query: Callable[[Store], Any], tmp_path: Path
) -> None:
    store = Store(tmp_path / "nothing" if kind == "folder" else MemoryBackend())
    with pytest.raises(NotAStore):
        query(store)
    assert not (tmp_path / "nothing").exists()
    assert store.backend.list("") == []


def test_a_store_is_made_with_its_first_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "nothing")
    store.run("a")
    with pytest.raises(RefNotFound, match="no checkpoint yet"):
        store.resolve("latest")


# What is damaged


@pytest.mark.guarantee("G10")
def test_latest_falls_back_and_says_so(store: Store) -> None:
    run = _saved(store, "a", 1, 2, 3)
    record_path(run, 3).write_bytes(b"garbage")
    data_path(run, 2).unlink()
    for ask in (
        run.load,
        lambda: store.resolve("latest").state(),
        lambda: run.checkpoint().state(),
    ):
        with pytest.warns(FellBack, match=rf"fell back to {run.hash}@1"):
            assert ask()["step"] == 1
    with pytest.raises(MissingData):
        run.load(2)
    with pytest.raises(DamagedFile):
        run.load(3)
    with pytest.raises(DamagedFile):
        store.resolve("a@3")


@pytest.mark.guarantee("G10")
def test_best_falls_back_to_the_newest_intact(store: Store) -> None:
    run = _saved(store, "a", 1)
    run.save(2, {"x": random_bytes(1000), "step": 2}, best=True)
    run.save(3, {"step": 3})
    flip(data_path(run, 2))
    with pytest.warns(FellBack, match="@3"):
        assert run.load("best")["step"] == 3


@pytest.mark.guarantee("G10")
def test_a_tag_does_not_fall_back(store: Store) -> None:
    run = _saved(store, "a", 1, 2)
    run.checkpoint(2).tag("paper")
    data_path(run, 2).unlink()
    with pytest.raises(MissingData):
        run.load("paper")
    with pytest.raises(MissingData):
        store.resolve("paper").state()


def test_a_store_with_nothing_intact_raises(store: Store) -> None:
    run = _saved(store, "a", 1, 2)
    for step in (1, 2):
        data_path(run, step).unlink()
    with pytest.raises(DamagedFile, match="no intact checkpoint"):
        run.load()
    with pytest.raises(DamagedFile, match="no intact checkpoint"):
        store.resolve("latest")


def test_another_runs_damage_is_not_this_ones(store: Store) -> None:
    run = _saved(store, "a", 1)
    other = _saved(store, "b", 1)
    record_path(other, 1).write_bytes(b"garbage")
    assert run.load()["who"] == "a"


def test_a_record_of_another_step_in_its_place_is_refused(store: Store) -> None:
    run = _saved(store, "a", 1, 2)
    record_path(run, 2).write_bytes(record_path(run, 1).read_bytes())
    store.index.rebuild()
    with pytest.raises(DamagedFile, match="step 1"):
        run.load(2)
    with pytest.warns(FellBack):
        assert run.load()["step"] == 1


def test_a_head_that_no_longer_fits_its_record_is_damage(store: Store) -> None:
    """A head that is sound by itself, with the lines of another record below it."""
    run = _saved(store, "a", 1, 2)
    head, _, rest = record_path(run, 1).read_bytes().partition(b"\n")
    assert encode_head(run.checkpoint(1).head) == head
    other = record_path(run, 2).read_bytes().partition(b"\n")[2]
    record_path(run, 1).write_bytes(head + b"\n" + other)
    with pytest.raises(DamagedFile):
        run.load(1)
    assert rest != other


def test_checkpoints_are_listed_in_the_order_of_their_commits(store: Store) -> None:
    run = _saved(store, "a", 30, 10, 20)
    assert [each.step for each in run.checkpoints()] == [30, 10, 20]
    assert run.checkpoints()[0] == run.checkpoint(30)
    assert len({*run.checkpoints(), *run.checkpoints()}) == 3
    other = _saved(store, "b", 1)
    assert [each.hash for each in store.runs()] == [other.hash, run.hash]


def test_a_checkpoint_that_was_replaced_meanwhile_is_not_mixed_up(store: Store) -> None:
    run = _saved(store, "a", 1)
    old = standfast.Store(Path(store.url).parent).resolve("a@1")
    run.save(1, {"x": np.zeros(3)}, replace=True)
    with pytest.raises(RefNotFound, match="replaced meanwhile"):
        old.state()
    assert same(run.load(1), {"x": np.zeros(3)})


def test_a_latest_that_is_replaced_meanwhile_is_still_the_latest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look into the index and the look into the folder, another process replaces it."""
    run = _saved(store, "a", 1, 2)
    monkeypatch.setattr("standfast.store.backends.local.LocalBackend.cache", None)
    reader = Store(Path(store.url).parent)
    refresh = reader.index.refresh

    def late() -> None:
        refresh()
        monkeypatch.undo()
        run.save(2, {"step": 2, "new": True}, replace=True)

    monkeypatch.setattr(reader.index, "refresh", late)
    assert reader.open_run(run.hash).load() == {"step": 2, "new": True}


def test_names_in_messages_are_relative_paths(store: Store) -> None:
    run = _saved(store, "a", 1)
    record_path(run, 1).write_bytes(b"")
    store.index.rebuild()
    with pytest.raises(DamagedFile, match=names.record_file(run.hash, 1)):
        store.resolve("a@1")


def test_a_step_that_is_in_the_trash_says_where_to_look(store: Store) -> None:
    run = _saved(store, "a", 1)
    run.save(2, {})
    run.delete(1, trash="rm")
    with pytest.raises(RefNotFound, match=r"deleted by rm on 20.*`standfast restore` lists the"):
        store.resolve("a@1")


@pytest.mark.guarantee("G12")
def test_no_marks_are_left_of_one_that_is_deleted_while_its_tag_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _saved(store, "a", 1)
    run.save(2, {})
    run.checkpoint(1).tag("paper")
    run.close()

    def delete() -> None:
        other = Store(Path(store.url).parent)
        other.checkpoint(run.hash, 1).untag("paper")
        other.open_run(run.hash).delete(1)

    before_lock(store, monkeypatch, "tags", delete)
    store.untag("paper")
    assert not store.backend.exists(names.marks_file(run.hash, 1))

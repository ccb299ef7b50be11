"""References: what each means, in which order they are tried, and what is refused."""

import shutil
import warnings
from typing import Any

import numpy as np
import pytest

from standfast import KeepLast, Run, Store, errors
from standfast.store.backends.memory import MemoryBackend
from standfast.store.schema import names
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
from tests.store.meanwhile import again, meanwhile
from tests.store.schema.edits import rewritten


def _saved(store: Store, name: str, *steps: int, **options: Any) -> Run:
    run = store.run(name)
    for step in steps:
        run.save(step, {"who": name, "step": step, "x": np.full(3, step)}, **options)
    return run


@pytest.mark.guarantee("G7")
def test_latest_is_the_last_commit_whatever_the_step_and_the_clock(store):
    _saved(store, "a", 500)
    other = _saved(store, "b", 7)
    rewritten(record_path(other, 7), time="1970-01-01T00:00:00.000000Z")
    assert store.resolve("latest").state()["who"] == "b"
    _saved(store, "a", 3)
    assert store.resolve("latest").step == 3
    assert store.run("a").load()["step"] == 3
    assert store.run("b").load("latest")["step"] == 7


def test_checkpoints_are_listed_in_the_order_of_their_commits_in_all_runs(store):
    run = _saved(store, "a", 30, 10, 20)
    assert [each.step for each in run.checkpoints()] == [30, 10, 20]
    assert run.checkpoints()[0] == run.checkpoint(30)
    assert len({*run.checkpoints(), *run.checkpoints()}) == 3
    other = _saved(store, "b", 1)
    run.save(3, {})
    assert [each.sequence for each in run.checkpoints()] == [1, 2, 3, 5]
    assert [each.sequence for each in other.checkpoints()] == [4]
    assert [each.hash for each in store.runs()] == [run.hash, other.hash]


def test_of_two_equal_sequences_the_higher_hash_is_later(tmp_path):
    runs = []
    for name in ("a", "b", "c"):
        run = _saved(Store(tmp_path / name), name, 1)
        shutil.copytree(folder(run), tmp_path / "all" / "checkpoints" / "models" / run.hash)
        runs.append(run.hash)
    store = Store(tmp_path / "all")
    assert {each.checkpoints()[0].sequence for each in store.runs()} == {1}
    assert store.resolve("latest").head.run == max(runs)
    assert _saved(store, "new", 1).checkpoint().sequence == 2


def test_a_run_is_meant_by_its_name_its_hash_and_the_beginning_of_it(store):
    run = _saved(store, "my run", 1, 2)
    for ref in ("my run", run.hash, run.hash[:4], run.hash[:8] + "_" + run.hash[8:16]):
        assert store.resolve(ref).ref == f"{run.hash}@2"
        assert store.resolve(f"{ref}@1").ref == f"{run.hash}@1"
        assert store.find_run(ref).hash == run.hash
    with pytest.raises(errors.RefNotFound):
        store.resolve(run.hash[:3])


def test_a_step_may_be_latest_best_or_a_tag(store):
    run = _saved(store, "a", 1)
    run.save(2, {"step": 2}, best=True)
    run.save(3, {"step": 3}).tag("paper")
    run.save(4, {"step": 4})
    for ref, step in (("latest", 4), ("best", 2), ("paper", 3), ("1", 1), ("000002", 2)):
        assert store.resolve(f"a@{ref}").step == step
        assert run.load(ref)["step"] == step
        assert run.checkpoint(ref).step == step
    assert store.resolve("paper").step == 3


def test_best_is_the_last_that_was_saved_so(store):
    run = _saved(store, "a", 1)
    with pytest.raises(errors.RefNotFound):
        run.load("best")
    run.save(5, {"step": 5}, best=True)
    run.save(2, {"step": 2}, best=True)
    run.save(9, {"step": 9})
    assert run.load("best")["step"] == 2
    with pytest.raises(errors.RefNotFound, match="RUN@best"):
        store.resolve("best")


def test_parents_lead_back_through_the_history(store):
    run = _saved(store, "a", 10, 20, 5)
    third = run.checkpoint(5)
    assert third.parent == run.checkpoint(20)
    assert third.parent.parent == run.checkpoint(10)
    assert run.checkpoint(10).parent is None
    run.save(20, {}, replace=True)
    assert run.checkpoint(20).parent == third, "not itself"
    assert third.parent is None, "what it came from is no more"


def test_a_tag_comes_before_a_name_and_a_name_before_a_hash(store):
    first, second, third = (_saved(store, name, 1) for name in ("a", "b", "c"))
    third.rename(first.hash[:6])
    assert store.resolve(first.hash[:6]).head.run == third.hash
    second.checkpoint(1).tag("later")
    third.rename("later")
    assert store.resolve("later").head.run == second.hash
    store.untag("later")
    assert store.resolve("later").head.run == third.hash
    assert store.resolve(first.hash[:6]).head.run == first.hash


def test_a_step_that_is_gone_says_why_and_where_to_look(store):
    run = _saved(store, "a", 1, 2, 3)
    run.retain(KeepLast(2))
    with pytest.raises(errors.RefNotFound, match=r"step 1 .*policy"):
        store.resolve("a@1")
    run.delete(2, trash="rm")
    with pytest.raises(errors.RefNotFound, match=r"step 2 .*rm on .*standfast restore"):
        store.resolve("a@2")


def test_what_refers_to_nothing_is_not_found(store):
    _saved(store, "a", 1)
    for ref in (
        *("", "nobody", "ffffffff", "a@7", "a@nobody", "nobody@1", "@", "@1", "a@", "a@1@2"),
        *("a@-1", "a@1.0", "\0", "a@" + "9" * 5000, "x" * 5000, "%", "____"),
        "'; DROP TABLE records; --",
    ):
        with pytest.raises(errors.RefNotFound):
            store.resolve(ref)
    assert store.resolve("a").step == 1


def test_a_name_or_a_prefix_of_two_runs_is_ambiguous(store):
    runs = [store.run("same", hp={"lr": 1}, data=data) for data in ("a", "b")]
    for run in runs:
        run.save(1, {})
    for ref in ("same", runs[0].hash[:8]):
        with pytest.raises(errors.AmbiguousRef) as caught:
            store.resolve(ref)
        assert all(run.hash in str(caught.value) for run in runs)
    assert [store.resolve(run.hash).head.run for run in runs] == [run.hash for run in runs]


def test_a_tag_on_two_checkpoints_is_ambiguous(tmp_path):
    for name in ("a", "b"):
        run = _saved(Store(tmp_path / name), name, 1)
        run.checkpoint().tag("paper")
        shutil.copytree(folder(run), tmp_path / "all" / "checkpoints" / "models" / run.hash)
    store = Store(tmp_path / "all")
    with pytest.raises(errors.AmbiguousRef, match="paper"):
        store.resolve("paper")
    store.untag("paper")
    with pytest.raises(errors.RefNotFound):
        store.resolve("paper")


def test_a_tag_hides_no_step_and_no_run_and_is_of_its_run_alone(store):
    run = _saved(store, "a", 1)
    run.save(300, {})
    for tag in ("300", "a", run.hash[:6]):
        with pytest.raises(errors.BadLabel):
            run.checkpoint(1).tag(tag)
    assert store.resolve("a@300").step == 300
    assert run.checkpoint("300").step == 300
    run.checkpoint(1).tag("paper")
    with pytest.raises(errors.RefNotFound):
        _saved(store, "b", 1).load("paper")


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_query_of_what_is_no_store_says_so_and_writes_nothing(kind, query, tmp_path):
    store = Store(tmp_path / "nothing" if kind == "folder" else MemoryBackend())
    with pytest.raises(errors.NotAStore):
        query(store)
    assert not (tmp_path / "nothing").exists()
    assert store.backend.list("") == []


@pytest.mark.guarantee("G10")
def test_latest_falls_back_and_says_so(store):
    run = _saved(store, "a", 1, 2, 3)
    record_path(run, 3).write_bytes(b"garbage")
    data_path(run, 2).unlink()
    for ask in (
        run.load,
        lambda: store.resolve("latest").state(),
        lambda: run.checkpoint().state(),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert ask()["step"] == 1
        (warning,) = caught
        assert warning.category is errors.FellBack
        assert f"{run.hash}@1" in str(warning.message)
    with pytest.raises(errors.MissingData):
        run.load(2)
    with pytest.raises(errors.DamagedFile):
        run.load(3)
    with pytest.raises(errors.DamagedFile):
        store.resolve("a@3")


@pytest.mark.guarantee("G10")
def test_best_falls_back_to_the_newest_intact_and_a_tag_does_not(store):
    run = _saved(store, "a", 1)
    run.save(2, {"x": random_bytes(1000), "step": 2}, best=True).tag("paper")
    run.save(3, {"step": 3})
    flip(data_path(run, 2))
    with pytest.warns(errors.FellBack, match="@3"):
        assert run.load("best")["step"] == 3
    for ask in (lambda: run.load("paper"), lambda: store.resolve("paper").state()):
        with pytest.raises(errors.DigestMismatch):
            ask()


def test_a_checkpoint_that_was_replaced_meanwhile_is_not_mixed_up(store):
    run = _saved(store, "a", 1)
    old = again(store).resolve("a@1")
    run.save(1, {"x": np.zeros(3)}, replace=True)
    with pytest.raises(errors.RefNotFound):
        old.state()
    assert same(run.load(1), {"x": np.zeros(3)})


def test_a_latest_that_is_replaced_meanwhile_is_the_latest(store, seams):
    run = _saved(store, "a", 1, 2)
    seams.backend(cache=None)
    reader = again(store)
    reader.index.refresh()
    new = {"step": 2, "new": True}
    record = names.record_file(run.hash, 2)
    meanwhile(seams, reader, "open", record, lambda: run.save(2, new, replace=True))
    assert reader.open_run(run.hash).load() == new


@pytest.mark.guarantee("G12")
def test_no_marks_are_left_of_one_that_is_deleted_while_its_tag_is_removed(store, monkeypatch):
    run = _saved(store, "a", 1)
    run.save(2, {})
    run.checkpoint(1).tag("paper")
    run.close()

    def delete() -> None:
        other = again(store)
        other.checkpoint(run.hash, 1).untag("paper")
        other.open_run(run.hash).delete(1)

    before_lock(store, monkeypatch, "tags", delete)
    store.untag("paper")
    assert not store.backend.exists(names.marks_file(run.hash, 1))

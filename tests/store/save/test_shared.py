"""One state of many ranks: what each has goes into one record, and comes back on any number."""

import gc
import itertools
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import KeepAll, KeepLast, errors
from standfast.store.load.ranks_choosing import with_checkpoint_together
from standfast.store.query.view import CheckpointView
from standfast.store.tree.per_rank import PerRank, per_rank
from standfast.tensors.shards import Box
from tests.kit.cases import kept
from tests.kit.rank_threads import Killed, ThreadRanks, attempt_on_ranks, on_ranks
from tests.kit.stores import data_files, data_path, flip, same
from tests.store.save.cut import Cut, cut_framework, even

pytestmark = pytest.mark.usefixtures("cut_framework")
__all__ = ["cut_framework"]

LARGE = np.arange(5 << 20, dtype=np.float32).reshape(1280, 4096)
"""20 MiB: two chunks, if it is one piece."""
WIDE = np.arange(7 * 30, dtype=np.int16).reshape(7, 30)
PLAIN = np.arange(1000, dtype=np.float64)

Layout = Callable[[Sequence[int], int, int], list[Box]]


def rows(shape: Sequence[int], rank: int, size: int, axis: int = 0) -> list[Box]:
    """One stretch of rows a rank."""
    begin, end = (shape[axis] * n // size for n in (rank, rank + 1))
    offsets, lengths = [0] * len(shape), [*shape]
    offsets[axis], lengths[axis] = begin, end - begin
    return [Box(tuple(offsets), tuple(lengths))] if end > begin else []


def columns(shape: Sequence[int], rank: int, size: int) -> list[Box]:
    return rows(shape, rank, size, axis=-1)


def grid(shape: Sequence[int], rank: int, size: int) -> list[Box]:
    """Two by so many, each rank every other box of its half."""
    boxes = even(shape, [2, *[1] * (len(shape) - 2), 2 * size])
    return boxes[rank::size]


def whole(shape: Sequence[int], rank: int, size: int) -> list[Box]:
    """Everything, on each of them."""
    return even(shape, [1] * len(shape))


LAYOUTS: dict[str, Layout] = {"rows": rows, "columns": columns, "grid": grid, "whole": whole}


def state_of(layout: Layout, rank: int, size: int) -> dict[str, Any]:
    return {
        "model": {
            "large": Cut(LARGE, layout(LARGE.shape, rank, size)),
            "wide": Cut(WIDE, layout(WIDE.shape, rank, size)),
            "plain": PLAIN.copy(),
            "empty": np.empty((0, 3)),
        },
        "step": 7,
        "mine": per_rank({"rank": rank, "drawn": np.arange(rank + 1)}),
    }


@contextmanager
def opened(path: Path, comm: ThreadRanks) -> Iterator[standfast.Run]:
    """The run, which is rank 0's to write into; all ranks are done with it at the end."""
    run = standfast.Store(path).run("run")
    yield run
    run.close()


def save(path: Path, size: int, *states: Callable[[int], Any]) -> list[standfast.Checkpoint]:
    """What becomes of states that ranks save one after the other, as steps from 1."""

    def program(comm: ThreadRanks) -> None:
        with opened(path, comm) as run:
            for step, state in enumerate(states, 1):
                run.save(step, state(comm.rank), comm=comm)

    on_ranks(size, program)
    checkpoints = [standfast.Store(path).resolve(f"run@{n}") for n in range(1, len(states) + 1)]
    for each in checkpoints:
        each.verify()
    return checkpoints


def laid_out(layout: Layout, size: int) -> Callable[[int], dict[str, Any]]:
    return lambda rank: state_of(layout, rank, size)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_process_finds_whole_tensors(tmp_path, layout):
    (checkpoint,) = save(tmp_path, 3, laid_out(LAYOUTS[layout], 3))
    state = checkpoint.state()
    model = {"large": LARGE, "wide": WIDE, "plain": PLAIN, "empty": np.empty((0, 3))}
    assert same(state["model"], model)
    assert state["step"] == 7
    assert [each["rank"] for each in state["mine"]] == [0, 1, 2]
    assert [each["drawn"].tolist() for each in state["mine"]] == [[0], [0, 1], [0, 1, 2]]
    assert [*checkpoint.tensors] == [
        *(f"model.{name}" for name in ("large", "wide", "plain", "empty")),
        *(f"mine.rank{rank}.drawn" for rank in range(3)),
    ]


@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", kept(LAYOUTS, *list(LAYOUTS)[:2]))
def test_any_layout_is_loaded_in_any_other(tmp_path, before, after):
    save(tmp_path, 4, laid_out(LAYOUTS[before], 4))
    for size in (2, 3):

        def load(comm: ThreadRanks) -> None:
            expected = state_of(LAYOUTS[after], comm.rank, comm.size)["model"]
            into = {
                name: each.blank() if isinstance(each, Cut) else np.zeros_like(each)
                for name, each in expected.items()
            }
            run = standfast.Store(tmp_path).run("run")
            run.load(into=into, part="model", comm=comm)
            assert all(np.array_equal(expected[name], into[name]) for name in ("plain", "empty"))
            assert all(expected[name] == into[name] for name in ("large", "wide"))

        on_ranks(size, load)


def test_a_rank_reads_the_chunks_that_it_needs_and_no_more(tmp_path):
    tall = np.arange(20 << 20, dtype=np.float32).reshape(-1, 1024)
    run = standfast.Store(tmp_path).run("run")
    run.save(1, {"tall": tall})
    flip(data_path(run, 1), tall.nbytes // 2)  # in a chunk that the rank does not need
    box = Box((tall.shape[0] - 100, 0), (100, 1024))
    into = {"tall": Cut(np.zeros_like(tall), [box])}
    run.load(1, into=into)
    assert into["tall"] == Cut(tall, [box])
    middle = {"tall": Cut(np.zeros_like(tall), [Box((tall.shape[0] // 2, 0), (1, 1024))])}
    with pytest.raises(standfast.DamagedFile, match="tall"):
        run.load(1, into=middle)


def test_what_is_the_ranks_own_comes_back_to_each(tmp_path):
    save(tmp_path, 3, laid_out(rows, 3))

    def load(comm: ThreadRanks) -> Any:
        run = standfast.Store(tmp_path).run("run")
        into = {"mine": per_rank({"rank": None, "drawn": np.zeros(comm.rank + 1, int)})}
        loaded, _ = run.load(into=into, strict=False, comm=comm)
        assert isinstance(loaded["mine"], PerRank)
        return loaded["mine"].tree["rank"], run.load(comm=comm)["mine"]["drawn"].tolist()

    assert on_ranks(3, load) == [(0, [0]), (1, [0, 1]), (2, [0, 1, 2])]


def test_another_number_of_ranks_cannot_have_what_was_the_ranks_own(tmp_path):
    save(tmp_path, 3, laid_out(rows, 3))

    def load(comm: ThreadRanks) -> None:
        into = state_of(rows, comm.rank, comm.size)
        standfast.Store(tmp_path).run("run").load(into=into, comm=comm)

    outcomes = attempt_on_ranks(2, load)
    assert [type(each) for each in outcomes] == [errors.StateMismatch] * 2
    assert all("mine" in str(each) for each in outcomes)


def test_what_several_ranks_have_is_written_once_and_spread(tmp_path):
    tensors = {f"w{n}": np.full(1 << 18, n, np.float64) for n in range(8)}
    (found,) = save(tmp_path, 4, lambda rank: {"model": {k: v.copy() for k, v in tensors.items()}})
    files = data_files(found.run)
    assert [name.split(".")[2] for name in sorted(files)] == [f"model-rank{n}" for n in range(4)]
    assert 0 <= sum(files.values()) - sum(each.nbytes for each in tensors.values()) < 1 << 17
    assert max(files.values()) < 2.1 * (2 << 20)
    assert same(found.state()["model"], tensors)


def test_a_second_save_writes_what_has_changed(tmp_path):
    states = [state_of(rows, rank, 3) for rank in range(3)]

    def change(rank: int) -> dict[str, Any]:
        if rank == 1:
            states[1]["model"]["large"].shards[0].tensor[0] += 1
        return states[rank]

    _, second = save(tmp_path, 3, states.__getitem__, change)
    files = data_files(second.run)
    large = [name for name in files if "_step_000002." in name and files[name] > 1 << 20]
    assert [name.split(".")[2] for name in large] == ["model-rank1"]
    changed = LARGE.copy()
    changed[1280 // 3] += 1
    assert same(second.state()["model"]["large"], changed)


Refused = tuple[type[Exception], str, Callable[[int], Any]]
APART, ALONE = errors.RanksDisagree, errors.RefusedState
BOXES = [Box((3, 0), (4, 30)), Box((0, 0), (4, 30)), Box((0, 0), (4, 30))]
REFUSED: dict[str, Refused] = {
    "a plain value": (
        APART,
        r"a\.lr .*0\.1.*0\.2",
        lambda rank: {"a": {"lr": (rank // 2 + 1) / 10}},
    ),
    "a tensor": (
        APART,
        r"bn\.mean .*per_rank",
        lambda rank: {"bn": {"mean": np.full(9, float(rank == 1)), "same": np.ones(3)}},
    ),
    "a shape": (APART, r"\bw .*\[3\]", lambda rank: {"w": np.zeros(3 + rank)}),
    "a hole": (APART, r"\bw\b", lambda rank: {"w": Cut(WIDE, rows(WIDE.shape, rank, 4))}),
    "an overlap": (APART, r"\bw\b", lambda rank: {"w": Cut(WIDE, [BOXES[rank]])}),
    "a shard that is one rank's own": (
        ALONE,
        r"w\.rank0\.x",
        lambda rank: {"w": per_rank({"x": Cut(WIDE, rows(WIDE.shape, rank, 3))})},
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_differs_between_ranks_is_refused_by_name(what, tmp_path):
    error, name, state = REFUSED[what]

    def program(comm: ThreadRanks) -> None:
        with opened(tmp_path, comm) as run:
            run.save(1, state(comm.rank), comm=comm)

    outcomes = attempt_on_ranks(3, program)
    assert [type(each) for each in outcomes] == [error] * 3
    assert all(re.search(name, str(each)) and "bn.same" not in str(each) for each in outcomes)
    assert not list(tmp_path.rglob("*_step_000001*"))


def test_tensors_that_are_tied_come_back_tied(tmp_path):
    def state(rank: int) -> dict[str, Any]:
        tied, plain = Cut(LARGE, rows(LARGE.shape, rank, 2), same="a"), PLAIN.copy()
        return {"m": {"a": tied, "b": tied, "c": plain, "d": plain[10:20]}, "a2": tied}

    (checkpoint,) = save(tmp_path, 2, state)
    found = checkpoint.state()
    assert same(found["m"]["a"], LARGE)
    for one, other in (("a", "b"), ("c", "d")):
        assert np.shares_memory(found["m"][one], found["m"][other])
    assert np.shares_memory(found["a2"], found["m"]["b"])
    assert sum(data_files(checkpoint.run).values()) < LARGE.nbytes + PLAIN.nbytes + 10_000


def test_tensors_in_one_memory_but_in_other_boxes_are_not_tied(tmp_path):
    halves = [Box((0, 0), (2, 30)), Box((2, 0), (2, 30))]

    def state(rank: int) -> dict[str, Any]:
        one = Cut(WIDE[:4], [halves[rank]], same="storage")
        return {"a": one, "b": Cut(WIDE[3:], [halves[1 - rank]], same="storage")}

    (found,) = save(tmp_path, 2, state)
    assert same(found.state(), {"a": WIDE[:4], "b": WIDE[3:]})


def test_one_process_saves_what_is_cut_up_too(run):
    run.save(1, {"w": Cut(LARGE, even(LARGE.shape, [2, 4])), "v": 1})
    assert same(run.load(), {"w": LARGE, "v": 1})


def test_ranks_agree_on_the_step_and_on_a_format_that_they_can_write(tmp_path):
    def program(comm: ThreadRanks, step: int, format: str) -> None:
        with opened(tmp_path, comm) as run:
            run.save(step, {"a": PLAIN.copy()}, format=format, comm=comm)

    outcomes = attempt_on_ranks(2, lambda comm: program(comm, comm.rank, "safetensors"))
    assert [type(each) for each in outcomes] == [errors.RanksDisagree] * 2
    outcomes = attempt_on_ranks(2, lambda comm: program(comm, 1, "torch"))
    assert [type(each) for each in outcomes] == [errors.BadOption] * 2


@pytest.mark.parametrize("rank", kept(range(3), 1))
def test_a_rank_that_dies_at_any_call_leaves_old_or_new(rank, tmp_path):
    def state(rank: int, step: int) -> dict[str, Any]:
        return {"w": Cut(WIDE + step, rows(WIDE.shape, rank, 3)), "v": PLAIN + step}

    save(tmp_path, 3, lambda rank: state(rank, 1))
    is_new = []
    for call in itertools.count(1):
        kinds: list[str] = []

        def dies(comm: ThreadRanks, call: int = call, kinds: list[str] = kinds) -> None:
            def before(number: int, kind: str) -> None:
                kinds.append(kind)
                if number == call:
                    comm.kill()
                    raise Killed

            if comm.rank == rank:
                comm.before = before
            with opened(tmp_path, comm) as run:
                run.save(call + 1, state(comm.rank, call + 1), comm=comm)

        outcomes = attempt_on_ranks(3, dies)
        if len(kinds) < call:
            break
        latest = standfast.Store(tmp_path).run("run").checkpoint()
        latest.verify()
        is_new.append(latest.step == call + 1)
        if not is_new[-1]:
            others = {type(each) for n, each in enumerate(outcomes) if n != rank}
            assert others == {errors.RankLost}, (call, kinds[-1])
            assert latest.state()["v"][0] == latest.step
    assert outcomes == [None] * 3
    assert is_new == sorted(is_new), "it is there from one call on"
    assert (is_new[0], is_new[-1]) == (False, True)


def test_what_is_the_ranks_own_may_change_in_every_way(tmp_path):
    a, b = np.arange(5), np.array([1.5, 2.5])
    kinds: list[Any] = [{"a": a, "b": a[:2]}, {"a": a, "b": np.array([77, 78])}, {"a": b}]
    kinds += [{"c": b}, {"c": b, "d": a}, [], {"a": a, "b": a[:2]}]
    states = [lambda rank, kind=kind: {"x": np.ones(3), "own": per_rank(kind)} for kind in kinds]
    for kind, found in zip(kinds, save(tmp_path, 2, *states), strict=True):
        assert same([*found.state()["own"]], [kind, kind])


def test_ranks_that_change_places_share_out_anew(tmp_path):
    runs = [standfast.Store(tmp_path).run("run") for _ in range(2)]
    state = {"a": np.zeros(1000), "b": np.ones(1000)}

    def save(comm: ThreadRanks, step: int) -> None:
        run = runs[comm.rank if step == 1 else 1 - comm.rank]
        run.save(step, {name: each.copy() for name, each in state.items()}, comm=comm)
        run.close()

    on_ranks(2, lambda comm: save(comm, 1))
    on_ranks(2, lambda comm: save(comm, 2))
    for step in (1, 2):
        found = standfast.Store(tmp_path).resolve(f"run@{step}").state()
        assert (found["a"][0], found["b"][0]) == (0.0, 1.0)


def test_a_rank_that_opens_the_run_anew_stays_in_step(tmp_path):
    def program(comm: ThreadRanks) -> None:
        run = standfast.Store(tmp_path).run("run")
        for step in (1, 2):
            run.save(step, {"a": PLAIN.copy()}, comm=comm)
            if comm.rank == 1:
                run = standfast.Store(tmp_path).run("run")
        run.close()

    on_ranks(2, program)
    assert same(standfast.Store(tmp_path).run("run").load(), {"a": PLAIN})


def test_a_save_keeps_no_tensor_alive(tmp_path):
    def program(comm: ThreadRanks) -> list[bool]:
        with opened(tmp_path, comm) as run:
            kept = []
            for step in range(3):
                cut = Cut(WIDE, rows(WIDE.shape, comm.rank, 2))
                plain = PLAIN.copy()
                kept += [weakref.ref(plain), weakref.ref(cut.shards[0].tensor)]
                run.save(step, {"a": plain, "b": cut}, comm=comm)
                del cut, plain
            gc.collect()
            return [ref() is None for ref in kept]

    assert on_ranks(2, program) == [[True] * 6] * 2


def test_what_is_marked_twice_is_the_ranks_own_once(tmp_path):
    save(tmp_path, 2, lambda rank: {"x": per_rank({"a": per_rank(rank)})})
    found = on_ranks(2, lambda comm: standfast.Store(tmp_path).run("run").load(comm=comm))
    assert found == [{"x": {"a": 0}}, {"x": {"a": 1}}]


def test_parts_of_ranks_are_dropped_and_shown_like_others(tmp_path):
    def state(rank: int) -> Any:
        return {"model": {"w": PLAIN.copy()}, "mine": per_rank({"v": np.arange(rank + 2), "n": 1})}

    checkpoint, _ = save(tmp_path, 2, state, state)
    assert [part.key for part in checkpoint.head.parts] == ["model", "mine"]
    assert CheckpointView(checkpoint, "mine").values
    checkpoint.run.retain(KeepLast(1) | KeepAll(without=["mine"]))
    assert [*standfast.Store(tmp_path).resolve("run@1").tensors] == ["model.w"]


@pytest.mark.parametrize("harm", [Path.unlink, flip], ids=["missing", "damaged"])
def test_without_one_ranks_file_all_fall_back(tmp_path, harm):
    save(tmp_path, 2, laid_out(rows, 2), laid_out(rows, 2))
    harm(next(tmp_path.rglob("*_step_000002.*-rank1.safetensors")))  # what is new is its own

    def step_of(comm: ThreadRanks) -> int:
        def verified(checkpoint: standfast.Checkpoint) -> int:
            checkpoint.verify()
            return checkpoint.step

        run = standfast.Store(tmp_path).run("run")
        return with_checkpoint_together(run, comm, "latest", verified)

    with pytest.warns(errors.FellBack):
        assert on_ranks(2, step_of) == [1, 1]

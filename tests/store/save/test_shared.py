"""One state of many ranks: what each has goes into one record, and comes back on any number."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

import standfast
from standfast.errors import (
    BadOption,
    FellBack,
    RankLost,
    RanksDisagree,
    RefusedState,
    StateMismatch,
)
from standfast.store.load.ranks_choosing import with_checkpoint_together
from standfast.store.load.reading import read_record
from standfast.store.query.view import CheckpointView
from standfast.store.retention.dropping import without_parts
from standfast.store.save.held import divided, hold
from standfast.store.schema import decoder, names
from standfast.store.schema.boxes import check_boxes
from standfast.store.tree.per_rank import PerRank, per_rank
from standfast.tensors import TensorSpec
from standfast.tensors.shards import Box
from tests.kit.cases import kept
from tests.kit.rank_threads import Killed, ThreadRanks, attempt_on_ranks, on_ranks
from tests.store.save.cut import Cut, cut_framework, even

pytestmark = pytest.mark.usefixtures("cut_framework")
__all__ = ["cut_framework"]

LARGE = np.arange(5 << 20, dtype=np.float32).reshape(1280, 4096)
"""20 MiB: two chunks, if it is one piece."""
WIDE = np.arange(7 * 30, dtype=np.int16).reshape(7, 30)
PLAIN = np.arange(1000, dtype=np.float64)

Layout = Callable[[Sequence[int], int, int], list[Box]]


def rows(shape: Sequence[int], rank: int, size: int) -> list[Box]:
    """One stretch of rows a rank."""
    return _nth(shape, [size, *[1] * (len(shape) - 1)], rank)


def columns(shape: Sequence[int], rank: int, size: int) -> list[Box]:
    return _nth(shape, [*[1] * (len(shape) - 1), size], rank)


def grid(shape: Sequence[int], rank: int, size: int) -> list[Box]:
    """Two by so many, each rank every other box of its half."""
    boxes = even(shape, [2, *[1] * (len(shape) - 2), 2 * size])
    return boxes[rank::size]


def whole(shape: Sequence[int], rank: int, size: int) -> list[Box]:
    """Everything, on each of them."""
    return even(shape, [1] * len(shape))


def _nth(shape: Sequence[int], counts: Sequence[int], rank: int) -> list[Box]:
    axis = max(range(len(counts)), key=lambda i: counts[i])
    length, count = shape[axis], counts[axis]
    begin, end = length * rank // count, length * (rank + 1) // count
    offsets, lengths = [0] * len(shape), [*shape]
    offsets[axis], lengths[axis] = begin, end - begin
    box = Box(tuple(offsets), tuple(lengths))
    return [] if 0 in box.shape else [box]


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


def saved(path: Path, size: int, layout: Layout, step: int = 1) -> standfast.Checkpoint:
    def save(comm: ThreadRanks) -> standfast.Checkpoint:
        with opened(path, comm) as run:
            return run.save(step, state_of(layout, comm.rank, size), comm=comm)

    checkpoints = on_ranks(size, save)
    assert len({each.head.sequence for each in checkpoints}) == 1
    return standfast.Store(path).resolve(f"run@{step}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_process_finds_whole_tensors(tmp_path: Path, layout: str) -> None:
    checkpoint = saved(tmp_path, 3, LAYOUTS[layout])
    checkpoint.verify()
    state = checkpoint.state()
    assert state["model"]["large"].tobytes() == LARGE.tobytes()
    assert state["model"]["wide"].tobytes() == WIDE.tobytes()
    assert state["model"]["plain"].tobytes() == PLAIN.tobytes()
    assert state["model"]["empty"].shape == (0, 3)
    assert state["step"] == 7
    assert [each["rank"] for each in state["mine"]] == [0, 1, 2]
    assert [each["drawn"].tolist() for each in state["mine"]] == [[0], [0, 1], [0, 1, 2]]
    assert [*checkpoint.tensors] == [
        *(f"model.{name}" for name in ("large", "wide", "plain", "empty")),
        *(f"mine.rank{rank}.drawn" for rank in range(3)),
    ]


@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", kept(LAYOUTS, *list(LAYOUTS)[:2]))
def test_any_layout_is_loaded_in_any_other(tmp_path: Path, before: str, after: str) -> None:
    saved(tmp_path, 4, LAYOUTS[before])
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


def test_a_rank_reads_the_chunks_that_it_needs_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tensor of five chunks in one piece, a rank that has the last rows reads the last."""
    tall = np.arange(20 << 20, dtype=np.float32).reshape(-1, 1024)
    with standfast.Store(tmp_path).run("run") as run:
        run.save(1, {"tall": tall})
    file = next(tmp_path.rglob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1  # in a chunk that the rank does not need
    file.write_bytes(data)
    box = Box((tall.shape[0] - 100, 0), (100, 1024))
    into = {"tall": Cut(np.zeros_like(tall), [box])}
    run = standfast.Store(tmp_path).run("run")
    run.load(1, into=into)
    assert into["tall"] == Cut(tall, [box])
    middle = {"tall": Cut(np.zeros_like(tall), [Box((tall.shape[0] // 2, 0), (1, 1024))])}
    with pytest.raises(standfast.DamagedFile, match="tall"):
        run.load(1, into=middle)


def test_what_is_the_ranks_own_comes_back_to_each(tmp_path: Path) -> None:
    saved(tmp_path, 3, rows)

    def load(comm: ThreadRanks) -> Any:
        run = standfast.Store(tmp_path).run("run")
        into = {"mine": per_rank({"rank": None, "drawn": np.zeros(comm.rank + 1, int)})}
        loaded, _ = run.load(into=into, strict=False, comm=comm)
        assert isinstance(loaded["mine"], PerRank)
        return loaded["mine"].tree["rank"], run.load(comm=comm)["mine"]["drawn"].tolist()

    assert on_ranks(3, load) == [(0, [0]), (1, [0, 1]), (2, [0, 1, 2])]


def test_another_number_of_ranks_cannot_have_what_was_the_ranks_own(tmp_path: Path) -> None:
    saved(tmp_path, 3, rows)

    def load(comm: ThreadRanks) -> None:
        into = state_of(rows, comm.rank, comm.size)
        standfast.Store(tmp_path).run("run").load(into=into, comm=comm)

    for outcome in attempt_on_ranks(2, load):
        assert isinstance(outcome, StateMismatch)
        assert "mine" in str(outcome)


def test_what_several_ranks_have_is_written_once_and_spread(tmp_path: Path) -> None:
    tensors = {f"w{n}": np.full(1 << 18, n, np.float64) for n in range(8)}

    def save(comm: ThreadRanks) -> None:
        with opened(tmp_path, comm) as run:
            run.save(1, {"model": {k: v.copy() for k, v in tensors.items()}}, comm=comm)

    on_ranks(4, save)
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert [name.name.split(".")[2] for name in files] == [f"model-rank{n}" for n in range(4)]
    with_headers = sum(file.stat().st_size for file in files)
    assert 0 <= with_headers - sum(each.nbytes for each in tensors.values()) < 1 << 17
    assert max(file.stat().st_size for file in files) < 2.1 * (2 << 20)
    state = standfast.Store(tmp_path).run("run").load()
    assert all(np.array_equal(state["model"][name], each) for name, each in tensors.items())


def test_a_second_save_writes_what_has_changed(tmp_path: Path) -> None:
    def save(comm: ThreadRanks) -> None:
        with opened(tmp_path, comm) as run:
            state = state_of(rows, comm.rank, comm.size)
            run.save(1, state, comm=comm)
            if comm.rank == 1:
                state["model"]["large"].shards[0].tensor[0] += 1
            run.save(2, state, comm=comm)

    on_ranks(3, save)
    second = tmp_path.rglob("*_step_000002.*.safetensors")
    large = [file for file in second if file.stat().st_size > 1 << 20]
    assert [file.name.split(".")[2] for file in large] == ["model-rank1"]
    state = standfast.Store(tmp_path).run("run").load()
    changed = LARGE.copy()
    changed[1280 // 3] += 1
    assert np.array_equal(state["model"]["large"], changed)


def refused(path: Path, size: int, state: Callable[[int], Any]) -> list[Any]:
    def save(comm: ThreadRanks) -> None:
        with opened(path, comm) as run:
            run.save(5, state(comm.rank), comm=comm)

    outcomes = attempt_on_ranks(size, save)
    assert not list(path.rglob("*_step_000005*"))
    assert len({type(each) for each in outcomes}) == 1
    return outcomes


def test_a_plain_value_that_is_another_somewhere_is_refused_by_name(tmp_path: Path) -> None:
    for outcome in refused(tmp_path, 3, lambda rank: {"a": {"lr": 0.1 if rank < 2 else 0.2}}):
        assert isinstance(outcome, RanksDisagree)
        assert "a.lr is 0.1 on rank 0 and 0.2 on rank 2" in str(outcome)


def test_a_tensor_that_is_another_somewhere_is_refused_by_name(tmp_path: Path) -> None:
    def state(rank: int) -> Any:
        return {"bn": {"mean": np.full(9, float(rank == 1)), "same": np.ones(3)}}

    for outcome in refused(tmp_path, 3, state):
        assert isinstance(outcome, RanksDisagree)
        assert "bn.mean on rank" in str(outcome)
        assert "bn.same" not in str(outcome)
        assert "per_rank" in str(outcome)


def test_a_shape_that_is_another_somewhere_is_refused_by_name(tmp_path: Path) -> None:
    for outcome in refused(tmp_path, 2, lambda rank: {"w": np.zeros(3 + rank)}):
        assert isinstance(outcome, RanksDisagree)
        assert "w (numpy, float64, [3])" in str(outcome)


def test_boxes_that_leave_a_hole_or_overlap_are_refused_by_name(tmp_path: Path) -> None:
    def hole(rank: int) -> Any:
        return {"w": Cut(WIDE, rows(WIDE.shape, rank, 3))}

    def overlap(rank: int) -> Any:
        return {"w": Cut(WIDE, [Box((0, 0), (4, 30)) if rank else Box((3, 0), (4, 30))])}

    for state in (hole, overlap):
        for outcome in refused(tmp_path, 2, state):
            assert isinstance(outcome, RanksDisagree)
            assert outcome.args[0].count("w: what the ranks have does not make up the tensor") == 1


def test_what_is_shared_out_cannot_be_one_ranks_own(tmp_path: Path) -> None:
    def state(rank: int) -> Any:
        return {"w": per_rank({"x": Cut(WIDE, rows(WIDE.shape, rank, 2))})}

    for outcome in refused(tmp_path, 2, state):
        assert isinstance(outcome, RefusedState)
        assert "w.rank0.x" in str(outcome)


def test_tensors_that_are_tied_come_back_tied(tmp_path: Path) -> None:
    def save(comm: ThreadRanks) -> None:
        tied = Cut(LARGE, rows(LARGE.shape, comm.rank, 2), same="a")
        plain = PLAIN.copy()
        state = {"m": {"a": tied, "b": tied, "c": plain, "d": plain[10:20]}, "a2": tied}
        with opened(tmp_path, comm) as run:
            run.save(1, state, comm=comm)

    on_ranks(2, save)
    state = standfast.Store(tmp_path).run("run").load()
    assert state["m"]["a"].tobytes() == LARGE.tobytes()
    assert np.shares_memory(state["m"]["a"], state["m"]["b"])
    assert np.shares_memory(state["a2"], state["m"]["b"])
    assert np.shares_memory(state["m"]["c"], state["m"]["d"])
    size = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    assert size < LARGE.nbytes + PLAIN.nbytes + 10_000


def test_one_process_saves_what_is_cut_up_too(tmp_path: Path) -> None:
    with standfast.Store(tmp_path).run("run") as run:
        run.save(1, {"w": Cut(LARGE, even(LARGE.shape, [2, 4])), "v": 1})
        loaded = run.load()
    assert loaded["w"].tobytes() == LARGE.tobytes()
    assert loaded["v"] == 1


def test_ranks_agree_on_the_step(tmp_path: Path) -> None:
    def save(comm: ThreadRanks) -> None:
        with opened(tmp_path, comm) as run:
            run.save(comm.rank, {"a": 1}, comm=comm)

    for outcome in attempt_on_ranks(2, save):
        assert isinstance(outcome, RanksDisagree)


def test_a_record_with_boxes_is_read_as_strictly_as_any(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, 2, columns)
    store = standfast.Store(tmp_path)
    record = read_record(store.backend, checkpoint.head.run, 1)
    assert {record.names[n]: len(boxes) for n, boxes in record.boxes.items()} == {
        "model.large": 2,
        "model.wide": 2,
    }
    text = store.backend.read(names.record_file(checkpoint.head.run, 1))
    assert decoder.decode(text, checkpoint.head.run, 1).boxes == record.boxes
    body = text[: text.rindex(b"\n", 0, -1) + 1]
    for old, new in ((b"[1280,2048]", b"[1280,2047]"), (b"[0,2048]", b"[0,2040]")):
        assert old in body
        damaged = body.replace(old, new)
        with pytest.raises(standfast.DamagedFile, match=r"model\.large"):
            decoder.decode(sealed(damaged), checkpoint.head.run, 1)


def sealed(body: bytes) -> bytes:
    return body + b'{"digest":"' + blake3(body).hexdigest().encode() + b'"}\n'


SPEC = TensorSpec("float32", (4, 6))


@pytest.mark.parametrize(
    "boxes",
    [
        [],
        [Box((0, 0), (4, 5))],
        [Box((0, 0), (4, 3)), Box((0, 2), (4, 4))],
        [Box((0, 0), (4, 6)), Box((0, 0), (4, 6))],
        [Box((0, 0), (2, 6)), Box((2, 0), (3, 6))],
        [Box((0, 0), (4, 6)), Box((4, 0), (0, 6))],
        [Box((-1, 0), (5, 6))],
        [Box((0,), (4,))],
        [Box((0, 0), (4, 6, 1))],
        [Box((0, 0), (2, 3)), Box((2, 3), (2, 3))],
    ],
    ids=range(10),
)
def test_boxes_of_a_file_make_up_the_tensor_or_are_refused(boxes: list[Box]) -> None:
    with pytest.raises(standfast.DamagedFile):
        check_boxes(SPEC, boxes)


def test_boxes_of_any_arrangement_are_taken() -> None:
    check_boxes(
        SPEC, [Box((0, 0), (2, 4)), Box((0, 4), (3, 2)), Box((2, 0), (2, 4)), Box((3, 4), (1, 2))]
    )


@pytest.mark.parametrize("rank", range(3))
def test_a_rank_that_dies_at_any_call_leaves_the_old_checkpoint_or_the_new_one(
    rank: int, tmp_path: Path
) -> None:
    def save(comm: ThreadRanks, step: int) -> None:
        with opened(tmp_path, comm) as run:
            state = {"w": Cut(WIDE + step, rows(WIDE.shape, comm.rank, 3)), "v": PLAIN + step}
            run.save(step, state, comm=comm)

    on_ranks(3, lambda comm: save(comm, 0))
    outcomes = []
    for step in range(1, 100):
        kinds: list[str] = []

        def dies(comm: ThreadRanks, step: int = step, kinds: list[str] = kinds) -> None:
            def before(number: int, kind: str) -> None:
                kinds.append(kind)
                if number == step:
                    comm.kill()
                    raise Killed

            if comm.rank == rank:
                comm.before = before
            save(comm, step)

        found = attempt_on_ranks(3, dies)
        others = [type(each) for n, each in enumerate(found) if n != rank]
        if len(kinds) < step:
            break
        latest = standfast.Store(tmp_path).run("run").checkpoint()
        latest.verify()
        outcomes.append(latest.step == step)
        if not outcomes[-1]:
            assert {*others} == {RankLost}, (step, kinds[-1])
            assert latest.state()["v"][0] == latest.step
    assert found == [None] * 3
    assert outcomes == sorted(outcomes), "it is there from one call on"
    assert outcomes[-1]
    assert not outcomes[0]


def saves(path: Path, size: int, states: Sequence[Callable[[int], Any]]) -> list[Any]:
    """What one process finds of several states, saved one after the other into one run."""

    def save(comm: ThreadRanks) -> None:
        with opened(path, comm) as run:
            for step, state in enumerate(states):
                run.save(step, state(comm.rank), comm=comm)

    on_ranks(size, save)
    store = standfast.Store(path)
    found = [store.resolve(f"run@{step}") for step in range(len(states))]
    for each in found:
        each.verify()
    return [each.state() for each in found]


def own(value: Any) -> Callable[[int], Any]:
    return lambda rank: {"x": np.ones(3), "own": per_rank(value)}


def test_what_is_the_ranks_own_may_change_in_every_way(tmp_path: Path) -> None:
    a = np.arange(5)
    kinds = [
        {"a": a, "b": a[:2]},
        {"a": a, "b": np.array([77, 78])},
        {"a": np.array([1.5, 2.5])},
        {"c": np.array([1.5, 2.5])},
        {"c": np.array([1.5, 2.5]), "d": a},
        [],
        {"a": a, "b": a[:2]},
    ]
    found = saves(tmp_path, 2, [own(kind) for kind in kinds])
    for kind, state in zip(kinds, found, strict=True):
        for each in state["own"]:
            assert str(each) == str(kind)


def test_one_ranks_own_may_grow_while_the_others_stays(tmp_path: Path) -> None:
    def state(step: int) -> Callable[[int], Any]:
        return lambda rank: {"own": per_rank([np.arange(step * rank + 1) for _ in range(step)])}

    found = saves(tmp_path, 2, [state(1), state(2), state(3)])
    assert [[len(each) for each in state["own"]] for state in found] == [[1, 1], [2, 2], [3, 3]]
    assert [len(state["own"][1][0]) for state in found] == [2, 3, 4]


def test_ranks_that_change_places_share_out_anew(tmp_path: Path) -> None:
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


def test_a_rank_that_opens_the_run_anew_stays_in_step(tmp_path: Path) -> None:
    def save(comm: ThreadRanks) -> None:
        run = standfast.Store(tmp_path).run("run")
        run.save(1, {"a": PLAIN.copy()}, comm=comm)
        if comm.rank == 1:
            run = standfast.Store(tmp_path).run("run")
        run.save(2, {"a": PLAIN.copy()}, comm=comm)
        run.close()

    on_ranks(2, save)
    assert standfast.Store(tmp_path).run("run").load()["a"].tobytes() == PLAIN.tobytes()


def test_a_save_keeps_no_tensor_alive(tmp_path: Path) -> None:
    def save(comm: ThreadRanks) -> list[bool]:
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

    assert on_ranks(2, save) == [[True] * 6] * 2


def test_what_is_marked_twice_is_the_ranks_own_once(tmp_path: Path) -> None:
    saves(tmp_path, 2, [lambda rank: {"x": per_rank({"a": per_rank(rank)})}])

    def load(comm: ThreadRanks) -> Any:
        return standfast.Store(tmp_path).run("run").load(comm=comm)

    assert on_ranks(2, load) == [{"x": {"a": 0}}, {"x": {"a": 1}}]


def test_one_file_for_torch_is_refused(tmp_path: Path) -> None:
    def save(comm: ThreadRanks) -> None:
        with opened(tmp_path, comm) as run:
            run.save(1, {"a": PLAIN.copy()}, format="torch", comm=comm)

    for outcome in attempt_on_ranks(2, save):
        assert isinstance(outcome, BadOption)


def test_parts_of_ranks_are_dropped_and_shown_like_others(tmp_path: Path) -> None:
    def state(rank: int) -> Any:
        return {"model": {"w": PLAIN.copy()}, "mine": per_rank({"v": np.arange(rank + 2), "n": 1})}

    saves(tmp_path, 2, [state])
    checkpoint = standfast.Store(tmp_path).resolve("run@0")
    assert [part.key for part in checkpoint.head.parts] == ["model", "mine"]
    left = without_parts(checkpoint.record, {"mine"})
    assert left is not None
    assert left.names == ["model.w"]
    assert CheckpointView(checkpoint, "mine").values


def test_labels_of_many_ranks_are_labels() -> None:
    state = {f"{'part of a state that is long '}{n}": {"w": np.zeros(1 << 17)} for n in range(30)}
    held = hold(state, 12_345)
    files = divided(held.plan, range(len(held.items)), 12_345).files
    assert len({file.label for file in files}) == 30
    assert all(names.is_label(file.label) for file in files)


@pytest.mark.parametrize("call", [1, 3, 5])
def test_a_rank_that_hangs_in_a_save_is_not_waited_for_longer_than_agreed(
    tmp_path: Path, call: int
) -> None:
    saved(tmp_path, 2, rows)
    gave_up = threading.Event()

    def save(comm: ThreadRanks) -> None:
        def hang(number: int, kind: str) -> None:
            if number == call:
                assert gave_up.wait(60)

        if comm.rank == 1:
            comm.before = hang
        try:
            with opened(tmp_path, comm) as run:
                run.save(2, state_of(rows, comm.rank, 2), comm=comm)
        finally:
            gave_up.set()

    outcomes = attempt_on_ranks(2, save, timeout=1)
    assert [type(each) for each in outcomes] == [RankLost, RankLost]
    latest = standfast.Store(tmp_path).run("run").checkpoint()
    latest.verify()
    assert latest.step == 1


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_without_the_file_of_one_rank_all_fall_back_together(tmp_path: Path, harm: str) -> None:
    for step in (1, 2):
        saved(tmp_path, 2, lambda shape, rank, size: rows(shape, rank, 2), step)
    # What of step 2 is new: each rank's own.
    file = next(tmp_path.rglob("*_step_000002.*-rank1.safetensors"))
    if harm == "missing":
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)

    outcomes = []

    def step_of(comm: ThreadRanks) -> None:
        run = standfast.Store(tmp_path).run("run")
        with_checkpoint_together(run, comm, "latest", lambda each: outcomes.append(read(each)))

    with pytest.warns(FellBack):
        on_ranks(2, step_of)
    assert [*filter(None, outcomes)] == [1, 1]


def read(checkpoint: standfast.Checkpoint) -> int:
    """The step, if all of it can be read."""
    checkpoint.verify()
    return checkpoint.step


def test_tensors_in_one_memory_but_in_other_boxes_are_not_tied(tmp_path: Path) -> None:
    one, other = WIDE[:4], WIDE[3:]
    halves = [Box((0, 0), (2, 30)), Box((2, 0), (2, 30))]

    def state(rank: int) -> Any:
        return {
            "a": Cut(one, [halves[rank]], same="storage"),
            "b": Cut(other, [halves[1 - rank]], same="storage"),
        }

    (found,) = saves(tmp_path, 2, [state])
    assert found["a"].tobytes() == one.tobytes()
    assert found["b"].tobytes() == other.tobytes()

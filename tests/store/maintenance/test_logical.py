"""One digest for a state, whatever boxes it lies in and however many ranks saved it."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3
from numpy.lib.stride_tricks import as_strided

import standfast
from standfast.errors import DigestMismatch, LimitExceeded
from standfast.files.digests import CHUNK
from standfast.store.maintenance.logical import Logical, differences, logical, logical_digest
from standfast.store.tree.nodes import Ranks
from standfast.store.tree.per_rank import per_rank
from tests.kit.cli import flip_in
from tests.kit.rank_threads import ThreadRanks, on_ranks
from tests.store.save.cut import Cut, cut_framework, even
from tests.store.save.test_shared import LARGE, LAYOUTS, PLAIN, WIDE, columns, opened, rows

pytestmark = pytest.mark.usefixtures("cut_framework")
__all__ = ["cut_framework"]


def state_of(rank: int, size: int, layout: Any = None) -> dict[str, Any]:
    """One state, in whatever boxes; large tensors last, so that parts are numbered otherwise."""

    def cut(array: np.ndarray[Any, Any]) -> Any:
        return array.copy() if layout is None else Cut(array, layout(array.shape, rank, size))

    return {
        "mine": per_rank({"rank": rank, "drawn": np.arange(rank + 1)}),
        "model": {"wide": cut(WIDE), "plain": PLAIN.copy(), "large": cut(LARGE)},
        "lr": 0.1,
        "empty": np.empty((0, 3)),
    }


def saved_by(
    path: Path, size: int, state: Callable[[int, int], Any], step: int = 1
) -> standfast.Checkpoint:
    """A state that so many ranks saved."""

    def save(comm: ThreadRanks) -> None:
        with opened(path, comm) as run:
            run.save(step, state(comm.rank, size), comm=comm)

    on_ranks(size, save)
    return standfast.Store(path).resolve(f"run@{step}")


def saved(path: Path, *states: Any) -> list[Logical]:
    """What states of one process are that it saved one after the other."""
    with standfast.Store(path).run("run") as run:
        found = [run.save(step, state) for step, state in enumerate(states)]
    return [logical(each) for each in found]


def test_boxes_and_ranks_do_not_count(tmp_path):
    with standfast.Store(tmp_path / "one").run("run") as run:
        alone = logical(run.save(1, state_of(0, 1)))
    for name, layout in LAYOUTS.items():
        for size in (2, 3):
            path = tmp_path / f"{name}{size}"
            found = logical(saved_by(path, size, partial(state_of, layout=layout)))
            assert found.digest == alone.digest, (name, size)
            assert found.tensors == alone.tensors
            assert found.values == alone.values
            assert (found.ranks, found.own == alone.own) == (size, False)
            assert list(differences(alone, found)) == []


def test_the_digest_is_what_the_page_of_the_format_says(tmp_path):
    """Made by hand, of a tensor in boxes that has two chunks as a whole."""
    checkpoint = saved_by(tmp_path, 2, lambda r, n: state_of(r, n, columns))
    assert len(checkpoint.record.boxes) == 2

    def of_chunks(array: np.ndarray[Any, Any]) -> str:
        data = array.tobytes()
        chunks = [blake3(data[at : at + CHUNK]) for at in range(0, max(len(data), 1), CHUNK)]
        first, *others = [chunk.digest() for chunk in chunks]
        return blake3(b"".join([first, *others])).hexdigest() if others else first.hex()

    def line(array: np.ndarray[Any, Any]) -> str:
        shape = ",".join(map(str, array.shape))
        return f'["{array.dtype}",[{shape}],null,"{of_chunks(array)}"]\n'

    text = (
        "standfast state 1\n"
        '{"mine":{"$ranks":[null]},"model":{"wide":{"$tensor":0},"plain":{"$tensor":1},'
        '"large":{"$tensor":2}},"lr":0.1,"empty":{"$tensor":3}}\n'
    )
    text += "".join(line(each) for each in (WIDE, PLAIN, LARGE, np.empty((0, 3))))
    own = (
        'standfast state 1\n[[{"rank":0,"drawn":{"$tensor":0}},{"rank":1,"drawn":{"$tensor":1}}]]\n'
    )
    own += "".join(map(line, (np.arange(1), np.arange(2))))
    told: list[int] = []
    found = logical(checkpoint, told.append)
    assert sum(told) == checkpoint.nbytes
    assert found.digest == blake3(text.encode()).hexdigest()
    assert found.own == blake3(own.encode()).hexdigest()
    assert found.digest == logical_digest(checkpoint)


BASE: Mapping[str, Any] = {"a": {"w": np.arange(6.0).reshape(2, 3), "v": np.ones(2)}, "x": [1, 2]}
OTHERS: dict[str, tuple[Callable[[Any], Any], list[tuple[str, str]]]] = {
    "bytes": (
        lambda s: {**s, "a": {**s["a"], "w": s["a"]["w"] + 1}},
        [("a.w", "other bytes")],
    ),
    "minus zero": (
        lambda s: {**s, "a": {**s["a"], "w": np.array([[-0.0, 1, 2], [3, 4, 5]])}},
        [("a.w", "other bytes")],
    ),
    "dtype": (
        lambda s: {**s, "a": {**s["a"], "w": s["a"]["w"].view(np.int64)}},
        [("a.w", "float64 [2, 3] → int64 [2, 3]")],
    ),
    "shape": (
        lambda s: {**s, "a": {**s["a"], "w": s["a"]["w"].reshape(3, 2)}},
        [("a.w", "float64 [2, 3] → float64 [3, 2]")],
    ),
    "name": (
        lambda s: {**s, "a": {"w": s["a"]["w"], "u": s["a"]["v"]}},
        [("a.v", "only in the first"), ("a.u", "only in the second")],
    ),
    "value": (lambda s: {**s, "x": [1, 3]}, [("x", "[1,2] → [1,3]")]),
    "type": (lambda s: {**s, "x": [1, 2.0]}, [("x", "[1,2] → [1,2.0]")]),
    "more": (lambda s: {**s, "y": None}, [("y", "only in the second")]),
    "tuple": (lambda s: {**s, "x": (1, 2)}, [("x", '[1,2] → {"$tuple":[1,2]}')]),
    "order": (
        lambda s: {"x": s["x"], "a": s["a"]},
        [("state", "the same leaves, in other containers or in another order")],
    ),
    "container": (
        lambda s: {**s, "a": OrderedDict(s["a"])},
        [("state", "the same leaves, in other containers or in another order")],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_that_is_another_state_is_named(tmp_path, name):
    change, expected = OTHERS[name]
    one, other = saved(tmp_path, dict(BASE), change(dict(BASE)))
    assert one.digest != other.digest
    assert list(differences(one, other)) == expected


def test_kinds_do_not_count(tmp_path):
    torch = pytest.importorskip("torch")
    state = {"w": np.arange(5, dtype=np.float32)}
    one, other = saved(tmp_path, state, {"w": torch.nn.Parameter(torch.arange(5.0))})
    assert one == other


def test_ties_count(tmp_path):
    """Whichever of the tied was stored; a dimension of one has no stride that counts."""
    w, v = np.arange(6.0), np.arange(6.0)
    whole = np.arange(12.0).reshape(2, 6)
    tied, apart, half, other_half = saved(
        tmp_path,
        {"a": w, "b": w},
        {"a": w, "b": v},
        {"a": whole[0], "b": whole},
        {"b": whole.copy(), "a": whole[0].copy()},
    )
    assert tied.tensors["b"].tie == (0, 0, (8,))
    assert [*differences(tied, apart)] == [
        ("a", "it shares its memory with others"),
        ("b", "it shares its memory with others"),
    ]
    assert half.tensors["a"].tie == (0, 0, (8,))
    assert half.tensors["b"].tie == (0, 0, (48, 8))
    (odd,) = saved(tmp_path / "odd", {"a": w, "b": as_strided(w, (1, 6), (1000, 8))})
    assert odd.tensors["b"].tie == (0, 0, (0, 8))
    assert half.tensors["a"].digest == other_half.tensors["a"].digest
    assert half.digest != other_half.digest


def test_tied_tensors_are_the_same_in_boxes(tmp_path):
    alone = LARGE.copy()
    with standfast.Store(tmp_path / "one").run("run") as run:
        one = run.save(1, {"m": {"a": alone, "b": alone}, "z": {"c": alone}})

    def state(rank: int, size: int) -> Any:
        tied = Cut(LARGE, columns(LARGE.shape, rank, size), same="a")
        return {"m": {"a": tied, "b": tied}, "z": {"c": tied}}

    several = saved_by(tmp_path / "two", 2, state)
    assert logical(one) == logical(several)


def test_views_are_read_out_of_what_is_stored_for_them(tmp_path):
    """Views in memory that no tensor covers: what is stored is none of them."""
    base = np.arange(40, dtype=np.int32)
    state = {"even": base[0:30].reshape(5, 6).T, "late": base[10:40][::-1]}
    with standfast.Store(tmp_path).run("run") as run:
        checkpoint = run.save(1, state)
    told: list[int] = []
    found = logical(checkpoint, told.append)
    assert sum(told) == base.nbytes
    (plain,) = saved(tmp_path / "plain", {name: each.copy("C") for name, each in state.items()})
    for name in state:
        assert found.tensors[name].digest == plain.tensors[name].digest
        assert found.tensors[name].tie is not None
    assert found.digest != plain.digest


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.bool_, np.complex128])
def test_any_dtype_in_boxes_has_the_digest_of_the_whole(tmp_path, dtype):
    array = (np.arange(24) % 2).astype(dtype).reshape(4, 6)
    with standfast.Store(tmp_path).run("run") as run:
        checkpoints = [
            run.save(1, {"w": array}),
            run.save(2, {"w": Cut(array, even(array.shape, [2, 3]))}),
        ]
    assert len(checkpoints[1].record.boxes[0]) == 6
    one, other = map(logical, checkpoints)
    assert one == other


def test_what_is_the_ranks_own_has_a_digest_of_its_own(tmp_path):
    def state(plus: int) -> Callable[[int, int], Any]:
        return lambda rank, size: {"w": PLAIN, "mine": per_rank([rank + plus])}

    found = [logical(saved_by(tmp_path, 2, state(plus), plus)) for plus in (0, 1)]
    again = logical(saved_by(tmp_path / "again", 2, state(0)))
    assert found[0] == again
    assert found[0].digest == found[1].digest
    assert found[0].own != found[1].own
    (nothing,) = saved(tmp_path / "nothing", {"w": PLAIN})
    assert (nothing.own, nothing.ranks) == (None, 0)


def test_all_of_what_is_the_ranks_own_counts(tmp_path):
    """Also what was the ranks' own in a state that was loaded, and is one rank's own now."""
    states = [{"mine": per_rank({"before": Ranks([1, last])})} for last in (2, 3)]
    one, other = saved(tmp_path, *states)
    assert one.digest == other.digest
    assert one.own != other.own


@pytest.mark.parametrize("name", ["model.large", "model.plain", "mine.rank1.drawn"])
def test_every_byte_is_verified(tmp_path, name):
    checkpoint = saved_by(tmp_path, 2, lambda r, n: state_of(r, n, rows))
    flip_in(standfast.Store(tmp_path), checkpoint.ref, name)
    with pytest.raises(DigestMismatch, match=name):
        logical(checkpoint)


def test_a_view_that_never_ends_is_refused(tmp_path):
    with standfast.Store(tmp_path).run("run") as run:
        base = np.zeros(4, np.uint8)
        endless = as_strided(base, (1 << 40,), (0,))
        checkpoint = run.save(1, {"base": base, "endless": endless})
    with pytest.raises(LimitExceeded, match="endless"):
        logical(checkpoint)

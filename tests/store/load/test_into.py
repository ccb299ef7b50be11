"""A load into a given tree fills it in place, all of it or nothing, and says what did not fit."""

import re
import sys
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from standfast import errors
from standfast.store import LoadReport
from tests.kit.peak_memory import peaks
from tests.kit.stores import data_path, flip, random_bytes, same


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))


def test_parameters_are_filled_where_they_lie(run):
    saved, model = _model(), _model()
    run.save(1, {"model": saved.state_dict(), "w": torch.arange(6.0).reshape(2, 3)})
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    tree = {"model": model.state_dict(), "w": parameter}
    assert run.load(1, into=tree) is tree
    assert same(model.state_dict(), saved.state_dict())
    assert {n: t.data_ptr() for n, t in model.state_dict().items()} == before
    assert torch.equal(parameter.detach(), torch.arange(6.0).reshape(2, 3))
    assert (parameter.is_leaf, parameter.requires_grad, parameter.grad_fn) == (True, True, None)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_targets_of_any_strides_are_filled(run, kind):
    x = np.arange(12.0).reshape(3, 4)
    run.save(1, {"a": x, "b": x, "c": x})
    base = {name: np.zeros((5, 8)) for name in "abc"}
    views = {"a": base["a"][:4, :3].T, "b": base["b"][1:4, ::2], "c": base["c"][:3, 2:6]}
    views = {k: torch.from_numpy(v) for k, v in views.items()} if kind == "torch" else views
    run.load(1, into=views)
    assert np.array_equal(base["a"][:4, :3].T, x)
    assert np.array_equal(base["b"][1:4, ::2], x)
    assert np.array_equal(base["c"][:3, 2:6], x)
    assert base["b"].sum() == base["c"].sum() == x.sum(), "nothing beside the target was written"
    backwards, swapped = np.zeros((3, 4))[::-1], np.zeros((3, 4), ">f8")
    run.load(1, into={"a": backwards, "b": swapped, "c": np.zeros((3, 4))})
    assert backwards.tolist() == swapped.tolist() == x.tolist()


def test_plain_values_are_replaced_in_the_same_containers(run):
    run.save(1, {"step": 7, "list": [1, {"x": "new"}], "pair": (2, np.ones(2)), "gone": None})
    inner: dict[str, Any] = {"x": "old"}
    items, array = [0, inner], np.zeros(2)
    tree: dict[str, Any] = {"step": 0, "list": items, "pair": (0, array), "gone": 5}
    assert run.load(1, into=tree) is tree
    assert (tree["step"], tree["gone"], tree["pair"][0]) == (7, None, 2)
    assert (tree["list"] is items, items[1] is inner, tree["pair"][1] is array) == (True,) * 3
    assert (inner, array.tolist()) == ({"x": "new"}, [1, 1])


PROGRAM = """
width = 4 << 20
state = {f"x{i}": np.arange(i * width, (i + 1) * width) for i in range(6)}
run = standfast.Store(sys.argv[1]).run("a")
run.save(1, state)
for x in state.values():
    x[-1] ^= 1
run.save(2, state)  # each tensor lies in two files
for step in (1, 2):
    for x in state.values():
        x[:] = -1
    measure(lambda: run.load(step, into=state))
    last = [(i + 1) * width - 1 for i in range(6)]
    assert [int(x[0]) for x in state.values()] == [i * width for i in range(6)]
    assert [int(x[-1]) for x in state.values()] == (last if step == 1 else [n ^ 1 for n in last])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_filling_makes_no_second_copy_of_the_state(tmp_path):
    first, second = peaks(PROGRAM, tmp_path)
    assert max(first, second) <= 48 << 10, "KiB, for a state of 192 MiB"


def _given(a: Any, c: Any, n: Any = 0, **more: Any) -> dict[str, Any]:
    return {"a": a, "b": {"c": c, "n": n, **more}}


STATE = _given(np.arange(3.0), np.arange(4, dtype=np.int32), 5)
A, C = np.zeros(3), np.zeros(4, np.int32)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": A}, ["unexpected .*: b.c"]),
        (_given(A, C, new=np.zeros(1)), ["missing .*: b.new"]),
        (_given(A, np.zeros(4, np.int64)), [r"different: b.c: int32 \[4\] .* int64 \[4\]"]),
        (_given(np.zeros((3, 1)), C), [r"different: a: float64 \[3\] .* float64 \[3, 1\]"]),
        (_given(0.0, C, np.zeros(())), ["different: a: a tensor", "different: b.n: a int"]),
        (_given(A, C, {}), ["different: b.n"]),
        ({"x": A}, ["missing .*: x", "unexpected .*: a"]),
    ],
)
def test_a_tree_that_differs_stays_untouched(run, given, expected):
    run.save(1, STATE)
    before = deepcopy(given)
    with pytest.raises(errors.StateMismatch) as caught:
        run.load(1, into=given)
    for pattern in expected:
        assert re.search(pattern, str(caught.value))
    assert same(given, before)


@pytest.mark.parametrize("damaged", ["a", "z"])
def test_damaged_data_fills_nothing(run, damaged):
    state = {"a": {"w": random_bytes(2 << 20, 1)}, "z": {"w": random_bytes(2 << 20, 2)}}
    run.save(1, state)
    flip(data_path(run, 1, damaged))
    given = {key: {"w": np.zeros(2 << 20, np.uint8)} for key in state}
    with pytest.raises(errors.DigestMismatch) as caught:
        run.load(1, into=given)
    assert caught.value.tensors == (f"{damaged}.w",)
    assert not any(part["w"].any() for part in given.values())


def test_verify_false_fills_what_is_there(run):
    run.save(1, {"w": random_bytes(1000)})
    flip(data_path(run, 1))
    w = np.zeros(1000, np.uint8)
    run.load(1, into={"w": w}, verify=False)
    assert w[-1] == random_bytes(1000)[-1] ^ 1


def test_what_cannot_be_written_to_is_refused_before_anything_is_filled(run):
    run.save(1, {"a": torch.ones(3), "b": torch.arange(6.0).reshape(3, 2)})
    a, b, c = torch.zeros(3), torch.zeros(1, 2).expand(3, 2), np.zeros((3, 2), np.float32)
    c.flags.writeable = False
    with pytest.raises(errors.StateMismatch, match="b: "):
        run.load(1, into={"a": a, "b": b})
    with pytest.raises(errors.StandfastError):
        run.load(1, into={"a": a, "b": c})
    assert not a.any()
    report = run.load(1, into={"a": a, "b": b}, strict=False)[1]
    assert (report.loaded, len(report.mismatched)) == (["a"], 1)
    assert not b.any()


def test_latest_falls_back_when_it_cannot_be_filled_with(run):
    run.save(1, {"w": random_bytes(1000, 1)})
    run.save(2, {"w": random_bytes(1000, 2)})
    flip(data_path(run, 2))
    w = np.zeros(1000, np.uint8)
    with pytest.warns(errors.FellBack, match="@1"):
        run.load(into={"w": w})
    assert same(w, random_bytes(1000, 1))
    with pytest.raises(errors.DamagedFile):
        run.load(2, into={"w": w})


def test_partial_loads_fill_what_fits_and_report_the_rest(run):
    run.save(1, {"a": np.ones(3), "b": np.ones(2), "old": np.ones(1), "n": 5})
    given = {"a": np.zeros(3), "b": np.zeros(3), "new": np.zeros(1), "n": 0}
    filled, report = run.load(1, into=given, strict=False)
    assert filled is given
    assert report == LoadReport(
        loaded=["a", "n"],
        missing=["new"],
        unexpected=["old"],
        mismatched=["b: float64 [2] was saved, float64 [3] is given"],
    )
    assert not report.exact
    assert same(given, {"a": np.ones(3), "b": np.zeros(3), "new": np.zeros(1), "n": 5})


def test_a_partial_load_does_not_read_what_it_does_not_need(run):
    big = 2 << 20
    run.save(1, {"a": {"w": random_bytes(big, 1)}, "b": {"w": random_bytes(big, 2)}})
    data_path(run, 1, "b").unlink()
    given = {"a": {"w": np.zeros(big, np.uint8)}}
    _, report = run.load(1, into=given, strict=False)
    assert same(given["a"]["w"], random_bytes(big, 1))
    assert report.unexpected == ["b.w"]


def test_prefixes_are_renamed_into_a_tree(run):
    run.save(1, {"net": {"module": {"w": np.ones(2), "b": np.zeros(1)}, "modules": np.ones(1)}})
    given = {"net": {"w": np.zeros(2), "b": np.ones(1), "modules": np.zeros(1)}}
    filled, report = run.load(1, into=given, rename={"net.module": "net"})
    assert filled is given
    assert report.exact
    assert report.renamed == {"net.module.w": "net.w", "net.module.b": "net.b"}
    assert same(given, {"net": {"w": np.ones(2), "b": np.zeros(1), "modules": np.ones(1)}})


def test_the_longest_name_counts_and_two_may_be_swapped(run):
    run.save(1, {"a": {"x": np.full(1, 1.0), "y": np.full(1, 2.0)}, "b": np.full(1, 3.0)})
    given = {"b": {"y": np.zeros(1)}, "z": np.zeros(1), "a": np.zeros(1)}
    _, report = run.load(1, into=given, rename={"a": "b", "a.x": "z", "b": "a"})
    assert report.exact
    assert same(given, {"b": {"y": np.full(1, 2.0)}, "z": np.full(1, 1.0), "a": np.full(1, 3.0)})


def test_a_renamed_load_is_strict_unless_told_otherwise(run):
    run.save(1, {"old": np.ones(2), "more": np.ones(1)})
    given = {"new": np.zeros(2)}
    with pytest.raises(errors.StateMismatch, match="more"):
        run.load(1, into=given, rename={"old": "new"})
    assert not given["new"].any()
    _, report = run.load(1, into=given, rename={"old": "new"}, strict=False)
    assert given["new"].all()
    assert report.unexpected == ["more"]


W, B = np.ones(2), np.zeros(1)
LAYERS = {"layers": [{"w": W}, {"w": B}]}
RENAMED: dict[str, tuple[Any, Any, Any]] = {
    "not renamed": ({"a": W}, None, {"a": W}),
    "prefix": (
        {"model": {"module": {"w": W}, "n": 1}, "step": 3},
        {"model.module": "net", "step": "meta.step"},
        {"model": {"n": 1}, "net": {"w": W}, "meta": {"step": 3}},
    ),
    "swapped": ({"a": W, "b": B}, {"a": "b", "b": "a"}, {"a": B, "b": W}),
    "in a list": (LAYERS, {"layers.0.w": "layers.0.v"}, {"layers": [{"v": W}, {"w": B}]}),
}


@pytest.mark.parametrize("name", RENAMED)
def test_a_state_is_renamed_without_a_tree(run, name):
    state, rename, expected = RENAMED[name]
    run.save(1, state)
    loaded, report = run.load(1, rename=rename, strict=False)
    assert same(dict(sorted(loaded.items())), dict(sorted(expected.items())))
    assert (report.exact, report.renamed) == (True, rename or {})


@pytest.mark.parametrize("into", [None, {"a": np.zeros(1), "b": np.zeros(1)}])
def test_a_rename_of_nothing_or_onto_another_is_refused(run, into):
    run.save(1, {"a": np.ones(1), "b": np.ones(1)})
    with pytest.raises(errors.StateMismatch, match="'x'"):
        run.load(1, into=into, rename={"x": "y"})
    with pytest.raises(errors.StateMismatch, match="'b'"):
        run.load(1, into=into, rename={"a": "b"})
    assert into is None or not into["a"].any()


def test_a_report_is_readable(run):
    run.save(1, {f"x{i}": 0 for i in range(30)})
    _, report = run.load(1, into={"new": 1}, strict=False)
    first, *rest = str(report).splitlines()
    assert first.startswith("0 ")
    assert any(line.endswith(": new") for line in rest)
    assert "10" in rest[-1]


def test_leaves_with_one_path_are_told_apart(run):
    state = {"a.b": np.full(1, 1.0), "a": {"b": np.full(1, 2.0)}, 0: 1, "0": 2}
    run.save(1, state)
    given = {"a.b": np.zeros(1), "a": {"b": np.zeros(1)}, 0: 0, "0": 0}
    run.load(1, into=given)
    assert same(given, state)

"""A record with boxes and with what is the ranks' own, as an enemy would write it."""

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.files.digests import DIGEST
from standfast.store.schema.boxes import box_nbytes, count_chunks
from standfast.store.schema.decoder import decode
from standfast.store.schema.record import DataFile, Head, Part, Record, encode
from standfast.store.tree import tree
from standfast.store.tree.aliases import View
from standfast.store.tree.nodes import MAX_DEPTH, Ranks
from standfast.store.tree.per_rank import Rank, own_of
from standfast.tensors import TensorSpec
from standfast.tensors.shards import Box
from tests.fuzz.limits import memory_limit, processor_limit
from tests.fuzz.properties import check_message
from tests.fuzz.records import fuzz_records
from tests.kit.cases import kept
from tests.kit.stores import record_path
from tests.store.schema.edits import Change, ended, lines_of, put, rewritten

RUN = "0123456789abcdef01234567"
STEP = 100
COLUMNS = ["names", "kinds", "specs", "extents", "digests", "views", "boxes"]
HUGE = 10**30


def record_of(
    specs: list[TensorSpec], boxes: dict[int, list[Box]], views: dict[int, View] | None = None
) -> Record:
    """Tensors one after the other in one file, an extent for each box."""
    views = views or {}
    pieces = [
        [] if n in views else box_nbytes(spec, boxes[n]) if n in boxes else [spec.nbytes]
        for n, spec in enumerate(specs)
    ]
    sizes = np.array([size for each in pieces for size in each], np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)))[:-1]
    total, count = int(sizes.sum()), len(specs)
    name = f"{RUN}_step_000100.0123abcd.a-rank0.safetensors"
    chunks = sum(
        count_chunks(spec, boxes[n]) if n in boxes else 1
        for n, spec in enumerate(specs)
        if n not in views
    )
    return Record(
        head=Head(
            run=RUN,
            identity={"hp": None, "model": None, "data": None},
            step=STEP,
            epoch=None,
            sequence=1,
            token="0123abcd",
            time="2026-11-16T10:00:00.000000Z",
            best=False,
            metrics={},
            parent=None,
            software={},
            tensors=count,
            nbytes=total,
            parts=[Part("a", "a", 0, count)],
            files=[DataFile(name, total + 4096, "ab" * 32, total, total)],
        ),
        tree=b"[%b]" % b",".join(b'{"$tensor":%d}' % n for n in range(count)),
        names=[f"t{n}" for n in range(count)],
        kinds=["numpy"] * count,
        specs=specs,
        counts=np.array([len(each) for each in pieces]),
        files=np.zeros(len(sizes), np.int64),
        starts=starts,
        sizes=sizes,
        digests=bytes(DIGEST * chunks),
        views=views,
        boxes=boxes,
    )


QUARTERS = [Box((i, j), (2, 3)) for i, j in product((0, 2), (0, 3))]
GOOD = encode(
    record_of(
        [
            TensorSpec("float32", (4, 6)),
            TensorSpec("float32", (4, 6)),
            TensorSpec("uint8", (8,)),
            TensorSpec("float6_e2m3fn", (8,)),
            TensorSpec("int16", (5,)),
        ],
        {0: QUARTERS, 4: [Box((2,), (3,)), Box((0,), (2,))]},
        {1: View(0, 0, (24, 4))},
    )
)


def edited(line: str, change: Change) -> bytes:
    """The record with one column changed, and a last line that fits."""
    lines = lines_of(GOOD)
    number = 2 + COLUMNS.index(line)
    lines[number] = msgspec.json.encode({line: change(json.loads(lines[number])[line])})
    return ended(lines)


def listed(*boxes: tuple[list[Any], list[Any]]) -> list[Any]:
    return [[*box] for box in boxes]


MALFORMED: dict[str, Change] = {
    "empty": lambda old: [],
    "an object": lambda old: {},
    "a row that is a number": put(0, 5),
    "a row of three": lambda old: [[*old[0], 1], *old[1:]],
    "a tensor that is a float": put(0, 0, 0.5),
    "a tensor that is a bool": put(0, 0, True),
    "no such tensor": put(0, 0, 5),
    "a negative tensor": put(0, 0, -5),
    "a tensor twice": lambda old: [*old, old[0]],
    "a view": put(0, 0, 1),
    "a packed dtype": lambda old: [*old, [3, listed(([0], [4]), ([4], [4]))]],
    "no boxes": put(0, 1, []),
    "a box that is null": put(0, 1, 0, None),
    "a box without a shape": put(0, 1, 0, [[0, 0]]),
    "a box with more": put(0, 1, 0, [[0, 0], [2, 3], [1, 1]]),
    "a box of more dimensions": put(0, 1, 0, [[0, 0, 0], [2, 3, 1]]),
    "offsets and shape that differ": put(0, 1, 0, [[0, 0], [2]]),
    "an offset that is a float": put(0, 1, 0, 0, 0, 0.5),
    "a negative offset": put(0, 1, 0, 0, 0, -1),
    "an offset of 2^63": put(0, 1, 0, 0, 0, 1 << 63),
    "an offset of 4,300 digits": put(0, 1, 0, 0, 0, int("9" * 4300)),
    "a length of 2^64": put(0, 1, 0, 1, 0, 1 << 64),
    "a length of none": put(0, 1, 0, 1, 0, 0),
    "a negative length": put(0, 1, 0, 1, 0, -2),
    "a hole in the middle": put(0, 1, 1, [[0, 3], [1, 3]]),
    "a box twice": lambda old: [[0, [*old[0][1], old[0][1][0]]], *old[1:]],
    "an overlap": put(0, 1, 1, [[0, 2], [2, 4]]),
    "a box outside": put(0, 1, 3, [[2, 4], [2, 3]]),
    "another cut of as many bytes": lambda old: [
        [0, listed(([0, 0], [1, 6]), ([1, 0], [1, 6]), ([2, 0], [1, 6]), ([3, 0], [1, 6]))],
        [4, listed(([0], [1]), ([1], [4]))],
    ],
    "more boxes than extents": lambda old: [old[0], [4, listed(*(([i], [1]) for i in range(5)))]],
    "boxes where one extent is": lambda old: [*old, [2, listed(([0], [4]), ([4], [4]))]],
    "fewer boxes than extents": lambda old: old[:1],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_line_of_boxes_is_refused(name):
    text = edited("boxes", MALFORMED[name])
    assert text != GOOD
    with pytest.raises(errors.DamagedFile) as caught:
        decode(text, RUN, STEP)
    check_message(str(caught.value))


def test_boxes_need_not_be_sorted():
    record = decode(edited("boxes", lambda old: [[0, old[0][1][::-1]], old[1]]), RUN, STEP)
    assert record.boxes[0] == QUARTERS[::-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"boxes"', b' "boxes"'),
        (b'"boxes"', b'"views"'),
        (b'"boxes"', b'"boxes":[],"boxes"'),
        (b"[[0,[[", b"[[00,[["),
        (b"[[0,[[", b"[ ["),
    ],
)
def test_a_line_in_another_form_is_refused(old, new):
    lines = lines_of(GOOD)
    assert old in lines[8]
    lines[8] = lines[8].replace(old, new, 1)
    with pytest.raises(errors.DamagedFile):
        decode(ended(lines), RUN, STEP)


def test_a_record_has_one_line_of_boxes_or_none():
    assert edited("boxes", lambda old: old) == GOOD
    assert decode(GOOD, RUN, STEP).boxes[0] == QUARTERS
    none = encode(record_of([TensorSpec("uint8", (8,))], {}))
    assert decode(none, RUN, STEP).boxes == {}
    lines = lines_of(GOOD)
    for wrong in (
        [*lines_of(none), b'{"boxes":[]}'],
        [*lines, lines[8]],
        [*lines[:7], lines[8]],
    ):
        with pytest.raises(errors.DamagedFile):
            decode(ended(wrong), RUN, STEP)


@pytest.mark.parametrize(
    "sizes", [[25, 23, 24, 24], [12, 24, 36, 24], [48, 24, 24], [96], [24, 24, 24, 12, 12]], ids=str
)
def test_an_extent_ends_where_its_box_does(sizes):

    def change(old: Any) -> Any:
        old["counts"][0] = len(sizes)
        for name in ("files", "starts", "sizes"):
            old[name][:4] = sizes if name == "sizes" else [0] * len(sizes)
        return old

    assert sum(sizes) == 96
    with pytest.raises(errors.DamagedFile):
        decode(edited("extents", change), RUN, STEP)


TREES: dict[str, bytes] = {
    "empty": b'{"a":{"$ranks":[]}}',
    "beside another key": b'{"a":{"$ranks":[1],"b":2}}',
    "as a key of a dict": b'{"$dict":[[{"$ranks":[1]},2]]}',
    "as a key of an ordered dict": b'{"$ordered":[[{"$ranks":["a"]},2]]}',
    "as a pair": b'{"$dict":[{"$ranks":["a",2]}]}',
    "as a part of a complex number": b'{"$complex":{"$ranks":[1.0,2.0]}}',
    "a tensor that is none": b'{"$ranks":[{"$tensor":5}]}',
    "too deep": b'{"$ranks":[' * (MAX_DEPTH + 1) + b"1" + b"]}" * (MAX_DEPTH + 1),
}


@pytest.mark.parametrize("name", TREES)
def test_a_malformed_tree_of_ranks_is_refused(name):
    with pytest.raises(errors.DamagedFile):
        tree.decode(TREES[name], 5)


def test_a_tree_of_ranks_may_hold_anything_and_comes_back():
    text = b'{"a":{"$ranks":[{"$ranks":[1,2]},[{"$tensor":0}]]},"b":[{"$ranks":[null]}]}'
    found = tree.decode(text, 1)
    assert type(found["a"]) is type(found["a"][0]) is type(found["b"][0]) is Ranks
    node, _ = tree.flatten(tree.build(found, lambda number: np.zeros(1)))
    assert tree.encode(node, [0]) == text
    assert own_of(tree.decode(text, 1), Rank(1, 2))["a"] == found["a"][1]


def test_ranks_within_ranks_are_as_deep_as_any_tree():
    def deep(depth: int) -> bytes:
        return b'{"$ranks":[1,' * depth + b"2" + b"]}" * depth

    assert own_of(tree.decode(deep(MAX_DEPTH), 0), Rank(1, 2)) == 2
    with pytest.raises(errors.LimitExceeded):
        tree.decode(deep(MAX_DEPTH + 1), 0)


def fan(dimensions: int, cuts: int) -> tuple[TensorSpec, list[Box]]:
    """Few boxes and many cells: each slab is cut along another axis."""
    shape = [cuts + dimensions - 1] + [cuts] * (dimensions - 1)
    boxes = [Box((n, *[0] * (dimensions - 1)), (1, *shape[1:])) for n in range(cuts)]
    for axis, n in product(range(1, dimensions), range(cuts)):
        offsets, lengths = [0] * dimensions, [*shape]
        offsets[0], lengths[0] = cuts + axis - 1, 1
        offsets[axis], lengths[axis] = n, 1
        boxes.append(Box(tuple(offsets), tuple(lengths)))
    return TensorSpec("uint8", tuple(shape)), boxes


def many(count: int, spec: TensorSpec, boxes: list[Box]) -> bytes:
    return encode(record_of([spec] * count, dict.fromkeys(range(count), boxes)))


def a_row(count: int, step: int = 1) -> bytes:
    boxes = [Box((n,), (1,)) for n in range(count)][::step]
    return many(1, TensorSpec("uint8", (count,)), boxes)


def without_extents(count: int) -> bytes:
    boxes = [[[n], [1]] for n in reversed(range(count))]
    lines = lines_of(GOOD)
    lines[8] = msgspec.json.encode({"boxes": [[0, boxes]]})
    lines[4] = lines[4].replace(b"[4,6]", b"[%d]" % count, 1)
    return ended(lines)


PAIR = [Box((0,), (2,)), Box((2,), (2,))]
EXPENSIVE: dict[str, Callable[[], bytes]] = {
    "a row": lambda: a_row(40_000),
    "a row backwards": lambda: a_row(40_000, step=-1),
    "boxes without extents": lambda: without_extents(100_000),
    "four axes": lambda: many(20, *fan(4, 44)),
    "two axes": lambda: many(3, *fan(2, 2000)),
    "seven axes": lambda: many(50, *fan(7, 8)),
    "many tensors": lambda: many(20_000, TensorSpec("uint8", (4,)), PAIR),
    "tensors without boxes": lambda: encode(record_of([TensorSpec("uint8", (4,))] * 40_000, {})),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_no_record_takes_long_or_much_memory(name):
    text = EXPENSIVE[name]()
    assert len(text) < 4 << 20
    with (
        processor_limit(3),
        memory_limit(500 << 20),
        suppress(errors.BadField, errors.LimitExceeded),
    ):
        decode(text, RUN, STEP)


def test_overlaps_are_found_before_they_cost_anything():
    spec, boxes = fan(2, 2000)
    covering = Box((0, 0), spec.shape)  # nearly all of 4,000,000 cells
    changed = [*boxes[:100], *[covering] * 20_000]
    with processor_limit(3), pytest.raises(errors.BadField, match=r"overlap|extent"):
        decode(many(1, spec, changed), RUN, STEP)


def test_a_store_names_the_record_of_wrong_boxes(tmp_path):
    with standfast.Store(tmp_path).run("a") as run:
        run.save(1, {"w": np.arange(24.0).reshape(4, 6)})
    rewritten(record_path(run, 1), lambda lines: lines.append(b'{"boxes":[[0,[[[0,0],[4,5]]]]]}'))
    with pytest.raises(errors.DamagedFile, match="_step_000001"):
        standfast.Store(tmp_path).resolve("a@1").state()


@pytest.mark.parametrize("inputs", kept([600, 9000], 600))
def test_the_fuzzer_finds_nothing(inputs, tmp_path):
    report = fuzz_records(seed=1, folder=tmp_path, inputs=inputs)
    assert not report.failures, str(report)
    assert report.accepted >= inputs // 180, str(report)
    assert len(report.refused) >= 5, str(report)

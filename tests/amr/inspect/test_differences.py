"""Where two states differ."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.amr import ScalarFrontend
from standfast.amr.inspect.differences import BlockChange, Layout, Site, TreeDiff, differences
from standfast.amr.inspect.trees import Source, opened
from tests.amr.saved_states import (
    GAUGE,
    SCALAR,
    VECTOR,
    divided,
    empty,
    fill,
    refined,
    save,
    snapshot,
    swap,
)


def compared(before: Source, after: Source) -> TreeDiff:
    with opened(before) as old, opened(after) as new:
        return differences(old, new)


def only(found: TreeDiff) -> BlockChange:
    assert len(found.changed) == 1
    return found.changed[0]


def test_equal_states_do_not_differ(tmp_path):
    path = save(tmp_path / "a.sunc", refined(GAUGE))
    bare = save(tmp_path / "b.sunc", refined(GAUGE), extras=False)
    for after in (path, bare, refined(GAUGE)):
        found = compared(path, after)
        assert (bool(found), found.same, found.same_blocks) == (False, 7, True)
    assert compared(path, path).by_digests == 14  # a field and links of each
    assert compared(path, bare).by_digests == 0
    other = compared(refined(SCALAR), refined(GAUGE))
    assert other
    assert not other.comparable
    assert other.header == {"field_bytes": (8, 32), "link_group": (0, 2)}


@pytest.mark.parametrize("frontend", [SCALAR, VECTOR], ids=["scalar", "vector"])
def test_a_field_is_named_by_block_and_site_with_the_first_and_the_worst(frontend, tmp_path):
    state = refined(frontend)
    field = state[1].storage[6].reshape(16, -1)
    field[3, -1] += 0.25
    field[14, :2] -= 0.5
    for after in (state, save(tmp_path / "a.sunc", state)):
        change = only(compared(refined(frontend), after))
        block = change.before
        assert (block.index, block.level, block.origin) == (6, 1, (0, 4))
        assert (change.what, change.count, change.of, change.by) == ("field", 2, 16, 0.5)
        assert change.first == Site(3, (3, 4), None)
        assert change.worst == Site(14, (2, 7), None)


def test_a_link_is_named_by_site_and_direction():
    state = refined(GAUGE)
    state[0].links[6, 2 * 9 + 1, 1, 0] += 3 + 4j  # type: ignore[attr-defined]
    change = only(compared(refined(GAUGE), state))
    assert (change.what, change.count, change.of) == ("links", 1, 32)
    assert change.worst == Site(9, (1, 6), 1)
    assert change.by == pytest.approx(5)


def test_the_worst_comes_first_and_what_is_no_number_before_all():
    state = refined()
    state[1].storage[1, 0] += 1.0
    state[1].storage[2, 0] += 2.0
    state[1].storage[3, 0] = np.nan
    found = compared(refined(), state)
    assert [change.before.index for change in found.changed] == [3, 2, 1]
    assert found.changed[0].by == math.inf
    assert found.same == 4


@pytest.mark.parametrize(
    ("dtype", "before", "after", "by"),
    [
        ("float64", 0.0, -0.0, 0.0),  # another bit is a difference, even of the same value
        *((dtype, 7, 9, 2.0) for dtype in "float32 int64 uint8 complex64 float16".split()),
    ],
)
def test_fields_of_every_type_are_measured_as_what_they_are(dtype, before, after, by):
    states = []
    for value in (before, after):
        tree, arena = empty(ScalarFrontend(2, 4, SCALAR.topology, np.dtype(dtype)))
        tree.insert_block_with_field((0, 0), 0, arena)
        arena.storage[0, 5] = value
        states.append((tree, arena))
    change = only(compared(*states))
    assert (change.by, change.count, change.worst) == (by, 1, Site(5, (1, 1), None))


def test_equal_no_numbers_are_equal():
    a, b = refined(), refined()
    for _, arena in (a, b):
        arena.storage[3] = np.nan
    assert not compared(a, b)
    b[1].storage[3, 1] = 0.0
    assert only(compared(a, b)).count == 1


def test_blocks_that_only_one_has():
    state = refined()
    state[0].invalidate_block(2)
    state[0].insert_block_with_field((8, 0), 1, state[1])
    found = compared(refined(), state)
    assert [(block.level, block.origin, block.index) for block in found.removed] == [(0, (0, 4), 2)]
    assert [(block.level, block.origin, block.index) for block in found.added] == [(1, (8, 0), 8)]
    assert (found.changed, found.same) == ([], 6)


def test_a_field_that_only_one_has():
    state = refined()
    state[0].field_slots[5] = (1 << 64) - 1
    assert only(compared(refined(), state)).what == "field removed"
    assert only(compared(state, refined())).what == "field added"


CHANGES: dict[str, tuple[Callable[[Any, Any], object], dict[str, int]]] = {
    "order": (lambda tree, arena: tree.reorder(), {"order": 1, "dead": 1}),
    "slots": (lambda tree, arena: (swap(tree.field_slots), swap(arena.storage)), {"slots": 2}),
    "dead": (lambda tree, arena: tree.field_slots.__setitem__(0, (1 << 64) - 1), {"dead": 1}),
    "free": (lambda tree, arena: swap(arena.free_slots), {"free": 1}),
    "stale": (lambda tree, arena: arena.free_slots[8:10].fill(3), {"stale": 2}),
    "unused": (lambda tree, arena: arena.storage[::15, 0].fill(7), {"unused": 2}),
    "dead links": (lambda tree, arena: tree.links[0, 4].fill(7), {"dead_links": 1}),
    "arenas": (lambda tree, arena: arena.grow(), {"arenas": 1, "free": 1}),
    "records": (lambda tree, arena: tree.blocks["padding"][3].fill(1), {"records": 1}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_beside_the_blocks_is_told_apart(name):
    change, expected = CHANGES[name]
    state = refined(GAUGE)
    change(*state)
    found = compared(refined(GAUGE), state)
    assert found
    assert found.same_blocks
    assert found.layout == Layout(**expected)


def test_states_of_other_numbers_of_ranks_are_compared_by_place(tmp_path):
    whole = refined(GAUGE)
    ranks = divided(whole, 3)
    ranks[1][1].storage[0, 5] += 1
    with standfast.Store(tmp_path).run("su2") as run:
        before, after = run.save(1, snapshot(*divided(whole, 2))), run.save(2, snapshot(*ranks))
    found = compared(before, after)
    assert found.header == {"ranks": (2, 3)}
    assert (found.layout, found.same) == (None, 6)
    change = only(found)
    assert (change.after.rank, change.after.index) == (1, 0)
    assert change.before.origin == change.after.origin


def test_slabs_with_equal_digests_are_not_read(tmp_path):
    store = standfast.Store(tmp_path)
    tree, arena = state = empty(SCALAR, 16384)  # 2 MiB: two slabs
    for n in range(3600):
        tree.insert_block_with_field((4 * (n % 60), 4 * (n // 60)), 2, arena)
    fill(state)
    with store.run("heat") as run:
        before = run.save(1, snapshot(state))
        arena.storage[9000] += 1  # in the second slab, of no live block
        after = run.save(2, snapshot(state))
    found = compared(before, after)
    assert found.by_digests == found.same == 3600
    assert found.layout == Layout(unused=1)


def test_equal_digests_say_nothing_of_blocks_in_other_slots(tmp_path):
    tree, arena = state = refined()
    before = save(tmp_path / "a.sunc", state)
    slots = tree.field_slots.copy()
    slots[[6, 7]] = slots[[7, 6]]
    found = compared(before, save(tmp_path / "b.sunc", (tree, arena), field_slots=slots))
    assert {change.before.index for change in found.changed} == {6, 7}
    assert found.by_digests == 5


def test_slots_at_other_places_of_both_files_are_compared(tmp_path):
    tree, arena = empty(SCALAR, 300)
    other, other_arena = empty(SCALAR, 300)
    for n in range(200):
        tree.insert_block_with_field((4 * n % 240, 4 * (4 * n // 240)), 0, arena)
    for n in reversed(range(200)):
        other.insert_block_with_field((4 * n % 240, 4 * (4 * n // 240)), 0, other_arena)
    fill((tree, arena))
    fill((other, other_arena))
    other_arena.storage[7, 7] += 1  # of block 192
    a, b = save(tmp_path / "a.sunc", (tree, arena)), save(tmp_path / "b.sunc", (other, other_arena))
    found = compared(a, b)
    assert (only(found).before.index, only(found).after.index) == (192, 7)
    assert found.layout is not None
    assert (found.layout.order, found.layout.slots) == (1, 200)

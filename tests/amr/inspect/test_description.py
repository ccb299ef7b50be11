"""What is told of a saved tree."""

from typing import Any

import numpy as np
import pytest

import standfast
from standfast.amr.inspect.description import check, describe, group_name, scan
from standfast.amr.inspect.trees import opened
from standfast.errors import BadOption, BadRange
from tests.amr.saved_states import GAUGE, SCALAR, divided, empty, refined, save
from tests.kit.stores import flip


def described(*states: Any) -> Any:
    with opened(*states) as found:
        return describe(*found.trees)


def test_levels_count_live_and_dead_blocks_and_share_the_volume(tmp_path):
    tree, arena = refined()
    tree.insert_block((8, 8), 1)  # without a field
    coarse, fine = described((tree, arena)).levels
    assert (coarse.level, coarse.spacing, coarse.live, coarse.dead) == (0, 1.0, 3, 1)
    assert (fine.level, fine.spacing, fine.live, fine.dead) == (1, 0.5, 5, 0)
    assert (coarse.sites, fine.sites, fine.with_field) == (48, 80, 4)
    assert coarse.share == pytest.approx(48 / 68)
    nothing = described(save(tmp_path / "empty.sunc", empty(SCALAR, 0)))
    assert (nothing.blocks, nothing.levels, nothing.slots.total, nothing.problems) == (0, (), 0, ())


def test_links_of_live_and_of_dead_blocks_are_counted(tmp_path):
    links = described(save(tmp_path / "su2.sunc", refined(GAUGE))).links
    assert (links.name, links.per_block, links.live, links.dead) == ("SU(2)", 32, 224, 32)
    assert [group_name(n) for n in (1, 2, 3, 4)] == ["U(1)", "SU(2)", "SU(3)", "4×4"]


def test_each_slot_is_counted_once():
    tree, arena = refined()  # block 0 is dead and names slot 0
    before = described((tree, arena)).slots
    assert (before.dead, before.free, before.next[0]) == (1, 8, 8)
    arena.free(0)
    freed = described((tree, arena)).slots
    assert (freed.dead, freed.free, freed.next[:2]) == (0, 9, (0, 8))
    assert arena.alloc() == 0
    tree.field_slots[4] = 0  # slot 4 was its own, and no block names it now
    slots = described((tree, arena)).slots
    assert (slots.total, slots.taken, slots.free, slots.dead, slots.lost) == (16, 7, 8, 0, 1)


def test_the_ranks_of_a_state_are_told_in_sum():
    alone, together = described(refined()), described(*divided(refined(), 3))
    assert [(level.level, level.live, level.share) for level in together.levels] == [
        (level.level, level.live, level.share) for level in alone.levels
    ]
    assert (together.slots.total, together.slots.taken, together.slots.next) == (48, 7, ())


def test_an_unsound_tree_is_described_with_what_is_wrong(tmp_path):
    state, wild = refined(), np.full(8, (1 << 64) - 2, np.uint64)
    slots = state[0].field_slots.copy()
    slots[5] = slots[6]
    with opened(save(tmp_path / "bad.sunc", state, field_slots=slots)) as saved:
        found = describe(*saved.trees)
        assert (found.live, len(found.problems)) == (7, 1)
        with pytest.raises(BadRange, match=r"bad\.sunc.*field_slots.*5.*6"):
            check(saved.trees[0])
    path = save(tmp_path / "wild.sunc", state, field_slots=wild, free_slots=np.tile(wild, 2))
    found = described(path)
    assert (found.slots.taken, found.slots.free, found.slots.lost) == (0, 0, 16)
    assert found.problems


def test_only_the_small_sections_are_read(tmp_path):
    path = save(tmp_path / "tree.sunc", refined())
    flip(path, 92 + 8 * 40 + 8 * 8)  # the first byte of the storage
    assert not described(path).problems
    standfast.save(tmp_path / "weights.safetensors", {"weight": np.ones(3)})
    with pytest.raises(BadOption, match=r"weights\.safetensors"):
        described(tmp_path / "weights.safetensors")


def test_a_scan_tells_the_range_of_live_fields_alone():
    tree, arena = refined()
    arena.storage[0] = 1e9  # of a dead block
    arena.storage[15] = -1e9  # free
    arena.storage[1, 3] = np.nan
    with opened((tree, arena)) as state:
        found = scan(*state.trees)
    live = arena.storage[1:4]
    assert found.levels[0].not_finite == 1
    assert found.levels[0].least == np.nanmin(live)
    assert found.levels[0].greatest == np.nanmax(live)
    assert found.levels[1].greatest == arena.storage[4:8].max()
    assert found.unitarity is None


def test_a_scan_tells_how_unitary_links_are():
    tree, arena = refined(GAUGE)
    with opened((tree, arena)) as state:
        assert scan(*state.trees).unitarity < 1e-14
        assert scan(*state.trees).of_moduli
    tree.links[3, 9] *= 2
    with opened((tree, arena)) as state:
        assert scan(*state.trees).unitarity > 2.9

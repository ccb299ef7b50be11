"""What is told of a saved tree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from standfast.amr.inspect.description import check, describe, group_name, scan
from standfast.amr.inspect.trees import opened
from standfast.errors import BadOption, BadRange
from tests.amr.saved_states import GAUGE, SCALAR, divided, empty, refined, save


def test_levels_count_live_and_dead_blocks_and_share_the_volume() -> None:
    with opened(refined()) as state:
        coarse, fine = describe(*state.trees).levels
    assert (coarse.level, coarse.spacing, coarse.live, coarse.dead) == (0, 1.0, 3, 1)
    assert (fine.level, fine.spacing, fine.live, fine.dead) == (1, 0.5, 4, 0)
    assert (coarse.sites, fine.sites) == (48, 64)
    assert (coarse.share, fine.share) == (0.75, 0.25)


def test_a_block_without_a_field_is_not_counted_as_one_with() -> None:
    tree, arena = refined()
    tree.insert_block((8, 8), 1)
    with opened((tree, arena)) as state:
        fine = describe(*state.trees).levels[1]
    assert (fine.live, fine.with_field) == (5, 4)


def test_each_slot_is_counted_once() -> None:
    tree, arena = refined()  # block 0 is dead and names slot 0
    arena.free(0)
    assert arena.alloc() == 0
    tree.field_slots[4] = 0  # slot 4 was its own, and nobody names it now
    with opened((tree, arena)) as state:
        slots = describe(*state.trees).slots
    assert (slots.total, slots.taken, slots.free, slots.dead, slots.lost) == (16, 7, 8, 0, 1)


def test_a_slot_of_a_dead_block_is_neither_taken_nor_free_until_it_is_freed() -> None:
    tree, arena = refined()
    with opened((tree, arena)) as state:
        before = describe(*state.trees).slots
    arena.free(0)
    with opened((tree, arena)) as state:
        after = describe(*state.trees).slots
    assert (before.dead, before.free, before.next[0]) == (1, 8, 8)
    assert (after.dead, after.free, after.next[:2]) == (0, 9, (0, 8))


def test_the_ranks_of_a_state_are_told_in_sum() -> None:
    whole = refined()
    with opened(whole) as one, opened(*divided(whole, 3)) as several:
        alone, together = describe(*one.trees), describe(*several.trees)
    assert [(level.level, level.live, level.share) for level in together.levels] == [
        (level.level, level.live, level.share) for level in alone.levels
    ]
    assert (together.slots.total, together.slots.taken, together.slots.next) == (48, 7, ())


def test_links_of_live_and_of_dead_blocks(tmp_path: Path) -> None:
    path = save(tmp_path / "su2.sunc", refined(GAUGE))
    with opened(path) as state:
        links = describe(*state.trees).links
    assert links is not None
    assert (links.name, links.per_block, links.live, links.dead) == ("SU(2)", 32, 224, 32)


def test_groups_have_the_names_that_physicists_use() -> None:
    assert [group_name(n) for n in (1, 2, 3, 4)] == ["U(1)", "SU(2)", "SU(3)", "4×4"]


def test_an_unsound_tree_is_described_with_what_is_wrong(tmp_path: Path) -> None:
    state = refined()
    slots = state[0].field_slots.copy()
    slots[5] = slots[6]
    path = save(tmp_path / "bad.sunc", state, field_slots=slots)
    with opened(path) as saved:
        found = describe(*saved.trees)
        assert found.live == 7
        assert len(found.problems) == 1
        assert "blocks 5 and 6" in found.problems[0]
        with pytest.raises(BadRange, match=r"bad\.sunc.*field_slots.*5.*6"):
            check(saved.trees[0])


def test_words_of_any_value_are_described_and_not_followed(tmp_path: Path) -> None:
    state = refined()
    wild = np.full(8, (1 << 64) - 2, np.uint64)
    path = save(tmp_path / "wild.sunc", state, field_slots=wild, free_slots=np.tile(wild, 2))
    with opened(path) as saved:
        found = describe(*saved.trees)
    assert (found.slots.taken, found.slots.free, found.slots.lost) == (0, 0, 16)
    assert found.problems


def test_only_the_small_sections_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "tree.sunc", refined())
    data = bytearray(path.read_bytes())
    data[92 + 8 * 40 + 8 * 8] ^= 1  # the first byte of the storage
    path.write_bytes(data)
    with opened(path) as state:
        assert not describe(*state.trees).problems


def test_a_scan_tells_the_range_of_live_fields_alone() -> None:
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


def test_a_scan_tells_how_unitary_links_are() -> None:
    tree, arena = refined(GAUGE)
    with opened((tree, arena)) as state:
        assert scan(*state.trees).unitarity < 1e-14
        assert scan(*state.trees).of_moduli
    tree.links[3, 9] *= 2
    with opened((tree, arena)) as state:
        assert scan(*state.trees).unitarity > 2.9


def test_a_tree_without_blocks_has_no_levels(tmp_path: Path) -> None:
    path = save(tmp_path / "empty.sunc", empty(SCALAR, 0))
    with opened(path) as state:
        found = describe(*state.trees)
    assert (found.blocks, found.levels, found.slots.total, found.problems) == (0, (), 0, ())


def test_a_file_of_another_format_holds_no_tree(tmp_path: Path) -> None:
    import standfast

    path = tmp_path / "weights.safetensors"
    standfast.save(path, {"weight": np.ones(3)})
    with pytest.raises(BadOption, match=r"weights\.safetensors"), opened(path):
        pass

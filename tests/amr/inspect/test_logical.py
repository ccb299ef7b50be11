"""The digest that does not depend on the partition, and what a tree is described as."""

import struct
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

import standfast
from standfast import errors
from standfast.amr import FieldArena, GaugeFrontend, GaugeTree, OpenTopology
from standfast.amr.inspect.description import check, describe, group_name, scan
from standfast.amr.inspect.logical import digest_of, logical_digest
from standfast.amr.inspect.trees import opened
from standfast.errors import BadOption, BadRange
from tests.amr.saved_states import (
    GAUGE,
    SCALAR,
    VECTOR,
    State,
    divided,
    empty,
    refined,
    save,
    snapshot,
    swap,
)
from tests.kit.stores import flip

FRONTENDS = pytest.mark.parametrize(
    "frontend", [SCALAR, VECTOR, GAUGE], ids=["scalar", "vector", "gauge"]
)


def by_hand(state: State) -> str:
    """The digest as its page has it, written down once more."""
    tree, arena = state
    frontend = tree.frontend
    links = getattr(tree, "links", None)
    group = 0 if links is None else links.shape[-1]
    entries = []
    for index in tree.live.tolist():
        record = tree.blocks[index]
        place = [int(record["level"]), *record["origin"].tolist()]
        entry = struct.pack("<3Qd", *place, float(record["spacing"]))
        slot = int(tree.field_slots[index])
        has_field = slot < arena.max_blocks
        entry += blake3(arena.storage[slot].tobytes()).digest() if has_field else bytes(32)
        entry += bytes(32) if links is None else blake3(links[index].tobytes()).digest()
        entries.append((place, entry))
    head = struct.pack("<4QdQ", 2, 4, frontend.field_bytes, group, 1.0, len(entries))
    text = b"".join(entry for _, entry in sorted(entries))
    return blake3(b"standfast logical 1\n" + head + text).hexdigest()


@FRONTENDS
def test_the_digest_is_the_one_of_its_page(frontend, tmp_path):
    state = refined(frontend)
    state[0].insert_block((8, 8), 1)  # without a field
    assert logical_digest(save(tmp_path / "a.sunc", state)) == by_hand(state)


@FRONTENDS
def test_files_snapshots_and_memory_have_one_digest_however_they_are_divided(frontend, tmp_path):
    whole = refined(frontend)
    expected = logical_digest(whole)
    assert logical_digest(save(tmp_path / "bare.sunc", whole, extras=False)) == expected
    with standfast.Store(tmp_path / "store").run("heat") as run:
        for count in (1, 2, 3):
            ranks = divided(whole, count)
            files = [save(tmp_path / f"{count}_{n}.sunc", r) for n, r in enumerate(ranks)]
            assert logical_digest(*files) == expected
            assert logical_digest(*reversed(files)) == expected
            assert logical_digest(run.save(count, snapshot(*ranks))) == expected


def test_slots_order_dead_blocks_and_free_lists_do_not_count():
    tree, arena = state = refined(GAUGE)
    expected = logical_digest(state)
    arena.storage[0] = 7.0  # that of the dead block
    arena.storage[15] = 7.0  # free
    tree.links[0] = 7.0
    arena.free_slots[15] = 3
    assert logical_digest(state) == expected
    tree.reorder()
    assert logical_digest(state) == expected
    arena.defragment(tree)
    assert logical_digest(state) == expected


def in_another_unit(tree: Any) -> None:
    tree.base_spacing *= 2
    tree.blocks["spacing"] *= 2


CHANGES: dict[str, Any] = {
    "field": lambda tree, arena: arena.storage[7, 3].__iadd__(1e-16j),
    "link": lambda tree, arena: tree.links[7, 31, 1].__imul__(-1),
    "slots": lambda tree, arena: swap(tree.field_slots),
    "no field": lambda tree, arena: tree.field_slots[7:].fill((1 << 64) - 1),
    "no block": lambda tree, arena: tree.invalidate_block(7),
    "unit of length": lambda tree, arena: in_another_unit(tree),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_bit_of_a_live_block_counts(name):
    state = refined(GAUGE)
    before = logical_digest(state)
    CHANGES[name](*state)
    assert logical_digest(state) != before


def test_a_block_of_two_ranks_counts_once_if_it_is_the_same_in_both():
    whole, again = refined(), refined()
    assert logical_digest(whole, again) == logical_digest(whole)
    again[1].storage[7, 0] += 1
    with pytest.raises(errors.RanksDisagree, match=r"\(4,\s4\)"):
        logical_digest(whole, again)
    with pytest.raises(errors.IncompatibleCheckpoint, match="field_bytes"):
        logical_digest(whole, refined(GAUGE))


def test_what_is_read_is_verified_and_the_rest_when_it_is_asked_for(tmp_path):
    state = refined()
    path = save(tmp_path / "tree.sunc", state)
    flip(path, 92 + 8 * 48)  # the first byte of the storage
    with pytest.raises(errors.DigestMismatch, match="storage"):
        logical_digest(path)
    state[0].field_slots[6] = 99
    with pytest.raises(errors.BadRange, match=r"bad\.sunc.*6"):
        logical_digest(save(tmp_path / "bad.sunc", state, extras=False))
    tree, arena = empty()
    tree.insert_block((0, 0), 0)
    flip(save(path, (tree, arena)), 92 + 48)
    with opened(path) as found:
        assert digest_of(found) == logical_digest((tree, arena))
        with pytest.raises(errors.DigestMismatch, match="storage"):
            found.check_rest()


def test_a_checkpoint_that_is_no_snapshot_is_refused(run):
    checkpoint = run.save(1, {"weight": np.ones(3)})
    for states in ([checkpoint], [checkpoint, checkpoint]):
        with pytest.raises(errors.BadOption):
            logical_digest(*states)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("simulation", "ranks", 2),
        ("rank0", "storage", [np.zeros((3, 5))]),
        ("rank0", "header", snapshot(refined())["rank0"]["header"] | {"bits_per_dim": 60}),
    ],
    ids=["ranks", "storage", "header"],
)
def test_a_snapshot_that_is_not_what_it_says_is_damaged(part, key, value, run):
    saved = snapshot(refined(GAUGE))
    saved[part][key] = value
    with pytest.raises(errors.BadField, match=key):
        logical_digest(run.save(1, saved))


def test_slots_are_hashed_across_chunks_of_the_file(tmp_path):
    # 144 · 2 · 64 · 64 bytes of links a block: no whole number of them fills a chunk of 16 MiB.
    frontend = GaugeFrontend(3, 1, 2, 64, OpenTopology(2, (64.0, 64.0)))
    tree, arena = GaugeTree(frontend, 1.0, 6, 2), FieldArena(frontend, 2)
    for n in range(17):
        tree.insert_block((64 * n, 0), 0)
    tree.links[:] = np.arange(tree.links.size).reshape(tree.links.shape)
    expected = logical_digest((tree, arena))
    for extras in (True, False):
        assert logical_digest(save(tmp_path / "su3.sunc", (tree, arena), extras)) == expected


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

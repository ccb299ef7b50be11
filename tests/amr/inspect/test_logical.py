"""The digest that does not depend on the partition."""

import struct
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

import standfast
from standfast import errors
from standfast.amr import FieldArena, GaugeFrontend, GaugeTree, OpenTopology
from standfast.amr.inspect.logical import digest_of, logical_digest
from standfast.amr.inspect.trees import opened
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

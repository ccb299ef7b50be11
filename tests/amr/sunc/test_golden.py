"""The files of the first implementation: the same state gives the same bytes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from standfast.amr import INVALID, GaugeTree, TreeCheckpoint
from tests.amr.tree_states import SCALAR, U1, golden, golden_scalar, golden_u1, saved


def test_the_scalar_state_built_by_operations_gives_the_golden_bytes() -> None:
    assert saved(*golden_scalar()) == golden("sunc_scalar_2d")


def test_the_gauge_state_built_by_operations_gives_the_golden_bytes() -> None:
    assert saved(*golden_u1()) == golden("sunc_u1_2d")


def test_a_file_on_disk_has_the_golden_bytes_too(tmp_path: Path) -> None:
    path = tmp_path / "state.sunc"
    TreeCheckpoint(SCALAR).write_to_file(*golden_scalar(), path)
    assert path.read_bytes() == golden("sunc_scalar_2d")
    tree, arena = golden_u1()
    tree.write_checkpoint_to_file(arena, path)
    assert path.read_bytes() == golden("sunc_u1_2d")


def test_the_golden_scalar_file_is_read_as_the_state_that_it_tells() -> None:
    state = TreeCheckpoint(SCALAR).read(io.BytesIO(golden("sunc_scalar_2d")))
    tree, arena = state.tree, state.arena
    assert (tree.base_spacing, tree.bits_per_dim, tree.max_level) == (0.5, 4, 6)
    assert tree.blocks["origin"].tolist() == [[0, 0], [4, 0], [8, 0]]
    assert tree.blocks["level"].tolist() == [0, 1, 1]
    assert tree.blocks["block_index"].tolist() == [0, INVALID, 2]
    assert tree.live.tolist() == [0, 2]
    assert tree.field_slots.tolist() == [0, 1, 2]
    assert arena.max_blocks == 8
    assert arena.free_slots[: arena.free_count].tolist() == [7, 6, 5, 4, 3]
    for block in range(3):
        expected = (1000 * block + np.arange(16)) * 0.1
        assert arena.storage[block].tobytes() == expected.tobytes()
    assert arena.storage[3].tolist() == [0.25 * i for i in range(16)]
    assert arena.alloc() == 3


def test_the_golden_gauge_file_comes_back_the_same() -> None:
    data = golden("sunc_u1_2d")
    state = GaugeTree.read_checkpoint(io.BytesIO(data), frontend=U1)
    assert state.tree.links.shape == (2, 32, 1, 1)
    assert state.tree.links.tobytes() == data[-1024:]
    assert state.arena.storage[1, 3, 0] == 3 - 0.5j
    assert saved(state.tree, state.arena) == data

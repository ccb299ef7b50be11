"""The files of the first implementation: the same state gives the same bytes."""

from __future__ import annotations

import io

import numpy as np
import pytest

from standfast.amr import INVALID, GaugeTree, ScalarFrontend, TreeCheckpoint
from tests import GOLDEN
from tests.amr.tree_states import (
    MIXED,
    SCALAR,
    U1,
    VECTOR,
    golden,
    golden_channel,
    golden_scalar,
    golden_u1,
    saved,
)


def test_the_scalar_state_built_by_operations_gives_the_golden_bytes() -> None:
    assert saved(*golden_scalar()) == golden("sunc_scalar_2d")


def test_the_gauge_state_built_by_operations_gives_the_golden_bytes() -> None:
    assert saved(*golden_u1()) == golden("sunc_u1_2d")


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


@pytest.mark.parametrize(
    ("name", "frontend", "refine"),
    [("sunc_mixed_2d", MIXED, False), ("sunc_vector_2d", VECTOR, True)],
)
def test_a_box_of_mixed_borders_and_a_vector_at_each_site_give_the_golden_bytes(
    name: str, frontend: ScalarFrontend, refine: bool
) -> None:
    """The seed: "Capture AMRTree structure, FieldArena storage, and (optionally) gauge links
    bit-for-bit", and "Payload ... depends on `FieldType`": in sunc_vector_2d it is `[3]f64`.
    """
    tree, arena = golden_channel(frontend, refine)
    assert saved(tree, arena) == golden(name)
    state = TreeCheckpoint(frontend).read(io.BytesIO(golden(name)))
    assert state.arena.storage.shape == (16, 16, *frontend.field_shape)
    assert saved(state.tree, state.arena) == golden(name)


def test_ghosts_of_a_channel_are_those_of_the_first_implementation() -> None:
    """The seed: "Store checkpoints after `AMRTree.apply` completes and ghosts are consistent".

    The box wraps in x and has walls in y. The original leaves ghosts beyond a wall as they were,
    here zero.
    """
    state = TreeCheckpoint(MIXED).read(io.BytesIO(golden("sunc_mixed_2d")))
    ghosts = state.tree.fill_ghosts(state.arena)
    assert ghosts.layers.tobytes() == (GOLDEN / "sunc_mixed_2d.ghosts").read_bytes()
    assert ghosts.valid.tolist() == [
        [True, True, True, False],
        [True, True, True, False],
        [True, True, False, True],
        [True, True, False, True],
    ]


def test_ghosts_of_vectors_are_those_of_the_first_implementation_between_equal_levels() -> None:
    state = TreeCheckpoint(VECTOR).read(io.BytesIO(golden("sunc_vector_2d")))
    ghosts = state.tree.fill_ghosts(state.arena)
    data = (GOLDEN / "sunc_vector_2d.ghosts").read_bytes()
    theirs = np.frombuffer(data).reshape(ghosts.layers.shape)
    levels = state.tree.blocks["level"][state.tree.live]
    equal = [(0, 0), (0, 1), (0, 2), (3, 0), (3, 2), (4, 1), (4, 2), (5, 0), (5, 3), (6, 1), (6, 3)]
    assert levels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    for row, face in equal:
        assert ghosts.layers[row, face].tobytes() == theirs[row, face].tobytes()

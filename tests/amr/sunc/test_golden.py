"""The files of the first implementation: the same state gives the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from standfast.amr import INVALID, TreeCheckpoint
from tests import GOLDEN
from tests.amr.tree_states import (
    MIXED,
    SCALAR,
    VECTOR,
    golden,
    golden_channel,
    golden_scalar,
    golden_u1,
    loaded,
    saved,
)

STATES: dict[str, Callable[[], Any]] = {
    "sunc_scalar_2d": golden_scalar,
    "sunc_u1_2d": golden_u1,
    "sunc_mixed_2d": lambda: golden_channel(MIXED, False),
    "sunc_vector_2d": lambda: golden_channel(VECTOR, True),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_built_by_operations_gives_the_golden_bytes_and_comes_back(name: str) -> None:
    tree, arena = STATES[name]()
    assert saved(tree, arena) == golden(name)
    state = loaded(golden(name), tree)
    assert state.arena.storage.shape == arena.storage.shape
    assert saved(state.tree, state.arena) == golden(name)


def test_the_golden_scalar_file_is_read_as_the_state_that_it_tells() -> None:
    state = TreeCheckpoint(SCALAR).read(io.BytesIO(golden("sunc_scalar_2d")))
    tree, arena = state.tree, state.arena
    assert (tree.base_spacing, tree.bits_per_dim, tree.max_level) == (0.5, 4, 6)
    assert tree.blocks["origin"].tolist() == [[0, 0], [4, 0], [8, 0]]
    assert tree.blocks["level"].tolist() == [0, 1, 1]
    assert tree.blocks["block_index"].tolist() == [0, INVALID, 2]
    assert (tree.live.tolist(), tree.field_slots.tolist()) == ([0, 2], [0, 1, 2])
    assert arena.free_slots[: arena.free_count].tolist() == [7, 6, 5, 4, 3]
    for block in range(3):
        expected = (1000 * block + np.arange(16)) * 0.1
        assert arena.storage[block].tobytes() == expected.tobytes()
    assert arena.storage[3].tolist() == [0.25 * i for i in range(16)]
    assert arena.alloc() == 3


def test_ghosts_of_a_channel_are_those_of_the_first_implementation() -> None:
    """The original leaves ghosts beyond a wall as they were, here zero."""
    state = TreeCheckpoint(MIXED).read(io.BytesIO(golden("sunc_mixed_2d")))
    ghosts = state.tree.fill_ghosts(state.arena)
    assert ghosts.layers.tobytes() == (GOLDEN / "sunc_mixed_2d.ghosts").read_bytes()
    assert (
        ghosts.valid.tolist() == [[True, True, True, False]] * 2 + [[True, True, False, True]] * 2
    )


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

"""Slots and links as items, wherever they lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast.amr.inspect.trees import opened
from tests.amr.saved_states import SCALAR, State, empty, save, snapshot

SLOTS = 1 << 14
"""2 MiB of storage: two slabs."""


@pytest.fixture(scope="module")
def state() -> State:
    tree, arena = empty(SCALAR, SLOTS)
    arena.storage[:] = np.arange(arena.storage.size).reshape(arena.storage.shape)
    return tree, arena


def test_items_are_read_within_and_across_slabs(state: State, tmp_path: Path) -> None:
    with standfast.Store(tmp_path).run("heat") as run:
        checkpoint = run.save(1, snapshot(state))
    expected = state[1].storage.view(np.uint8)
    with opened(checkpoint) as saved:
        fields = saved.trees[0].fields
        assert [window[:2] for window in fields.windows] == [(0, 8192), (8192, SLOTS)]
        assert fields.count == SLOTS
        for start, stop in ((0, 10), (8000, 8400), (8192, 8193), (0, SLOTS), (5, 5)):
            assert np.array_equal(fields.read(start, stop), expected[start:stop])


@pytest.mark.parametrize("extras", [True, False], ids=["digests", "bare"])
def test_items_of_a_file_have_digests_if_it_has_some(
    extras: bool, state: State, tmp_path: Path
) -> None:
    expected = state[1].storage.view(np.uint8)
    with opened(save(tmp_path / "a.sunc", state, extras)) as saved:
        fields = saved.trees[0].fields
        (window,) = fields.windows
        assert window[:2] == (0, SLOTS)
        assert (window.digest is not None) == extras
        assert np.array_equal(fields.read(77, 99), expected[77:99])

"""Links stay with their blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from standfast.amr import GaugeTree, LinkExchangeSpec
from standfast.errors import BadOption
from tests.amr.tree_states import SU2, U1, worn


def test_links_are_identities_until_they_are_set() -> None:
    tree = GaugeTree(SU2, 1.0, 4, 2)
    assert tree.links.shape == (0, 32, 2, 2)
    for x in range(9):
        tree.insert_block((4 * x, 0), 0)
    assert tree.links.shape == (9, 32, 2, 2)
    assert tree.links.tobytes() == np.tile(np.eye(2, dtype=complex), (9, 32, 1, 1)).tobytes()


@pytest.mark.parametrize("options", [{"depth": -1}, {"depth": 1.0}, {"corners": 1}])
def test_a_link_exchange_is_a_number_of_layers_with_or_without_corners(options: Any) -> None:
    with pytest.raises(BadOption):
        LinkExchangeSpec(**options)
    tree = GaugeTree(U1, 1.0, 4, 2)
    assert tree.link_exchange_spec == LinkExchangeSpec(depth=1, corners=True)


def test_links_follow_a_reorder() -> None:
    tree, arena = worn("su2")
    before = {tuple(tree.blocks[i]["origin"]): tree.links[i].tobytes() for i in tree.live}
    tree.reorder()
    assert len(tree.links) == len(tree) == len(before)
    for i in range(len(tree)):
        assert tree.links[i].tobytes() == before[tuple(tree.blocks[i]["origin"])]
    block = tree.insert_block_with_field((20, 20), 0, arena)
    assert (tree.links[block] == np.eye(2)).all()  # not what lay there before


def test_a_restored_tree_without_links_has_identities() -> None:
    tree, _ = worn("su2")
    again = GaugeTree.restored(SU2, 0.5, 6, 4, tree.blocks.copy(), tree.field_slots.copy())
    assert again.links.shape == tree.links.shape
    assert (again.links == np.eye(2)).all()

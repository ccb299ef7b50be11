"""What a state must satisfy: each violation is an error of its own."""

from typing import Any

import numpy as np
import pytest

from standfast.amr import INVALID
from standfast.amr.mesh.checks import check_state
from standfast.errors import BadField, BadRange, DuplicateKey
from standfast.formats.sunc.file import block_dtype
from tests.amr.tree_states import SCALAR


def check(name: str = "max_level", at: Any = None, value: Any = 4) -> None:
    """Check three live blocks and, in the middle, a dead one; with one entry that is another."""
    blocks = np.zeros(4, block_dtype(2))
    blocks["origin"] = [(0, 0), (4, 0), (8, 4), (0, 4)]
    blocks["level"] = [0, 3, 1, 0]
    blocks["spacing"] = [0.5, 0.0625, 0.25, 0.5]
    blocks["block_index"] = [0, INVALID, 2, 3]
    state: dict[str, Any] = {
        "base_spacing": 0.5,
        "bits_per_dim": 6,
        "max_level": 4,
        "blocks": blocks,
        "field_slots": np.array([0, 4, 2, INVALID], np.uint64),
        "free_slots": np.array([4, 3, 1, 1, 77], np.uint64),
        "free_count": 3,
        "max_blocks": 5,
    }
    if at is None:
        state[name] = value
    elif isinstance(at, slice):
        state[name] = state[name][at]
    else:
        (state[name] if name in state else blocks[name])[at] = value
    check_state(SCALAR, **state)


LEGAL: dict[str, tuple[str, Any, Any]] = {
    "all is sound": ("max_level", None, 4),
    "a dead block names a free slot": ("field_slots", 1, 3),
    "a dead block names a slot in use": ("field_slots", 1, 0),
    "a dead block names none": ("field_slots", 1, INVALID),
    "a slot is neither named nor free": ("free_count", None, 1),
    "stale words say anything": ("free_slots", 3, INVALID),
    "a dead block lies where a live one is": ("origin", 1, (0, 0)),
    "a dead block has any level": ("level", 1, 255),
    "a dead block has any spacing": ("spacing", 1, np.nan),
    "levels above the highest": ("max_level", None, 0),
    "an origin between blocks": ("origin", 0, (5, 1)),
    "an origin too far out": ("origin", 0, (2**63, 2**64 - 1)),
    "any padding": ("padding", 0, 255),
}


@pytest.mark.parametrize("name", LEGAL)
def test_it_is_legal_that(name):
    check(*LEGAL[name])


WRONG: dict[str, tuple[str, Any, Any, Any, str]] = {
    "no spacing": ("base_spacing", None, 0.0, BadField, "base_spacing"),
    "a negative spacing": ("base_spacing", None, -0.5, BadField, "base_spacing"),
    "too many bits": ("max_level", None, 27, BadField, "32"),
    "too few slots": ("field_slots", slice(3), None, BadField, "field_slots"),
    "too few words": ("free_slots", slice(4), None, BadField, "4.*3"),
    "more free than there are": ("free_count", None, 6, BadField, "5.*6"),
    "another's index": ("block_index", 2, 3, BadField, "'blocks'.*2"),
    "a level too high for its key": ("level", 3, 27, BadField, "3.*level"),
    "another level's spacing": ("spacing", 2, 0.5, BadField, "2.*spacing"),
    "a spacing that is no number": ("spacing", 0, np.nan, BadField, "0.*spacing"),
    "two blocks at one place": ("origin", 3, (0, 0), DuplicateKey, "0.*3"),
    # The bit that tells them apart is dropped.
    "two blocks of one key": ("origin", 3, (4 * 64, 0), DuplicateKey, "256"),
    "a slot that is none": ("field_slots", 2, 5, BadRange, "'field_slots'.*2"),
    "a dead block's slot": ("field_slots", 1, 2**63, BadRange, "'field_slots'.*1"),
    "a free slot that is none": ("free_slots", 1, INVALID, BadRange, "'free_slots'.*1"),
    "a slot that is free twice": ("free_slots", 0, 1, BadRange, "'free_slots'.*0.*2"),
    "a slot of two blocks": ("field_slots", 3, 2, BadRange, "'field_slots'.*2.*3"),
    "a slot in use and free": ("field_slots", 2, 3, BadRange, "'field_slots'.*2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_damage_if_there_is(name):
    *change, error, told = WRONG[name]
    with pytest.raises(error, match=told) as caught:
        check(*change)
    assert type(caught.value) is error

"""What a state must satisfy: each violation is an error of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from standfast.amr import INVALID
from standfast.amr.mesh.checks import check_state, header_problems, state_problems
from standfast.amr.mesh.morton import Words
from standfast.errors import BadField, BadRange, DamagedFile, DuplicateKey
from standfast.formats.sunc.file import block_dtype
from tests.amr.tree_states import SCALAR, worn

Array = np.ndarray[Any, Any]


def _blocks() -> Array:
    """Three live blocks and, in the middle, a dead one."""
    blocks = np.zeros(4, block_dtype(2))
    blocks["origin"] = [(0, 0), (4, 0), (8, 4), (0, 4)]
    blocks["level"] = [0, 3, 1, 0]
    blocks["spacing"] = [0.5, 0.0625, 0.25, 0.5]
    blocks["block_index"] = [0, INVALID, 2, 3]
    return blocks


@dataclass
class State:
    base_spacing: float = 0.5
    bits_per_dim: int = 6
    max_level: int = 4
    blocks: Array = field(default_factory=_blocks)
    field_slots: Words = field(default_factory=lambda: np.array([0, 4, 2, INVALID], np.uint64))
    free_slots: Words = field(default_factory=lambda: np.array([4, 3, 1, 1, 77], np.uint64))
    free_count: int = 3
    max_blocks: int = 5

    def check(self) -> None:
        check_state(SCALAR, **vars(self))

    def problems(self) -> list[DamagedFile]:
        """All that is wrong with it; `check` raises the first."""
        numbers = {name: value for name, value in vars(self).items() if name != "max_level"}
        header = header_problems(2, self.base_spacing, self.bits_per_dim, self.max_level)
        self.check()
        return [*header, *state_problems(4, **numbers)]


def test_a_sound_state_passes() -> None:
    assert State().problems() == []


def test_the_state_of_a_worn_tree_passes() -> None:
    tree, arena = worn()
    for action in (lambda: None, tree.reorder, lambda: arena.defragment(tree)):
        action()
        state = State(
            *(tree.base_spacing, tree.bits_per_dim, tree.max_level),
            *(tree.blocks, tree.field_slots, arena.free_slots),
            *(arena.free_count, arena.max_blocks),
        )
        assert state.problems() == []


LEGAL: dict[str, Callable[[State], Any]] = {
    "a dead block names a free slot": lambda s: s.field_slots.__setitem__(1, 3),
    "a dead block names a slot in use": lambda s: s.field_slots.__setitem__(1, 0),
    "a dead block names none": lambda s: s.field_slots.__setitem__(1, INVALID),
    "a slot is neither named nor free": lambda s: setattr(s, "free_count", 1),
    "stale words say anything": lambda s: s.free_slots.__setitem__(3, INVALID),
    "a dead block lies where a live one is": lambda s: s.blocks["origin"].__setitem__(1, (0, 0)),
    "a dead block has any level": lambda s: s.blocks["level"].__setitem__(1, 255),
    "a dead block has any spacing": lambda s: s.blocks["spacing"].__setitem__(1, np.nan),
    "levels above the highest": lambda s: setattr(s, "max_level", 0),
    "an origin between blocks": lambda s: s.blocks["origin"].__setitem__(0, (5, 1)),
    "an origin too far out": lambda s: s.blocks["origin"].__setitem__(0, (2**63, 2**64 - 1)),
    "any padding": lambda s: s.blocks["padding"].__setitem__(0, 255),
}


@pytest.mark.parametrize("name", LEGAL)
def test_it_is_legal_that(name: str) -> None:
    state = State()
    LEGAL[name](state)
    assert state.problems() == []


def _two_of_one_key(state: State) -> None:
    state.blocks["origin"][3] = (4 * 64, 0)  # the bit that tells them apart is dropped


WRONG: dict[str, tuple[Callable[[State], Any], Any, str]] = {
    "no spacing": (
        lambda s: setattr(s, "base_spacing", 0.0),
        BadField,
        "base_spacing: expected a finite number above 0, found 0.0",
    ),
    "a negative spacing": (
        lambda s: setattr(s, "base_spacing", -0.5),
        BadField,
        "base_spacing: expected a finite number above 0, found -0.5",
    ),
    "too many bits": (
        lambda s: setattr(s, "max_level", 27),
        BadField,
        "expected at most 32 together in 2 dimensions, found 6 and 27",
    ),
    "too few slots": (
        lambda s: setattr(s, "field_slots", s.field_slots[:3]),
        BadField,
        "field_slots: expected one for each of the 4 blocks, found 3",
    ),
    "too few words": (
        lambda s: setattr(s, "free_slots", s.free_slots[:4]),
        BadField,
        "expected a word for each of 5 slots and at most so many free, found 4 words and 3 free",
    ),
    "more free than there are": (
        lambda s: setattr(s, "free_count", 6),
        BadField,
        "found 5 words and 6 free",
    ),
    "another's index": (
        lambda s: s.blocks["block_index"].__setitem__(2, 3),
        BadField,
        "section 'blocks', block 2: expected its position as block_index, or 2^64 - 1 for a dead "
        "block, found 3",
    ),
    "a level too high for its key": (
        lambda s: (s.blocks["level"].__setitem__(3, 27), s.blocks["spacing"].__setitem__(3, 0.0)),
        BadField,
        "block 3: expected a level of at most 26, because bits_per_dim is 6, found 27",
    ),
    "another level's spacing": (
        lambda s: s.blocks["spacing"].__setitem__(2, 0.5),
        BadField,
        "block 2: expected the spacing 0.25, for base_spacing / 2^1, found 0.5",
    ),
    "a spacing that is no number": (
        lambda s: s.blocks["spacing"].__setitem__(0, np.nan),
        BadField,
        "block 0: expected the spacing 0.5, for base_spacing / 2^0, found nan",
    ),
    "two blocks at one place": (
        lambda s: s.blocks["origin"].__setitem__(3, (0, 0)),
        DuplicateKey,
        "blocks 0 and 3: expected one live block at a place, found origins [0, 0] and [0, 0], "
        "both of level 0, with one key",
    ),
    "two blocks of one key": (
        _two_of_one_key,
        DuplicateKey,
        "found origins [0, 0] and [256, 0], both of level 0, with one key",
    ),
    "a slot that is none": (
        lambda s: s.field_slots.__setitem__(2, 5),
        BadRange,
        "section 'field_slots', block 2: expected a slot below 5, or 2^64 - 1 for none, found 5",
    ),
    "a dead block's slot that is none": (
        lambda s: s.field_slots.__setitem__(1, 2**63),
        BadRange,
        "section 'field_slots', block 1: expected a slot below 5",
    ),
    "a free slot that is none": (
        lambda s: s.free_slots.__setitem__(1, INVALID),
        BadRange,
        "section 'free_slots', word 1: expected a slot below 5, found 18,446,744,073,709,551,615",
    ),
    "a slot that is free twice": (
        lambda s: s.free_slots.__setitem__(0, 1),
        BadRange,
        "section 'free_slots', words 0 and 2: expected each slot once, found slot 1 in both",
    ),
    "a slot of two blocks": (
        lambda s: s.field_slots.__setitem__(3, 2),
        BadRange,
        "section 'field_slots', blocks 2 and 3: expected a slot for each live block, found slot 2",
    ),
    "a slot that is in use and free": (
        lambda s: s.field_slots.__setitem__(2, 3),
        BadRange,
        "section 'field_slots', block 2: expected a slot that is not free, found slot 3",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_damage_if_there_is(name: str) -> None:
    spoil, error, message = WRONG[name]
    state = State()
    spoil(state)
    with pytest.raises(error, match=re.escape(message)) as caught:
        state.check()
    assert type(caught.value) is error


def test_all_kinds_of_problems_can_be_had_at_once() -> None:
    state = State()
    state.blocks["spacing"][0] = 7.0
    state.field_slots[3] = 2
    numbers = {k: v for k, v in vars(state).items() if k != "max_level"}
    kinds = [type(problem) for problem in state_problems(4, **numbers)]
    assert kinds == [BadField, BadRange]


def test_an_empty_state_passes() -> None:
    empty: Words = np.zeros(0, np.uint64)
    state = replace(
        State(),
        blocks=np.zeros(0, block_dtype(2)),
        field_slots=empty,
        free_slots=empty,
        free_count=0,
        max_blocks=0,
    )
    assert state.problems() == []

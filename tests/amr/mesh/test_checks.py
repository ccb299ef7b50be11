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


def put(name: str, at: int, value: Any) -> Callable[[State], Any]:
    """Let an entry of the list of slots, of that of free ones, or of a column of blocks be this."""

    def act(state: State) -> None:
        array = state.blocks[name] if name in state.blocks.dtype.names else getattr(state, name)
        array[at] = value

    return act


def cut(name: str, count: int) -> Callable[[State], Any]:
    return lambda state: setattr(state, name, getattr(state, name)[:count])


def so(name: str, value: Any) -> Callable[[State], Any]:
    return lambda state: setattr(state, name, value)


LEGAL: dict[str, Callable[[State], Any]] = {
    "a dead block names a free slot": put("field_slots", 1, 3),
    "a dead block names a slot in use": put("field_slots", 1, 0),
    "a dead block names none": put("field_slots", 1, INVALID),
    "a slot is neither named nor free": so("free_count", 1),
    "stale words say anything": put("free_slots", 3, INVALID),
    "a dead block lies where a live one is": put("origin", 1, (0, 0)),
    "a dead block has any level": put("level", 1, 255),
    "a dead block has any spacing": put("spacing", 1, np.nan),
    "levels above the highest": so("max_level", 0),
    "an origin between blocks": put("origin", 0, (5, 1)),
    "an origin too far out": put("origin", 0, (2**63, 2**64 - 1)),
    "any padding": put("padding", 0, 255),
}


@pytest.mark.parametrize("name", LEGAL)
def test_it_is_legal_that(name: str) -> None:
    state = State()
    LEGAL[name](state)
    assert state.problems() == []


WRONG: dict[str, tuple[Callable[[State], Any], Any, str]] = {
    "no spacing": (so("base_spacing", 0.0), BadField, "base_spacing: "),
    "a negative spacing": (so("base_spacing", -0.5), BadField, "base_spacing: "),
    "too many bits": (so("max_level", 27), BadField, "32 together in 2 dimensions"),
    "too few slots": (cut("field_slots", 3), BadField, "field_slots: "),
    "too few words": (cut("free_slots", 4), BadField, "found 4 words and 3 free"),
    "more free than there are": (so("free_count", 6), BadField, "found 5 words and 6 free"),
    "another's index": (put("block_index", 2, 3), BadField, "section 'blocks', block 2: "),
    "a level too high for its key": (put("level", 3, 27), BadField, "block 3: expected a level"),
    "another level's spacing": (put("spacing", 2, 0.5), BadField, "block 2: expected the spacing"),
    "a spacing that is no number": (put("spacing", 0, np.nan), BadField, "block 0: expected the"),
    "two blocks at one place": (put("origin", 3, (0, 0)), DuplicateKey, "blocks 0 and 3: "),
    # The bit that tells them apart is dropped.
    "two blocks of one key": (put("origin", 3, (4 * 64, 0)), DuplicateKey, "[0, 0] and [256, 0]"),
    "a slot that is none": (put("field_slots", 2, 5), BadRange, "'field_slots', block 2: "),
    "a dead block's slot": (put("field_slots", 1, 2**63), BadRange, "'field_slots', block 1: "),
    "a free slot that is none": (put("free_slots", 1, INVALID), BadRange, "'free_slots', word 1: "),
    "a slot that is free twice": (put("free_slots", 0, 1), BadRange, "'free_slots', words 0 and 2"),
    "a slot of two blocks": (put("field_slots", 3, 2), BadRange, "'field_slots', blocks 2 and 3"),
    "a slot in use and free": (put("field_slots", 2, 3), BadRange, "block 2: expected a slot that"),
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

"""A loader's position in its state, and back; the states of other loaders are refused.

A position is a number of samples, over all ranks. The state says it in batches of so many samples:
alone, those are the loader's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from standfast.errors import StateMismatch, shortened


def counted(position: int, size: int, length: int, drop_last: bool) -> dict[str, int]:
    """A position in batches of `size` samples; of one sample, where it lies between them."""
    at_end = position == length and not drop_last  # the last batch may be a smaller one
    if position % size and not at_end:
        return {"batch": position, "batch_size": 1}
    return {"batch": -(-position // size), "batch_size": size}


def position_in(state: Mapping[str, Any], fixed: Mapping[str, Any]) -> tuple[int, int]:
    """The epoch and the position in it; a state with other `fixed` fields is refused."""
    fields = ("epoch", "batch", "batch_size", *fixed)
    if not isinstance(state, Mapping) or set(state) != set(fields):
        found = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateMismatch(
            f"a loader's state has the fields {', '.join(fields)}; found {shortened(found)}: "
            "is it the state of another object?"
        )
    different = [
        f"{name} {shown(state[name])} instead of {shown(value)}"
        for name, value in fixed.items()
        if type(state[name]) is not type(value) or state[name] != value
    ]
    if different:
        raise StateMismatch(
            f"the state is of a loader with {', '.join(different)}: its position means nothing "
            "here; build the loader as it was, or begin a new run"
        )
    epoch, batch, size = numbers = [state[name] for name in fields[:3]]
    whole = all(type(number) is int and number >= 0 for number in numbers) and size > 0
    if not whole or batch > batches_in(fixed["length"], size, fixed["drop_last"]):
        raise StateMismatch(
            f"a loader's state says epoch {shown(epoch)}, batch {shown(batch)}, batch_size "
            f"{shown(size)}: expected whole numbers from 0, and not more batches than there are of "
            f"that size in an epoch's {fixed['length']:,} samples"
        )
    return epoch, min(batch * size, fixed["length"])


def batches_in(samples: int, size: int, drop_last: bool) -> int:
    """How many batches of a size there are in so many samples."""
    whole, rest = divmod(samples, size)
    return whole if drop_last or not rest else whole + 1


def shown(value: Any) -> str:
    """A value in an error message."""
    # Python refuses to write thousands of decimal digits.
    huge = type(value) is int and value.bit_length() > 64
    return shortened(hex(value) if huge else repr(value))

"""What goes after a save: what the run does not keep, and what the store has no room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.errors import StandfastError
from standfast.store.retention.collection import carry_out, plan
from standfast.store.retention.retaining import Retained, retain, said
from standfast.store.save.changing import PATIENCE

if TYPE_CHECKING:
    from standfast.store.store import Store


def after_save(store: Store, run: str) -> Retained:
    """Delete what a run does not keep, and what the store has no room for, after a save."""
    done = retain(store, run)
    try:
        budget = store.budget
        if budget is not None:
            more = keep_within(store, budget, wait=0.0)  # no save waits for another
            done.deleted += more.deleted
            done.freed += more.freed
            done.problems += more.problems
    except StandfastError as error:
        done.problems.append(said(error))
    return done


def keep_within(store: Store, budget: int | None, wait: float = PATIENCE) -> Retained:
    """Delete what all runs do not keep, and the oldest until the store takes no more than that.

    A run that somebody changes is waited for, and then let be.
    """
    done = Retained()
    made = plan(store, to=budget)
    if made.lines:
        carried = carry_out(store, made, wait)
        done.freed = carried.freed
        done.deleted = [line.step for line in carried.lines if line.kind == "checkpoint"]
        done.problems += [f"{what}: {why}" for what, why in carried.problems.items()]
    if made.short:
        done.problems.append(
            f"the store takes {made.after:,} bytes, over its budget of {budget:,}: what is left "
            "must not be deleted"
        )
    return done

"""Records of snapshots that no writer wrote: damage, and never a crash."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from standfast import Store
from standfast.amr import ShardContext, Snapshot
from standfast.errors import BadField, BadRange, StandfastError
from standfast.store.backends.memory import MemoryBackend
from tests.amr.tree_states import SCALAR, saved, worn


def _state(kind: str = "u1") -> dict[str, Any]:
    """What a snapshot of one rank with a shard is in a store."""
    run = Store(MemoryBackend()).run("heat")
    tree, arena = worn(kind)
    tree.attach_shard(ShardContext.from_tree(tree, None, "manual"))
    Snapshot.save(run, 1, tree, arena, values={"a": 1}, random={"kicks": np.random.default_rng(1)})
    state: dict[str, Any] = run.load(1)
    return state


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if path[1:] in (("random", "global"), ("random", "own", "kicks")):
        return found  # what is in it is checked by who puts it back
    if isinstance(value, dict):
        return found + [each for key in value for each in _paths(value[key], (*path, key))]
    if isinstance(value, list):
        return found + [each for n, item in enumerate(value) for each in _paths(item, (*path, n))]
    return found


def _changed(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with something else at one place; or without that place, if the value is ...."""
    if not path:
        return value
    copy = list(state) if isinstance(state, list) else dict(state)
    if value is ... and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = _changed(state[path[0]], path[1:], value)
    return copy


JUNK: list[Any] = [
    *(..., None, True, -1, 1 << 62, float("nan"), "x", (1,), [], {"kind": {}}),
    *(np.zeros(0), np.zeros((2, 40), np.uint8)),
]


@pytest.mark.parametrize("path", _paths(_state()), ids=lambda path: ".".join(map(str, path)))
def test_junk_anywhere_in_a_record_is_refused_or_harmless(path, run):
    state = _state()
    refused = 0
    for step, junk in enumerate(JUNK):
        run.save(step, _changed(state, path, junk))
        try:
            found = Snapshot.load(run, step)
            found.restore_random(kicks=np.random.default_rng(2))
            found.tree.reorder()
            list(saved(found.tree, found.arena))
        except StandfastError:
            refused += 1
    free = path[:2] == ("simulation", "values") or path[-1] == "max_level"
    assert refused >= (0 if free else 6)


def _reverse_owners(state: dict[str, Any]) -> None:
    owners = state["simulation"]["owners"]
    owners["origins"] = owners["origins"][::-1].copy()


def _add_another_rank(state: dict[str, Any]) -> None:
    state["simulation"]["ranks"] = 2
    state["rank1"] = state["rank0"] | {"header": state["rank0"]["header"] | {"max_level": 1}}


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an owner that is no rank": (lambda s: s["simulation"]["owners"]["owners"].fill(1), "1"),
    "owners of one block twice": (lambda s: s["simulation"]["owners"]["origins"].fill(0), "owners"),
    "owners that are not sorted": (_reverse_owners, "owners"),
    "owners of levels no key has": (lambda s: s["simulation"]["owners"]["levels"].fill(255), "255"),
    "one slab too many": (lambda s: s["rank0"]["storage"].extend(s["rank0"]["storage"]), "storage"),
    "slabs of another shape": (lambda s: s["rank0"].update(links=[np.zeros((3, 5))]), "links"),
    "more free slots than slots": (
        *(lambda s: s["rank0"]["header"].update(free_count=16), "free_count"),
    ),
    "a slot that two blocks have": (lambda s: s["rank0"]["field_slots"].fill(1), "field_slots"),
    "a rank more": (lambda s: s.update(rank1=s["rank0"]), "1"),
    "a rank less": (lambda s: s["simulation"].update(ranks=2), "2"),
    "ranks that are not alike": (_add_another_rank, "max_level"),
    "links where none can be": (
        *(lambda s: s["simulation"].update(frontend=SCALAR.describe()), "frontend"),
    ),
    "no random states": (lambda s: s["rank0"].update(random={}), "random"),
    "a list of random states": (lambda s: s["rank0"].update(random=[]), "random"),
    "a number of random states": (
        *(lambda s: s["rank0"].update(random={"own": 1, "global": {}}), "random"),
    ),
    "no global random states": (lambda s: s["rank0"].update(random={"own": {}}), "random"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_record_that_no_writer_wrote_is_damage(case, run):
    change, told = HOSTILE[case]
    state = _state()
    change(state)
    run.save(1, state)
    with pytest.raises((BadField, BadRange), match=f"{run.hash}@1.*{told}"):
        Snapshot.load(run, 1, reshard=case == "ranks that are not alike")

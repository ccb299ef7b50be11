"""Meshes made at random, and what they hold, as plain dictionaries."""

import itertools
import math
import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from standfast import amr
from tests.amr.tree_states import saved
from tests.kit.seams import Seams

Key = tuple[int, int]
"""A place on the Morton curve, and a level."""
BOUNDARIES = {"open": ("open",), "periodic": ("periodic",), "mixed": ("periodic", "open")}
"""By the name of a topology the boundaries of the dimensions, repeated for as many as there are."""


def empty_mesh(
    nd: int = 2,
    base: int = 3,
    topology: str = "open",
    dtype: Any = np.float64,
    components: int = 1,
    gauge: int = 0,
    max_level: int = 3,
) -> tuple[Any, amr.FieldArena]:
    """A tree of blocks of 4 sites and spacing 0.5, without any; `base` blocks fit along each side.

    With `gauge` it is a GaugeTree of that group, with two spinor components.
    """
    box = amr.GridTopology(nd, (BOUNDARIES[topology] * nd)[:nd], (base * 4 * 0.5,) * nd)
    if gauge:
        frontend: Any = amr.GaugeFrontend(gauge, 2, nd, 4, box)
        return amr.GaugeTree(frontend, 0.5, 6, max_level), amr.FieldArena(frontend, 4)
    frontend = amr.ScalarFrontend(nd, 4, box, dtype, components)
    return amr.AMRTree(frontend, 0.5, 6, max_level), amr.FieldArena(frontend, 4)


def random_mesh(
    seed: int, changes: int = 12, holes: bool = True, fields: bool = True, **of: Any
) -> Any:
    """A tree and its arena after random refinements and deaths; neighbours may differ a lot."""
    rng = np.random.default_rng(seed)
    tree, arena = empty_mesh(**of)
    base = of.get("base", 3)
    for number in rng.permutation(base**tree.frontend.nd).tolist():
        place = [4 * (number // base**d % base) for d in range(tree.frontend.nd)]
        tree.insert_block(place, 0)
    for _ in range(changes):
        index = int(rng.choice(tree.live))
        if tree.blocks[index]["level"] < tree.max_level:
            tree.refine_block(index)
    if holes:
        for index in rng.choice(tree.live, 2, replace=False).tolist():
            tree.invalidate_block(index)
    if fields:
        give_fields(tree, arena, rng)
    return tree, arena


def give_fields(tree: Any, arena: amr.FieldArena, rng: np.random.Generator) -> None:
    """A slot for each live block, in an order of its own, with random fields and links."""
    while arena.free_count < len(tree.live) + 3:
        arena.grow()
    for index in rng.permutation(tree.live).tolist():
        tree.field_slots[index] = arena.alloc()
    arena.storage[:] = random_numbers(rng, arena.storage.shape, arena.storage.dtype)
    if isinstance(tree, amr.GaugeTree):
        tree.links[:] = random_numbers(rng, tree.links.shape, tree.links.dtype)


def random_numbers(rng: np.random.Generator, shape: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    numbers = rng.standard_normal(shape)
    if dtype.kind == "c":
        numbers = numbers + 1j * rng.standard_normal(shape)
    return numbers.astype(dtype)


def fields_by_key(tree: Any, arena: amr.FieldArena) -> dict[Key, bytes]:
    """The bytes of each live block's field, and of its links."""
    return {
        key: arena.storage[int(tree.field_slots[index])].tobytes()
        + (tree.links[index].tobytes() if isinstance(tree, amr.GaugeTree) else b"")
        for key, index in zip(tree.keys(), tree.live.tolist(), strict=True)
    }


def merged(parts: list[dict[Key, Any]]) -> dict[Key, Any]:
    """What all ranks have; none has what another has."""
    together = {key: value for part in parts for key, value in part.items()}
    assert len(together) == sum(map(len, parts))
    return together


def sites_by_place(tree: Any, arena: amr.FieldArena) -> dict[tuple[int, tuple[int, ...]], Any]:
    """The field at each site, by its level and its coordinates (x_0, x_1, …) in the box."""
    size, nd = tree.frontend.block_size, tree.frontend.nd
    sites = {}
    for index in tree.live.tolist():
        block = tree.blocks[index]
        origin, level = block["origin"].tolist(), int(block["level"])
        for number in range(size**nd):
            place = tuple(origin[d] + number // size**d % size for d in range(nd))
            sites[level, place] = arena.storage[int(tree.field_slots[index]), number]
    return sites


def beyond(tree: Any, level: int, place: list[int]) -> tuple[int, ...] | None:
    """A site's coordinates brought back into the box; None if it is outside."""
    topology = tree.frontend.topology
    inside = []
    for x, length, kind in zip(
        place, topology.sites(tree.spacing(level)), topology.boundary, strict=True
    ):
        if kind == "open" and not 0 <= x < length:
            return None
        inside.append(x % length)
    return tuple(inside)


def face_sites(tree: Any, index: int, face: int) -> list[list[int]]:
    """Where the sites beyond a face of a block are, in the order of the face."""
    size, nd = tree.frontend.block_size, tree.frontend.nd
    origin = tree.blocks[index]["origin"].tolist()
    d, minus = divmod(face, 2)
    places = []
    for others in product(range(size), repeat=nd - 1):
        along = list(reversed(others))  # the lowest dimension fastest
        along.insert(d, -1 if minus else size)
        places.append([origin[k] + along[k] for k in range(nd)])
    return places


TAKING = ("zeros", "empty", "array", "full", "concatenate", "repeat", "take")


class ShortMemory:
    """NumPy makes `left` more arrays, and then none; in one thread alone, if it is given."""

    def __init__(self, seams: Seams, *names: str, left: float = math.inf) -> None:
        self.left = left
        self.thread: int | None = None

        def counted(make: Any, *args: Any, **options: Any) -> Any:
            if self.thread in (None, threading.get_ident()):
                self.left -= 1
                if self.left < 0:
                    raise MemoryError
            return make(*args, **options)

        seams.system(np, **dict.fromkeys(names or TAKING, counted))


def fails_until_it_has_memory(
    seams: Seams, make: Callable[[], Any], change: Callable[..., Any]
) -> tuple[int, Any, Any]:
    """Change what `make` makes, with memory for no array, for one, and so on, until it succeeds.

    Returns how often it failed, each time without a change, and at last the tree and its arena.
    """
    before, memory = saved(*make()), ShortMemory(seams)
    for failures in itertools.count():
        tree, arena = make()
        memory.left = failures
        try:
            change(tree, arena)
        except MemoryError:
            memory.left = math.inf
            assert saved(tree, arena) == before
        else:
            memory.left = math.inf
            assert saved(tree, arena) != before
            return failures, tree, arena
    raise AssertionError

"""`standfast show` of a tree of blocks: its levels, slots, free list and links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from standfast.amr.inspect.description import Described, Scanned, Slots, describe, scan
from standfast.amr.inspect.trees import SavedState
from standfast.amr.mesh.frontends import GaugeFrontend, frontend_of
from standfast.cli.commands.show.file import value_text
from standfast.display.output import (
    ROWS,
    count_text,
    on_terminal,
    print_table,
    progress_bar,
    say,
    say_more,
    shape_text,
)
from standfast.display.trees import opened_tree
from standfast.errors import BadField, BadOption, DamagedFile, printable, shortened
from standfast.store import Checkpoint
from standfast.tensorfile.open import TensorFile

_DIMENSIONS: Final = {1: "1 dimension"}


def tree_json(what: TensorFile | Checkpoint, *, every: bool) -> dict[str, Any]:
    """A tree for scripts; all fields and links are read for it if `every` is asked for."""
    try:
        with opened_tree(what) as state:
            found = describe(*state.trees)
            scanned = _scan(state, found) if every else None
            return {
                **asdict(found),
                "fields": asdict(scanned) if scanned else None,
                "ranks": [{"rank": n, **asdict(describe(t))} for n, t in enumerate(state.trees)],
                "simulation": None if state.simulation is None else dict(state.simulation),
            }
    except (DamagedFile, BadOption) as error:
        return {"problems": [str(error)]}


def print_tree(what: TensorFile | Checkpoint, *, every: bool) -> bool:
    """Print a tree as far as it goes; returns whether it is sound.

    With `every`, all fields and links are read.
    """
    try:
        with opened_tree(what) as state:
            return _print_state(state, every)
    except (DamagedFile, BadOption) as error:
        say((printable(f"the tree cannot be read: {error}"), "bold red"))
        return False


def _print_state(state: SavedState, every: bool) -> bool:
    found = describe(*state.trees)
    scanned = _scan(state, found) if every else None
    if state.simulation is not None:
        for label, text in _facts(state):
            say(printable(f"  {label}: {text}"))
        say()
    header = state.trees[0].header
    size = shape_text((header.block_size,) * header.nd)
    dimensions = _DIMENSIONS.get(header.nd, f"{header.nd} dimensions")
    say(f"{dimensions}, blocks of {size} sites, {count_text(header.field_bytes, 'byte')} a site")
    _print_levels(found)
    if scanned is not None:
        _print_ranges(scanned)
    say(_slots_text(found.slots))
    if found.slots.next:
        more = ", …" if len(found.slots.next) < found.slots.free else ""
        say(f"  next to be taken: {', '.join(map(str, found.slots.next))}{more}")
    if found.links is not None:
        say(_links_text(found, scanned))
    if len(state.trees) > 1:
        say()
        _print_ranks(state, found, every)
    _print_soundness(found)
    return not found.problems


def _scan(state: SavedState, found: Described) -> Scanned | None:
    """The range of all fields; of an unsound tree there is none."""
    if found.problems:
        return None
    items = [each for tree in state.trees for each in (tree.fields, tree.links) if each]
    with progress_bar("reading fields", sum(each.count * each.nbytes for each in items)) as report:
        return scan(*state.trees, progress=report)


def _print_levels(found: Described) -> None:
    columns = ("level", "spacing", "live", "dead", "with field", "sites", "volume")
    rows = [
        (
            f"{level.level}",
            f"{level.spacing:.6g}",
            *(f"{n:,}" for n in (level.live, level.dead, level.with_field, level.sites)),
            f"{level.share:.1%}",
        )
        for level in found.levels
    ]
    if len(rows) != 1:
        sums = (sum(getattr(level, name) for level in found.levels) for name in _SUMMED)
        rows.append(("all", "", *(f"{n:,}" for n in sums), ""))
    print_table(columns, rows, right=columns[1:])


_SUMMED: Final = ("live", "dead", "with_field", "sites")


def _print_ranges(scanned: Scanned) -> None:
    what = "|field|" if scanned.of_moduli else "field"
    columns = ("level", f"least {what}", "mean", "greatest", "not finite")
    rows = [
        (
            f"{level}",
            *(f"{value:.6g}" for value in (found.least, found.mean, found.greatest)),
            f"{found.not_finite:,}",
        )
        for level, found in scanned.levels.items()
    ]
    print_table(columns, rows, right=columns[1:])


def _slots_text(slots: Slots) -> str:
    parts = [f"{slots.taken:,} taken", f"{slots.free:,} free"]
    if slots.dead:
        parts.append(f"{slots.dead:,} named by dead blocks alone")
    if slots.lost:
        parts.append(f"{slots.lost:,} neither named nor free")
    return f"{count_text(slots.total, 'slot')}: {', '.join(parts)}"


def _links_text(found: Described, scanned: Scanned | None) -> str:
    links = found.links
    assert links is not None
    dead = f", {links.dead:,} of dead ones" if links.dead else ""
    unitary = ""
    if scanned is not None and scanned.unitarity is not None:
        unitary = f"; unitary to {scanned.unitarity:.1e}"
    return (
        f"links of {links.name}, {links.per_block:,} a block: {links.live:,} of live blocks"
        f"{dead}{unitary}"
    )


def _print_ranks(state: SavedState, found: Described, every: bool) -> None:
    levels = [level.level for level in found.levels]
    columns = ("rank", "live", "by level", "dead", "slots", "taken", "free", "links")
    rows = []
    for rank, tree in enumerate(state.trees):
        each = describe(tree)
        live = {level.level: level.live for level in each.levels}
        row = (
            f"{rank}",
            f"{each.live:,}",
            " + ".join(f"{live.get(level, 0):,}" for level in levels),
            f"{each.blocks - each.live:,}",
            *(f"{n:,}" for n in (each.slots.total, each.slots.taken, each.slots.free)),
            f"{each.links.live + each.links.dead:,}" if each.links else "—",
        )
        rows.append(row)
    shown = rows if every or not on_terminal() else rows[:ROWS]
    print_table(columns, shown, right=[c for c in columns if c not in ("rank", "by level")])
    say_more(len(rows) - len(shown))


def _print_soundness(found: Described) -> None:
    if not found.problems:
        say(("the tree is sound", "green"))
        return
    say(("the tree is not sound:", "bold red"))
    for problem in found.problems:
        say((printable(f"  {problem}"), "red"))


def _facts(state: SavedState) -> Iterator[tuple[str, str]]:
    """What a snapshot says of its simulation."""
    simulation = state.simulation or {}
    yield "time", value_text(simulation.get("time"))
    sharding = simulation.get("sharding")
    shared = f", sharding {value_text(sharding)}" if sharding else ""
    yield "ranks", f"{len(state.trees):,}{shared}"
    yield from _frontend_facts(simulation.get("frontend"))
    yield "random states", _random_text(state)
    values = simulation.get("values")
    for name, value in values.items() if isinstance(values, dict) else ():
        yield f"value {name}", shortened(value_text(value))


def _frontend_facts(described: Any) -> Iterator[tuple[str, str]]:
    try:
        frontend = frontend_of(described)
    except BadField:
        return
    if isinstance(frontend, GaugeFrontend):
        parts = (
            count_text(frontend.n_spinor, "spinor component"),
            count_text(frontend.n_gauge, "colour") + " each",
        )
        yield "frontend", f"gauge, {', '.join(parts)}, {frontend.dtype.name}"
    else:
        many = frontend.components > 1
        kind = f"vector, {frontend.components} components" if many else "scalar"
        yield "frontend", f"{kind}, {frontend.dtype.name}"
    topology = frontend.topology
    lengths = " × ".join(f"{length:.6g}" for length in topology.extents)
    alike = len(set(topology.boundary)) == 1
    kinds = topology.boundary[0] if alike else " × ".join(topology.boundary)
    yield "topology", f"{kinds}, {lengths}"


def _random_text(state: SavedState) -> str:
    """The generators whose states were saved, by name."""
    texts = [", ".join(_names(random)) or "none" for random in state.random]
    if all(text == texts[0] for text in texts):
        return f"{texts[0]}, on each rank" if len(texts) > 1 else texts[0]
    return "; ".join(f"rank {number}: {text}" for number, text in enumerate(texts))


def _names(random: Any) -> Iterator[str]:
    """The program's own generators, then those of Python and its libraries."""
    for kind in ("own", "global"):
        found = random.get(kind) if isinstance(random, dict) else None
        names = ", ".join(map(str, found)) if isinstance(found, dict) else ""
        if names:
            yield names if kind == "own" else f"global ({names})"

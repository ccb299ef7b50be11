"""Where runs came from, however their files say so."""

from pathlib import Path
from typing import Any

import msgspec

from standfast import Run, Store
from standfast.store.query.lineage import Lineage, Node, history, lineage
from standfast.store.schema import names
from standfast.store.schema.record import Place
from standfast.store.schema.run_file import encode
from tests.kit.stores import overwrite


def saved(store: Store, name: str, *steps: int, parent: tuple[Run, int] | None = None) -> Run:
    checkpoint = parent[0].checkpoint(parent[1]) if parent else None
    run = store.run(name, parent=checkpoint)
    for step in steps:
        run.save(step, {"step": step}, metrics={"loss": 1 / step}, best=step == 2)
    return run


def claim(run: Run, place: Place | None) -> None:
    """Let a run file say where the run came from."""
    file = msgspec.structs.replace(run.file, parent=place)
    overwrite(Path(run.store.url, names.run_file(run.hash)), encode(file))


def tree(store: Store) -> list[tuple[str | None, str | None]]:
    store.index.refresh()
    branches = lineage(store.index).branches()
    return [(b.node.name, b.parent.name if b.parent else None) for b in branches]


def test_branches_hang_under_the_run_that_they_came_from(store):
    first = saved(store, "first", 1, 2, 3)
    old = saved(store, "old", 3, parent=(first, 2))
    saved(store, "other", 1)
    saved(store, "new", 3, parent=(first, 2))
    saved(store, "leaf", 4, parent=(old, 3))
    # The newest activity is in a branch of `first`, and in one of its branch `old`.
    assert tree(store) == [
        *(("first", None), ("new", "first"), ("old", "first"), ("leaf", "old"), ("other", None))
    ]
    node = lineage(store.index).nodes[first.hash]
    assert (node.steps, node.best and node.best.step) == ((1, 2, 3), 2)
    assert node.metrics == {"loss": 0.5}


def test_the_lines_of_a_tree_know_which_branch_is_the_last(store):
    first = saved(store, "first", 1)
    second = saved(store, "second", 1, parent=(first, 1))
    saved(store, "third", 1, parent=(second, 1))
    saved(store, "fourth", 1, parent=(first, 1))
    lasts = {b.node.name: b.lasts for b in lineage(store.index).branches()}
    assert lasts == {"first": (), "fourth": (False,), "second": (True,), "third": (True, True)}


def test_a_run_whose_parent_is_gone_is_a_root(store):
    first = saved(store, "first", 1)
    saved(store, "second", 1, parent=(first, 1))
    first.delete_all()
    assert tree(store) == [("second", None)]
    (node,) = lineage(store.index).nodes.values()
    assert node.parent.run == first.hash


def test_runs_that_came_from_each_other_are_listed_once(store):
    runs = [saved(store, name, 1) for name in ("a", "b", "c", "itself")]
    for child, parent in ((0, 1), (1, 0), (2, 1), (3, 3)):
        claim(runs[child], Place(runs[parent].hash, 1, 1, "0123abcd"))
    found = tree(store)
    assert sorted(name or "" for name, _ in found) == ["a", "b", "c", "itself"]
    assert ("itself", None) in found
    told = [stretch.run for stretch in history(store.index, runs[2].hash)]
    assert told == [runs[number].hash for number in (2, 1, 0)]


def test_a_parent_of_any_name_is_one_that_is_gone(store):
    run = saved(store, "a", 1)
    claim(run, Place("\x1b[2J" * 1000, -1, 1 << 60, ""))
    assert tree(store) == [("a", None)]
    (_, gone) = history(store.index, run.hash)
    assert (gone.file, gone.entries, gone.parent) == (None, [], None)


def test_a_run_file_that_is_damaged_hides_no_run(store):
    first = saved(store, "first", 1)
    second = saved(store, "second", 1, parent=(first, 1))
    for run in (first, second):
        overwrite(Path(store.url, names.run_file(run.hash)), b"nothing")
    assert tree(store) == [("first", None), ("second", "first")]
    told = [each.file and each.file.name for each in history(store.index, second.hash)]
    assert told == ["second", "first"]


def test_a_chain_of_thousands_is_no_deeper_than_a_page():
    nodes: dict[str, Any] = {}
    for number in range(5000):
        place = Place(f"{number - 1:024d}", 0, 0, "") if number else None
        run = f"{number:024d}"
        nodes[run] = Node(run, None, None, None, (), None, {}, place)
    found = list(Lineage(nodes).branches())
    assert [branch.node.run for branch in found] == list(nodes)
    assert max(len(branch.lasts) for branch in found) < 20


def test_a_history_goes_through_the_branch_point_to_the_beginning(store):
    first = saved(store, "first", 1, 2)
    second = saved(store, "second", 3, 4, parent=(first, 2))
    first.save(3, {})
    third = saved(store, "third", 5, parent=(second, 3))
    store.index.refresh()
    told = list(history(store.index, third.hash))
    assert [(each.file and each.file.name, [e.step for e in each.entries]) for each in told] == [
        ("third", [5]),
        ("second", [3]),
        ("first", [2, 1]),
    ]
    assert [each.parent and each.parent.step for each in told] == [3, 2, None]
    assert told[2].entries[0].marks == ("best",)

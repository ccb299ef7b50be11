"""Whenever the power fails, the old state or the new one is there; after a change, the new one."""

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from blake3 import blake3

from standfast.errors import StandfastError
from standfast.store import Store
from standfast.store.backends.new_file import is_aside
from standfast.store.schema import names
from tests.kit.fault_states import UnsyncedDisk, check_between, check_next_save, make_small
from tests.kit.power import LoggingDisk, Operation, Tree, read_tree, trees_after_power_cut
from tests.kit.seams import Seams
from tests.store.faults.changes import CHANGES, EMPTIED, FOUR, TRASH_CHANGES, Change
from tests.store.faults.damage import check_in_store_or_trash


class Logging(LoggingDisk, UnsyncedDisk):
    """A disk that logs, and syncs nothing: what a sync is worth is for the model to say."""


class Logged:
    """A change of a store, logged, and what the disk may hold when the power fails meanwhile."""

    def __init__(self, change: Change, folder: Path, seams: Seams) -> None:
        self.change = change
        self._folder = folder
        self._verdicts: dict[frozenset[tuple[str, bytes]], bool | str] = {}
        self._count = itertools.count()
        root = folder / "root"
        root.mkdir()
        change.prepare(root / "store")
        self._before = {
            name: content for name, content in read_tree(root).items() if "/.standfast/" not in name
        }
        logging = seams.disk(Logging(root))
        change.act(Store(root / "store"))
        self.log = logging.log

    def trees(self, log: Sequence[Operation]) -> Iterator[Tree]:
        """What the disk may hold."""
        return (tree for _, tree in trees_after_power_cut(log, self._before))

    def violations(self, log: Sequence[Operation]) -> Iterator[str]:
        """What is wrong after a power cut, in each state in which something is."""
        for ended, tree in trees_after_power_cut(log, self._before):
            verdict = self._verdict(tree)
            if isinstance(verdict, str):
                yield verdict
            elif ended and not verdict:
                yield "the change was made, and is lost"

    def _verdict(self, tree: Tree) -> bool | str:
        """Whether the new state is there, else the old one; what is wrong if neither is."""
        # No reader looks at what is aside, or at the views of layout V3: two trees that differ in
        # these are one to all of them.
        key = frozenset(item for item in tree.items() if not _is_beside(item[0]))
        if key not in self._verdicts:
            path = self.laid_out(tree)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    verdict: bool | str = check_between(
                        Store(path), self.change.before, self.change.after
                    )
            except (AssertionError, StandfastError, UserWarning) as error:
                verdict = f"{type(error).__name__}: {error}"
            self._verdicts[key] = verdict
        return self._verdicts[key]

    def laid_out(self, tree: Tree) -> Path:
        """The store of a tree; equal files are links to one, because no file is ever changed."""
        root = self._folder / str(next(self._count))
        contents = self._folder / "contents"
        contents.mkdir(exist_ok=True)
        for name, content in tree.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                path.mkdir(exist_ok=True)
                continue
            kept = contents / blake3(content).hexdigest()
            if not kept.exists():
                kept.write_bytes(content)
            os.link(kept, path)
        return root / "store"

    def synced(self) -> Iterator[tuple[int, str]]:
        """The syncs of a run's folder and of the files in it: where in the log, and of what."""
        asides = {op.file: op.name for op in self.log if op.kind == "create"}
        targets = {op.name: op.target for op in self.log if op.kind in ("rename", "link")}
        for i, operation in enumerate(self.log):
            above, name = ["", *operation.name.split("/")][-2:]
            if operation.kind == "sync_folder" and above == names.MODELS and names.is_run(name):
                yield i, "folder"
            if operation.kind == "sync":
                placed = asides[operation.file]
                while placed in targets:
                    placed = targets[placed]
                *_, run, name = placed.split("/")
                named = names.parse(name, run)
                if named:  # else it is one of the views, which may be lost
                    yield i, named.kind

    def placed(self, kind: str) -> int:
        """Where in the log the first file of a kind is given its name."""
        for i, operation in enumerate(self.log):
            *_, run, name = ["", *operation.target.split("/")]
            named = names.parse(name, run)
            if named and named.kind == kind and operation.kind in ("rename", "link"):
                return i
        raise AssertionError(f"no {kind} was placed")


def _is_beside(name: str) -> bool:
    last = name.split("/")[-1]
    return is_aside(last) or last.endswith(".yaml")


SYNCS = {
    "the first save of a store": "run -folder data data folder record folder",
    "a save that refers to the one before": "data data folder record folder",
    "a save that links a file of another run": "run -folder data data folder record folder",
    "a save that replaces a step": "data data folder record folder -folder",
    "a delete": "-marks -folder folder -folder",
    "a delete of a run": "folder -folder -folder",
    "a doctor's repair": "-folder record folder",
    "a tag": "marks folder",
}
"""What each change syncs in the folder of its run. Without those with a `-` less is certain to be
durable, but nothing can be lost: what they cover is covered again, or is no harm if it comes back.
"""
COMMITS = [name for name, syncs in SYNCS.items() if "data" in syncs]


@pytest.fixture(scope="module")
def logged(request: pytest.FixtureRequest, folder_of_module: Path) -> Logged:
    folder = folder_of_module / request.param
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        seams = Seams(patch)
        seams.no_manifest()
        seams.disk(UnsyncedDisk())
        return Logged(CHANGES[request.param], folder, seams)


@pytest.fixture(autouse=True)
def _no_index(seams: Seams) -> None:
    seams.backend(cache=None)  # an index for each state would take longer than all else


def of_each(changes: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("logged", changes, indirect=True)


@pytest.mark.guarantee("G2")
@of_each(CHANGES)
def test_a_power_cut_at_any_moment_leaves_the_old_state_or_the_new_one(logged):
    assert list(logged.violations(logged.log)) == []


@of_each(CHANGES)
def test_after_a_power_cut_the_next_save_works_and_cleans_up(logged):
    trees = list(logged.trees(logged.log))
    assert len(trees) > 4
    for tree in trees[:: 1 + len(trees) // 4]:
        store = Store(logged.laid_out(tree))
        check_between(store, logged.change.before, logged.change.after)
        check_next_save(store, logged.change.ever)


@pytest.mark.guarantee("G2")
@of_each(SYNCS)
def test_every_sync_is_needed(logged, request):
    syncs = SYNCS[request.node.callspec.params["logged"]]
    found = list(logged.synced())
    assert [what for _, what in found] == syncs.replace("-", "").split()
    for (i, what), expected in zip(found, syncs.split(), strict=True):
        if what == expected:
            without = logged.log[:i] + logged.log[i + 1 :]
            assert next(logged.violations(without), None), f"{what}, operation {i}"


@of_each(COMMITS)
def test_the_data_must_be_synced_and_in_place_before_the_record_is(logged):
    sync = next(i for i, what in logged.synced() if what == "data")
    data, record = logged.placed("data"), logged.placed("record")
    log = list(logged.log)
    log[sync], log[record] = log[record], log[sync]
    assert next(logged.violations(log), None)
    log = list(logged.log)
    log.insert(record + 1, log[data])
    del log[data]
    assert next(logged.violations(log), None)


@pytest.mark.guarantee("G2", "G15")
@pytest.mark.parametrize("name", TRASH_CHANGES)
def test_a_power_cut_at_any_moment_loses_nothing_of_the_trash(name, folder, seams):
    # The model of the disk leaves out what is hidden: it may vanish, and here it should not.
    seams.bound("folder of the trash", "trash")
    logged = Logged(TRASH_CHANGES[name], folder, seams)
    trees = list(logged.trees(logged.log))
    assert len(trees) > 10
    for tree in trees[:: 1 + len(trees) // 15]:
        store = Store(logged.laid_out(tree))
        check_in_store_or_trash(store, FOUR, emptied=name == EMPTIED)

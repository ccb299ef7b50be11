"""The 1st file operation of each change of a store fails, or is a kill; then the 2nd, the 3rd…"""

import errno
import itertools
from collections.abc import Callable
from functools import partial

import pytest

from standfast.errors import WriteFailed
from standfast.store import Run, Store
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.trash import Trash
from tests.kit.cases import kept
from tests.kit.disk_faults import raising
from tests.kit.fault_states import (
    DAMAGED,
    Faulty,
    State,
    check_between,
    check_next_save,
    contents,
    copy_store,
    leftovers,
    state,
)
from tests.kit.stores import same
from tests.store.faults.changes import CHANGES, EMPTIED, FOUR, TRASH_CHANGES, killed_at_each
from tests.store.faults.damage import check_in_store_or_trash

FAULTS: dict[str, Callable[[], BaseException]] = {
    "ENOSPC": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "Ctrl-C": KeyboardInterrupt,
    "EIO": lambda: OSError(errno.EIO, "Input/output error"),
    "a bug": lambda: RuntimeError("injected"),
}
IN_TURN = "each in turn"
SHORT = 3
"""How many operations are passed over in `make test`."""
stride = pytest.mark.parametrize("stride", [SHORT, pytest.param(1, marks=pytest.mark.long)])

# The lock of a writer that is dropped goes with it, and no Ctrl-C comes out of there.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.guarantee("G1", "G5")
@pytest.mark.parametrize("faults", kept([IN_TURN, *FAULTS], IN_TURN))
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_fails_leaves_the_old_state_or_the_new_one(name, faults, folder, seams):
    change, disk = CHANGES[name], seams.disk(Faulty())
    change.prepare(folder / "prepared")
    kinds = itertools.cycle(FAULTS if faults == IN_TURN else [faults])
    struck = []
    for at, kind in zip(itertools.count(1, SHORT if faults == IN_TURN else 1), kinds, strict=False):
        path = folder / str(at)
        copy_store(folder / "prepared", path)
        store = Store(path)
        hit, caught = fail(disk, change.act, store, at, kind)
        if hit is None:
            assert caught is None
            break
        struck.append(hit)
        # Whoever comes next, the program that had the fault or another, cleans up after it.
        store = store if at % 8 < 4 else Store(path)
        is_new = check_between(store, change.before, change.after)
        assert is_new or caught, f"{kind} at {hit}, operation {at}"
        if faults != IN_TURN or at % 2:
            check_next_save(store, change.ever)
        store.index.close()
    assert faults == IN_TURN or {"write", "sync", "sync_folder"} <= set(struck)
    assert len(struck) > 4


def fail(
    disk: Faulty, act: Callable[[Store], object], store: Store, at: int, kind: str
) -> tuple[str | None, BaseException | None]:
    """Make a change with a fault: the operation that was hit, and the error, checked."""
    fault, caught = FAULTS[kind](), None
    disk.arm(at, raising(fault))
    try:
        act(store)
    except (WriteFailed, RuntimeError, KeyboardInterrupt) as error:
        caught = error
    hit = disk.struck
    disk.arm(0, raising(fault))
    if isinstance(fault, OSError) and caught:
        assert isinstance(caught, WriteFailed)
        assert str(fault.strerror) in str(caught)
    else:
        assert caught in (None, fault)
    return hit, caught


@pytest.mark.guarantee("G5")
def test_a_run_whose_save_failed_goes_on_saving(folder, seams):
    disk = seams.disk(Faulty())
    run = Store(folder).run("first")
    run.save(0, state(0, weight=7))
    step = 0
    outcomes = set()
    for at, kind in zip(itertools.count(1, 2), itertools.cycle(FAULTS), strict=False):
        step += 1
        save = partial(_save, run, step, state(step, weight=7))
        hit, caught = fail(disk, save, Store(folder), at, kind)
        if hit is None:
            break
        committed = [each.step for each in run.checkpoints()]
        assert step in committed or caught
        outcomes.add(step in committed)
        # The same step, or the next one if it is there: no retry is in its own way.
        step += step in committed
        run.save(step, state(step, weight=7))
        assert same(run.load(), state(step, weight=7))
    assert at > 20
    assert outcomes == {True, False}
    for checkpoint in run.checkpoints():
        assert same(checkpoint.state(), state(checkpoint.step, weight=7))
    run.close()
    check_next_save(Store(folder), {("first", 0): None})


def _save(run: Run, step: int, new: State, store: Store) -> None:
    run.save(step, new)


# Kills


@pytest.mark.guarantee("G1")
@stride
@pytest.mark.parametrize("name", kept(CHANGES, *list(CHANGES)[1:4], "a delete"))
def test_a_change_killed_at_any_operation_leaves_the_old_state_or_the_new_one(name, stride, folder):
    change = CHANGES[name]
    *killed, done = killed_at_each(change, folder, stride)
    left = 0
    is_new = []
    for number, path in enumerate(killed):
        store = Store(path)
        is_new.append(check_between(store, change.before, change.after))
        left += len(leftovers(store))
        if stride == 1 or number % 2:
            if DAMAGED not in change.before.values():
                assert examine(store.backend, store.index).sound
            check_next_save(store, change.ever)
        store.index.close()
    assert is_new == sorted(is_new), "the new state was there, and then the old one again"
    assert {True, False} == set(is_new)
    assert check_between(Store(done), change.before, change.after)
    assert left > 0, "no kill left anything behind: were they early enough?"


@pytest.mark.guarantee("G15")
@stride
@pytest.mark.parametrize(
    "name", kept(TRASH_CHANGES, "a delete through the trash", "a restored run")
)
def test_a_kill_at_any_operation_on_the_trash_loses_nothing(name, stride, folder):
    change = TRASH_CHANGES[name]
    killed = killed_at_each(change, folder, stride)
    both = 0
    for number, path in enumerate(killed):
        store = Store(path)
        both += _is_twice(store)
        if number % 2 and not _is_done(store, name):
            whole = len(store.index.steps(store.run("first").hash)) == 3
            change.act(store)  # again: it makes no second copy of the same
            found = Trash(store.backend).entries()
            assert len(found) == ("through" in name) or (not whole and len(found) == 2)
        check_in_store_or_trash(store, FOUR, emptied=name == EMPTIED)
        Trash(store.backend).empty()
        assert Trash(store.backend).nbytes() == 0
        if number % 3 == 0:
            check_next_save(store, FOUR)
        store.index.close()
    assert both or name == EMPTIED, "no kill came between the two halves"


def _is_done(store: Store, name: str) -> bool:
    """Whether a change that was killed had nothing left to do that could be asked for again."""
    if "through" in name:
        return ("first", 2) not in contents(store)
    return not Trash(store.backend).entries()


def _is_twice(store: Store) -> bool:
    """Whether a checkpoint is in its run and in the trash."""
    store.index.refresh()
    return any(
        step in store.index.steps(entry.run)
        for entry in Trash(store.backend).entries()
        for step in entry.steps
    )

"""What is done to a store while something goes wrong, and what it holds before and after."""

import errno
import itertools
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from standfast import KeepAll, KeepLast
from standfast.errors import WriteFailed
from standfast.files import disk
from standfast.policies import Policies, Policy, retention
from standfast.store import Store
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.restoring import restore
from standfast.store.retention.retaining import retain
from standfast.store.retention.trash import Trash
from standfast.store.schema import names
from tests.kit.disk_faults import kill
from tests.kit.fault_states import DAMAGED, TAG, Contents, Faulty, copy_store, state

Act = Callable[[Store], object]
_LONGEST = 60
"""A child that hangs is ended after so many seconds."""


@dataclass(frozen=True)
class Change:
    """One change of a store."""

    prepare: Callable[[Path], None]
    act: Act
    before: Contents
    after: Contents

    @property
    def ever(self) -> Contents:
        """All that the store holds before or after it."""
        return {**self.before, **self.after}


def killed_at_each(change: Change, folder: Path, stride: int) -> list[Path]:
    """The stores in which a process was killed at the operations of a change: each stride-th.

    Each is that of a child that was forked; the last one was not killed.
    """
    change.prepare(folder / "prepared")
    paths: list[Path] = []
    for at in itertools.count(1, stride):
        paths.append(folder / str(at))
        copy_store(folder / "prepared", paths[-1])
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(_LONGEST)
                disk.LOCAL = Faulty(at, kill)  # type: ignore[misc]
                change.act(Store(paths[-1]))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            assert code == 0
            return paths
    raise AssertionError


def saved(contents: Contents, then: Act = lambda store: None) -> Callable[[Path], None]:
    """Make a store of these checkpoints, and do something to it."""

    def prepare(path: Path) -> None:
        store = Store(path)
        for (name, step), each in contents.items():
            store.run(name).save(step, each)
        then(store)
        store.index.close()

    return prepare


def without(contents: Contents, *keys: tuple[str, int]) -> Contents:
    return {key: each for key, each in contents.items() if key not in keys}


def of_run(contents: Contents, name: str) -> Contents:
    return {key: each for key, each in contents.items() if key[0] == name}


ONE: Contents = {("first", 1): state(1)}
TWO: Contents = ONE | {("first", 2): state(2, weight=1)}
THREE: Contents = TWO | {("first", 3): state(3)}
SHARED: Contents = TWO | {("second", 1): state(4, weight=1)}
REPLACED: Contents = ONE | {("first", 2): state(5, weight=1)}
REPAIRED: Contents = {
    ("first", 1): state(1),
    ("first", 2): state(2),
    ("second", 1): state(6, weight=1),
}
TAGGED: Contents = {(TAG + "paper", 1): "first"} | TWO
UNREPAIRED: Contents = REPAIRED | {("first", 1): DAMAGED}
FOUR: Contents = {**THREE, ("second", 1): THREE["first", 1]}
"""What goes into the trash and comes out of it."""


def _note(store: Store) -> None:
    store.run("first").checkpoint(2).note("not needed any more")


def _with_damage(path: Path) -> None:
    """A chunk that is stored twice, because an index was lost; the first copy is damaged."""
    saved(of_run(REPAIRED, "first"))(path)
    shutil.rmtree(path / "checkpoints" / ".standfast")
    saved(of_run(REPAIRED, "second"))(path)
    store = Store(path)
    run = store.run("first")
    file = run.checkpoint(1).head.files[0]
    assert "model" in file.name
    store.index.close()
    data_file = path / "checkpoints" / names.run_folder(run.hash) / file.name
    data = bytearray(data_file.read_bytes())
    data[-file.held + 1000] ^= 1  # in the weight, which is nearly all of it
    data_file.write_bytes(data)


def _save(name: str, step: int, contents: Contents, replace: bool = False) -> Act:
    def act(store: Store) -> None:
        with store.run(name) as run:
            run.save(step, contents[name, step], replace=replace)

    return act


def _delete(trash: str | None = None) -> Act:
    return lambda store: store.run("first").delete(2, trash=trash)


def _delete_run(trash: str | None = None) -> Act:
    return lambda store: store.run("first").delete_all(trash=trash)


def _retain(keep: Policy | Policies) -> Act:
    def act(store: Store) -> None:
        done = retain(store, store.run("first").hash, retention(keep))
        for problem in done.problems:
            raise WriteFailed(errno.EIO, problem)

    return act


def _without_optimizer(each: Contents) -> Contents:
    return {key: {k: v for k, v in each[key].items() if k != "optimizer"} for key in each}  # type: ignore[union-attr]


def _examine(store: Store) -> None:
    found = examine(store.backend, store.index)
    if found.damaged:  # it goes on after an error, and lists it
        raise WriteFailed(errno.EIO, str(found.damaged))


def _tag(store: Store) -> None:
    store.run("first").checkpoint(1).tag("paper")


def _restore(store: Store) -> None:
    restore(store.backend, store.index, Trash(store.backend).entries()[0].run)
    store.write_manifest()


def _empty(store: Store) -> None:
    Trash(store.backend).empty()


CHANGES = {
    "the first save of a store": Change(lambda path: None, _save("first", 1, ONE), {}, ONE),
    "a save that refers to the one before": Change(saved(ONE), _save("first", 2, TWO), ONE, TWO),
    "a save that links a file of another run": Change(
        saved(TWO), _save("second", 1, SHARED), TWO, SHARED
    ),
    "a save that replaces a step": Change(
        saved(TWO), _save("first", 2, REPLACED, replace=True), TWO, REPLACED
    ),
    "a delete": Change(saved(THREE, _note), _delete(), THREE, without(THREE, ("first", 2))),
    "a delete of a run": Change(saved(SHARED), _delete_run(), SHARED, of_run(SHARED, "second")),
    "a policy that deletes": Change(
        saved(THREE, _note), _retain(KeepLast(2)), THREE, without(THREE, ("first", 1))
    ),
    "a policy that deletes a part": Change(
        saved(TWO), _retain(KeepAll(without="optimizer")), TWO, TWO | _without_optimizer(ONE)
    ),
    "a delete into the trash": Change(
        saved(THREE, _note), _delete("rm"), THREE, without(THREE, ("first", 2))
    ),
    "a doctor's repair": Change(_with_damage, _examine, UNREPAIRED, REPAIRED),
    "a tag": Change(saved(TWO), _tag, TWO, TAGGED),
}

WITHOUT: Contents = without(FOUR, ("first", 2))
SECOND: Contents = of_run(FOUR, "second")
EMPTIED = "an emptied trash"
TRASH_CHANGES = {
    "a delete through the trash": Change(saved(FOUR), _delete("rm"), FOUR, WITHOUT),
    "a run through the trash": Change(saved(FOUR), _delete_run("rm"), FOUR, SECOND),
    "a restored checkpoint": Change(saved(FOUR, _delete("rm")), _restore, WITHOUT, FOUR),
    "a restored run": Change(saved(FOUR, _delete_run("rm")), _restore, SECOND, FOUR),
    EMPTIED: Change(saved(FOUR, _delete("rm")), _empty, WITHOUT, WITHOUT),
}

"""What is done to a store while something goes wrong, and what it holds before and after."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from standfast import KeepAll, KeepLast
from standfast.errors import WriteFailed
from standfast.policies import Policies, Policy, retention
from standfast.store import Store
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.retaining import retain
from standfast.store.schema import names
from tests.kit.fault_states import DAMAGED, TAG, Contents, state


@dataclass(frozen=True)
class Change:
    """One change of a store."""

    prepare: Callable[[Path], None]
    act: Callable[[Store], None]
    before: Contents
    after: Contents

    @property
    def ever(self) -> Contents:
        """All that the store holds before or after it."""
        return {**self.before, **self.after}


def saved(contents: Contents) -> Callable[[Path], None]:
    """Make a store of these checkpoints."""

    def prepare(path: Path) -> None:
        store = Store(path)
        for (name, step), each in contents.items():
            store.run(name).save(step, each)
        store.index.close()

    return prepare


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


def _with_a_note(path: Path) -> None:
    saved(THREE)(path)
    store = Store(path)
    store.run("first").checkpoint(2).note("not needed any more")
    store.index.close()


def _with_damage(path: Path) -> None:
    """A chunk that is stored twice, because an index was lost; the first copy is damaged."""
    saved({key: each for key, each in REPAIRED.items() if key[0] == "first"})(path)
    shutil.rmtree(path / "checkpoints" / ".standfast")
    saved({key: each for key, each in REPAIRED.items() if key[0] == "second"})(path)
    store = Store(path)
    run = store.run("first")
    file = run.checkpoint(1).head.files[0]
    assert "model" in file.name
    store.index.close()
    data_file = path / "checkpoints" / names.run_folder(run.hash) / file.name
    data = bytearray(data_file.read_bytes())
    data[-file.held + 1000] ^= 1  # in the weight, which is nearly all of it
    data_file.write_bytes(data)


def _save_into(
    name: str, step: int, contents: Contents, replace: bool = False
) -> Callable[..., None]:
    def act(store: Store) -> None:
        with store.run(name) as run:
            run.save(step, contents[name, step], replace=replace)

    return act


def _retain(keep: Policy | Policies) -> Callable[[Store], None]:
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


CHANGES = {
    "the first save of a store": Change(lambda path: None, _save_into("first", 1, ONE), {}, ONE),
    "a save that refers to the one before": Change(
        saved(ONE), _save_into("first", 2, TWO), ONE, TWO
    ),
    "a save that links a file of another run": Change(
        saved(TWO), _save_into("second", 1, SHARED), TWO, SHARED
    ),
    "a save that replaces a step": Change(
        saved(TWO), _save_into("first", 2, REPLACED, replace=True), TWO, REPLACED
    ),
    "a delete": Change(
        _with_a_note,
        lambda store: store.run("first").delete(2),
        THREE,
        {key: each for key, each in THREE.items() if key != ("first", 2)},
    ),
    "a delete of a run": Change(
        saved(SHARED),
        lambda store: store.run("first").delete_all(),
        SHARED,
        {key: each for key, each in SHARED.items() if key[0] == "second"},
    ),
    "a policy that deletes": Change(
        _with_a_note,
        _retain(KeepLast(2)),
        THREE,
        {key: each for key, each in THREE.items() if key != ("first", 1)},
    ),
    "a policy that deletes a part": Change(
        saved(TWO), _retain(KeepAll(without="optimizer")), TWO, TWO | _without_optimizer(ONE)
    ),
    "a delete into the trash": Change(
        _with_a_note,
        lambda store: store.run("first").delete(2, trash="rm"),
        THREE,
        {key: each for key, each in THREE.items() if key != ("first", 2)},
    ),
    "a doctor's repair": Change(_with_damage, _examine, UNREPAIRED, REPAIRED),
    "a tag": Change(
        saved(TWO), lambda store: store.run("first").checkpoint(1).tag("paper"), TWO, TAGGED
    ),
}

"""Which checkpoint `latest` and `best` are: the newest that is intact, if the one meant is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from standfast.errors import (
    DamagedFile,
    FellBack,
    RefNotFound,
    StateMismatch,
    TooNew,
    UnreadableFile,
)
from standfast.store.checkpoint import Checkpoint
from standfast.store.schema import names
from standfast.store.schema.damage import is_damage

if TYPE_CHECKING:
    from standfast.store.store import Store

_ATTEMPTS: Final = 10
"""How often a checkpoint is looked for that others delete or replace at the same time."""

Result = TypeVar("Result")


def with_latest(store: Store, action: Callable[[Checkpoint], Result], run: str | None) -> Result:
    """Do it with the newest checkpoint, of a run or of the store, that it can be done with."""
    return _with_newest(store, action, run, _unreadable(store, run))


def with_best(store: Store, action: Callable[[Checkpoint], Result], run: str) -> Result:
    """Do it with the best checkpoint of a run, or if that is damaged with the latest."""
    problems = _unreadable(store, run)
    if newer := store.index.newer_marks(run):
        raise TooNew(newer)
    problems += store.index.unreadable_marks(run).values()
    for _ in range(_ATTEMPTS):
        best = store.index.best(run)
        if best is None and not problems:
            raise RefNotFound(f"run {run}: no checkpoint of it was the best")
        if best is None:
            break
        checkpoint = Checkpoint(store, best.head)
        try:
            result = action(checkpoint)
            if problems:  # what cannot be read may have made another the best
                _fell_back(problems, checkpoint)
            return result
        except (DamagedFile, UnreadableFile) as error:
            if not is_damage(error):
                raise
            problems.insert(0, str(error))
            break
        except RefNotFound:
            store.index.refresh()  # deleted or replaced this moment
    return _with_newest(store, action, run, problems)


def _unreadable(store: Store, run: str | None) -> list[str]:
    """What is wrong with records that cannot be read; raises TooNew if a newer version wrote one.

    That one may be the checkpoint that is asked for, and is not damaged: there is no reason to
    take another.
    """
    newer = set(store.index.too_new(run))
    for each in store.index.unreadable(run):
        if each in newer:
            raise TooNew(f"{names.record_file(*each[:2])}: {each[2]}")
    return [
        f"{names.record_file(damaged, step)}: {problem}"
        for damaged, step, problem in store.index.unreadable(run)
    ]


def _with_newest(
    store: Store, action: Callable[[Checkpoint], Result], run: str | None, problems: list[str]
) -> Result:
    where = f"run {run}" if run else store.url
    for _ in range(_ATTEMPTS):
        found = [*problems]
        for listed in store.index.newest(run):
            checkpoint = Checkpoint(store, listed.head)
            try:
                result = action(checkpoint)
            except (DamagedFile, UnreadableFile) as error:
                if not is_damage(error):
                    raise
                found.append(str(error))
                continue
            except StateMismatch as error:
                if found:
                    error.args = (f"{error}\n{checkpoint.ref} was tried because: {found[0]}",)
                raise
            except RefNotFound:
                break  # deleted or replaced this moment: look again
            if found:
                _fell_back(found, checkpoint)
            return result
        else:
            if found:
                raise DamagedFile(f"{where} has no intact checkpoint: {'; '.join(found[:3])}")
            raise RefNotFound(f"{where} has no checkpoint yet")
        store.index.refresh()
    raise RefNotFound(f"{where}: its checkpoints come and go faster than they can be read")


def _fell_back(problems: list[str], to: Checkpoint) -> None:
    """Say that not the checkpoint that was asked for was taken."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    warnings.warn(
        f"{problems[0]}{more}: fell back to {to.ref}, the newest intact checkpoint; "
        "`standfast doctor` looks into it",
        FellBack,
        stacklevel=7,
    )

"""The ranks of a training program, as its Checkpointer has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from standfast.errors import RankError, RanksDisagree
from standfast.parallel import (
    Communicator,
    SingleRank,
    agree,
    communicator,
    may_run_in_thread,
    on_root,
    program_ranks,
    together,
)
from standfast.store import Run, Store
from standfast.store.schema.run_file import RunFile
from standfast.store.tree.per_rank import Rank
from standfast.training.beginning import Beginning

_PAUSE: Final = 1.0
"""About so many seconds pass between two steps at which the ranks talk to each other."""
_MOST: Final = 64
"""So many steps at most: they may become slower."""


class Decision(NamedTuple):
    """What all ranks do after a step."""

    save: bool = False
    stop: bool = False
    """Whether a signal has asked any of them to end."""
    talked: bool = False
    """Whether the ranks have talked about it."""


class _Word(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says when the ranks talk."""

    step: int
    asked: bool
    """Whether it got a signal to end."""
    wish: bool
    """Whether it would save: that of rank 0 counts."""
    next: int
    """The step at which they talk again: that of rank 0 counts."""


class Crew:
    """All ranks of the program, or this process alone; one thread uses it."""

    def __init__(self, comm: Communicator) -> None:
        """Collective."""
        self.ranks: Final = Rank(comm.rank, comm.size)
        alone = comm.size == 1
        self._comm: Communicator = SingleRank() if alone else comm.duplicate()
        self.saving: Communicator = SingleRank() if alone else comm.duplicate()
        """For the thread that saves."""
        self._next = 0
        self._stride = 1
        self._since: tuple[int, float] | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is the one that commits, logs and speaks."""
        return self.ranks.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return self.ranks.size == 1

    def may_save_in_thread(self) -> bool:
        """Whether a thread can talk to the other ranks, while the program does."""
        return may_run_in_thread(self.saving)

    def begin(self, store: Store, hp: Any, action: Callable[[], Beginning]) -> Beginning:
        """Collective: have rank 0 find the run, and all ranks go on with it."""
        if self.is_alone:
            return action()
        found: list[Beginning] = []

        def on_first() -> list[Any]:
            found.append(action())
            beginning = found[0]
            parent = beginning.parent and [beginning.parent.head.run, beginning.parent.step]
            file = msgspec.msgpack.encode(beginning.run.file)
            return [file, parent, [*beginning.notes], beginning.is_new]

        file, parent, notes, is_new = on_root(self._comm, on_first)
        if found:
            return found[0]

        def follow() -> Beginning:
            run = Run(store, msgspec.msgpack.decode(file, type=RunFile))
            return Beginning(
                run, hp, store.checkpoint(*parent) if parent else None, tuple(notes), is_new
            )

        return follow()

    def agree(self, what: str, value: Any) -> None:
        """Collective: raise RanksDisagree unless all ranks have the same, of JSON's types."""
        agree(self._comm, what, value)

    def together(self, action: Callable[[], Any]) -> Any:
        """Collective: do something on each rank; if it fails on one, it fails on all."""
        return together(self._comm, action)

    def tell(self, action: Callable[[], Any]) -> Any:
        """Collective: what rank 0 finds out, of JSON's types."""
        return on_root(self._comm, action)

    @property
    def comm(self) -> Communicator:
        """For what is done before and after the loop."""
        return self._comm

    def decide(self, step: int, asked: bool, wish: Callable[[], bool]) -> Decision:
        """What to do after a step, the same on all ranks; it is collective now and then.

        `asked` says that a signal came to this rank, and `wish` whether it would save. The ranks
        talk about once a second, at steps that rank 0 sets, and not in between.
        """
        if self.is_alone:
            return Decision(wish() if not asked else False, asked)
        if step < self._next:
            return Decision()
        word = _Word(step, asked, self.is_first and wish(), step + self._paced(step))
        words = [
            msgspec.msgpack.decode(each, type=_Word)
            for each in self._comm.all_gather(msgspec.msgpack.encode(word))
        ]
        self._next = words[0].next
        if any(each.step != step for each in words):
            steps = ", ".join(str(each.step) for each in words)
            raise RanksDisagree(
                f"the ranks are at steps {steps}: all must call `step` after each of them"
            )
        return Decision(words[0].wish, any(each.asked for each in words), talked=True)

    def _paced(self, step: int) -> int:
        """So many steps from now the ranks talk again."""
        now = time.monotonic()
        if self._since is not None:
            steps, seconds = step - self._since[0], now - self._since[1]
            wanted = steps * _PAUSE / max(seconds, 1e-9)
            self._stride = int(min(max(wanted, 1), 2 * self._stride, _MOST))
        self._since = step, now
        return self._stride

    def close(self, error: BaseException | None) -> None:
        """Collective, unless something went wrong here, which the others are told."""
        kind = type(error) if error is not None else None
        for comm in (self._comm, self.saving):
            with suppress(RankError):  # who is lost now is not needed any more
                comm.__exit__(kind, error, None)


def crew_of(comm: Any) -> Crew:
    """Collective: the ranks that a program names, or all that it has."""
    return Crew(program_ranks() if comm is None else communicator(comm))

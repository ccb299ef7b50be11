"""A run that goes on where its local store is gone, or older: its mirror has the checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

import msgspec

from standfast.errors import (
    DamagedFile,
    FellBack,
    MissingFile,
    RefNotFound,
    StandfastError,
    TooNew,
)
from standfast.files.paths import is_url
from standfast.identity import Identity
from standfast.store import Checkpoint, Store
from standfast.store.copies.copy import copy_checkpoint
from standfast.store.query.locations import Seen, look_at
from standfast.store.query.mirrors import is_another_run, is_same, open_mirror
from standfast.store.save.taken import change_run
from standfast.store.schema.record import Head
from standfast.store.schema.run_file import RunFile, known_from, read_run
from standfast.store.store import labelled

_HURRY: Final = 10.0
"""So many seconds a mirror has to answer if the run can go on without it."""
_PATIENCE: Final = 120.0
"""So many it has if it cannot."""


class Elsewhere:
    """The mirror of a program that begins: what it has of runs, and brings back of one.

    It is looked at once, when something is first asked.
    """

    def __init__(self, store: Store, place: str, say: Callable[[str], None]) -> None:
        self._store = store
        self._place = place
        self._say = say
        self._seen: Seen | None = None

    def may_have(self, run: str) -> bool:
        """Whether the mirror has a run of this hash; said if nobody knows, and False."""
        is_first = self._seen is None
        seen = self._look(_HURRY)
        if is_first and seen.problem is not None and not seen.is_missing:
            self._say(
                f"the mirror {self._place} cannot be reached ({seen.problem}): if it has a run "
                "like this one already, nothing of this one is copied there"
            )
        return self._known(seen, run) is not None

    def run_file(self, run: str) -> RunFile | None:
        """What the mirror says a run is, which has no checkpoint here; None if it has none.

        Raises RefNotFound if nobody knows.
        """
        seen = self._look(_PATIENCE)
        self._check_reached(seen, run)
        return self._known(seen, run)

    def labelled(
        self, name: str, identity: Identity, hp: Any, volatile: Collection[str]
    ) -> RunFile | None:
        """The run with this label and these settings, if none has this identity."""
        seen = self._look(_PATIENCE)
        if seen.problem is not None or self._known(seen, identity.hash) is not None:
            return None
        return labelled(open_mirror(self._place), name, identity, hp, volatile)

    def _known(self, seen: Seen, run: str) -> RunFile | None:
        if seen.is_missing:
            return None
        newest = next(seen.index.newest(run), None)
        return seen.index.run_file(run) or (known_from(newest.head) if newest else None)

    def _look(self, patience: float) -> Seen:
        if self._seen is None:
            if patience == _PATIENCE and is_url(self._place):
                self._say(f"looking for a checkpoint in the mirror {self._place}")
            self._seen = look_at([self._place], patience)[self._place]
        return self._seen

    def _check_reached(self, seen: Seen, run: str) -> None:
        if seen.problem is not None and not seen.is_missing:
            raise RefNotFound(
                f"{self._store.url} has no checkpoint of run {run}, and whether the mirror "
                f"{self._place} has one nobody can say: {seen.problem}; start it again when it can "
                "be reached, or without a mirror"
            )

    def bring_back(self, run: str) -> None:
        """Copy the latest checkpoint of a run out of the mirror, if the store has none as new.

        A mirror that cannot be reached is no reason to fail where there is a checkpoint to go on
        from; where there is none, raises RefNotFound: to begin anew could be to lose all that was
        done, and so DamagedFile if none in the mirror is intact. If one there is damaged, another
        is taken with a FellBack warning; if one is too new, raises TooNew.
        """
        self._store.index.refresh()
        here = next((listed.head for listed in self._store.index.newest(run)), None)
        seen = self._look(_PATIENCE if here is None else _HURRY)
        if seen.is_missing:
            return
        if here is None:
            self._check_reached(seen, run)
        elif seen.problem is not None:
            self._say(
                f"the mirror {self._place} cannot be reached ({seen.problem}); the run goes on "
                "without it"
            )
            return
        if newer := seen.index.newer(run):  # it may be the latest
            raise TooNew(f"the mirror {self._place}: {newer}")
        known = self._store.index.steps(run)
        damaged = seen.index.unreadable(run)
        problems = [f"step {step}: {problem}" for _, step, problem in damaged if step not in known]
        is_done = any(
            (here is not None and not self._is_wanted(listed.head, here, seen))
            or self._bring(listed.head, problems, is_needed=here is None)
            for listed in seen.index.newest(run)
        )
        if problems:
            text = f"the mirror {self._place}: {'; '.join(problems[:3])}"
            if here is None and not is_done:
                raise DamagedFile(f"{text}: no checkpoint there is intact")
            text += ": the run goes on from the newest intact checkpoint"
            warnings.warn(text, FellBack, stacklevel=1)

    def _bring(self, head: Head, problems: list[str], is_needed: bool) -> bool:
        """Copy one, if that can be; False if it is damaged, and the one before it may do."""
        mirror = open_mirror(self._place)
        try:
            if is_needed and not self._store.index.steps(head.run):
                _adopt(self._store, mirror, head.run)
            copy_checkpoint(Checkpoint(mirror, head), self._store)
        except DamagedFile as error:
            problems.append(f"step {head.step}: {error}")
            return False
        except RefNotFound as error:
            self._say(f"step {head.step} of the mirror {self._place} cannot be used: {error}")
            return False
        except StandfastError as error:
            if is_needed:
                raise
            self._say(f"step {head.step} stays in the mirror {self._place}: {error}")
            return True
        self._say(f"step {head.step} was brought back from the mirror {self._place}")
        return True

    def _is_wanted(self, there: Head, here: Head, seen: Seen) -> bool:
        """Whether a checkpoint of the mirror goes on from the latest here; said if it may not."""
        known = self._store.index.record(there.run, there.step)
        if known is not None and is_same(known.head, there):
            return False
        # Numbers count the commits of one store. If the mirror has the one here too, a higher
        # number came after it, whatever the clocks of two machines say.
        ours = seen.index.record(here.run, here.step)
        has_ours = ours is not None and is_same(ours.head, here)
        is_later, is_higher = there.time > here.time, there.sequence > here.sequence
        if not is_later and not is_higher:
            return False
        why = self._parted(seen, here.run)
        if why is None and is_higher and (is_later or has_ours):
            return True
        by = "time" if is_later else "number"
        self._say(
            f"step {there.step} of the mirror {self._place} is later, but "
            f"{why or f'by its {by} alone: a clock may have been wrong'}; the run goes on from "
            "what is here"
        )
        return False

    def _parted(self, seen: Seen, run: str) -> str | None:
        """How the history in the mirror is another than the one here; None if it is not."""
        ours, theirs = self._store.index.run_file(run), seen.index.run_file(run)
        if ours and theirs and is_another_run(ours, theirs):
            return f"of another run, made on {theirs.created[:19].replace('T', ' ')}"
        there = {listed.step: listed.head for listed in seen.index.newest(run)}
        for listed in self._store.index.newest(run):
            if listed.step in there and not is_same(listed.head, there[listed.step]):
                return f"of another history: step {listed.step} is another there than here"
        return None


def _adopt(store: Store, mirror: Store, run: str) -> None:
    """Let a run that was made here and has no checkpoint be the one that the mirror has."""
    with suppress(MissingFile, DamagedFile):
        theirs = read_run(mirror.backend, run)
        change_run(
            store.backend,
            store.index,
            run,
            lambda ours: (
                msgspec.structs.replace(theirs, retention=ours.retention, monitor=ours.monitor)
                if ours.created != theirs.created
                else ours
            ),
        )

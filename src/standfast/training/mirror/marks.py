"""Tags, notes and late metrics, which follow a checkpoint into its mirror whenever they change."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from standfast.store import Store
from standfast.store.query.mirrors import is_same
from standfast.store.save.changing import change_of
from standfast.store.save.taken import changing
from standfast.store.schema.marks import Marks, change_marks, read_marks
from standfast.store.schema.record import Place


class CopiedMarks:
    """The marks of a run that its mirror knows."""

    def __init__(self, local: Store, run: str) -> None:
        self._local = local
        self._run = run
        self._known: dict[int, Marks] = {}
        """By step, those that were copied last."""
        self._elsewhere: dict[int, str] = {}
        """By step, what is said of a tag that is on another checkpoint of the mirror."""

    @property
    def problems(self) -> list[str]:
        """The tags that the mirror has elsewhere, a sentence each."""
        return [*self._elsewhere.values()]

    def copy(self, mirror: Store) -> bool:
        """Let the mirror know all of them; what it has of its own stays.

        Returns whether any had changed.
        """
        found = False
        marked = sorted(self._local.index.marked(self._run))
        self._elsewhere = {
            step: self._elsewhere[step] for step in marked if step in self._elsewhere
        }
        for step in marked:
            place = self._place_in(mirror, step)
            if place is not None:
                marks = read_marks(self._local.backend, place)
                if marks != self._known.get(step):
                    self._add(mirror, marks)
                    self._known[step], found = marks, True
        if found:
            mirror.index.refresh()
        return found

    def _place_in(self, mirror: Store, step: int) -> Place | None:
        """The checkpoint of a step, if the mirror has it too."""
        here = self._local.index.record(self._run, step)
        there = mirror.index.record(self._run, step)
        return here.head.place if here and there and is_same(here.head, there.head) else None

    def _add(self, mirror: Store, marks: Marks) -> None:
        with change_of(mirror.backend, "tags"), changing(mirror.backend, mirror.index, self._run):
            taken = {tag: on for tag in marks.tags if (on := self._bearer(mirror, tag, marks.step))}
            change_marks(mirror.backend, marks.place, lambda theirs: _joined(marks, theirs, taken))
        self._elsewhere.pop(marks.step, None)
        for tag, on in taken.items():
            self._elsewhere[marks.step] = (
                f"the tag {tag!r} is on step {marks.step} here, and stays on {on} in the mirror: "
                f"`standfast tag --delete {tag} --store {mirror.place}` removes it there, and the "
                "next start of the program copies it"
            )

    def _bearer(self, mirror: Store, tag: str, step: int) -> str:
        """The other checkpoint of the mirror that bears a tag; empty if none does."""
        for run, other in mirror.index.tagged(tag, surely=True):
            if (run, other) != (self._run, step):
                return f"step {other}" if run == self._run else f"{run}@{other}"
        return ""


def _joined(ours: Marks, theirs: Marks, taken: Collection[str]) -> Marks:
    tags = [tag for tag in ours.tags if tag not in theirs.tags and tag not in taken]
    notes = [note for note in ours.notes if note not in theirs.notes]
    return msgspec.structs.replace(
        theirs,
        tags=[*theirs.tags, *tags],
        notes=[*theirs.notes, *notes],
        metrics=theirs.metrics | ours.metrics,
        best=ours.best,
        others=ours.others | theirs.others,
    )

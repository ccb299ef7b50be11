"""`holdfast rm`: checkpoints and runs go to the trash, once it was shown what would go."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.cli.output import count_text, print_json, say, size_text
from holdfast.errors import AmbiguousRef, Protected, RefNotFound, printable
from holdfast.store import Run, Store
from holdfast.store.space import Space
from holdfast.store.trash import Trash


@dataclass
class Doomed:
    """What of a run is to be deleted."""

    run: Run
    steps: list[int] = field(default_factory=list)
    whole: bool = False

    def lines(self) -> Iterator[str]:
        """What it is, for people."""
        name = f" ({self.run.name})" if self.run.name else ""
        if self.whole:
            yield f"run {self.run.hash}{name} with {count_text(len(self.steps), 'checkpoint')}"
        else:
            yield from (f"{self.run.hash}@{step}{name}" for step in self.steps)

    def refs(self) -> list[str]:
        """What it is called on the command line."""
        label = self.run.name or self.run.hash
        return [label] if self.whole else [f"{label}@{step}" for step in self.steps]


def remove(store: Store, refs: Sequence[str], *, yes: bool, as_json: bool) -> None:
    """Print what would be deleted, or with `yes` put it into the trash."""
    store.index.refresh()
    doomed = _doomed(store, refs)
    nbytes = _frees(store, doomed)
    if not yes:
        _report(store, doomed, nbytes, as_json)
        return
    done: list[Doomed] = []
    try:
        for each in doomed:
            if each.whole:
                each.run.delete_all(trash="rm")
            else:
                each.run.delete(*each.steps, trash="rm")
            done.append(each)
    finally:  # if one is refused, those before it are gone
        if as_json:
            print_json(_as_json(store, done, nbytes, deleted=True))
        else:
            _print_done(store, done, nbytes)


def _print_done(store: Store, done: list[Doomed], nbytes: int) -> None:
    for line in _lines(done):
        say(("deleted     ", "green"), line)
    if not done:
        return
    if not _is_in_trash(store, done):
        say(f"            {size_text(nbytes)} freed: without hard links there is no trash here")
        return
    refs = [shlex.quote(ref) for each in done for ref in each.refs()]
    back = f"holdfast restore {' '.join(refs)}" if len(refs) <= 3 else "holdfast restore"
    how = "brings it back" if len(refs) <= 3 else "lists what can come back"
    size = size_text(Trash(store.backend).nbytes())
    say(
        printable(
            f"            moved to the trash; `{back}` {how}, `holdfast gc --empty --yes` "
            f"frees {size}"
        )
    )


def _is_in_trash(store: Store, done: Iterable[Doomed]) -> bool:
    """Whether what was deleted can come back."""
    trash = Trash(store.backend)
    return all(
        any({*each.steps} <= {*entry.steps} for entry in trash.entries(each.run.hash))
        for each in done
    )


def _doomed(store: Store, refs: Iterable[str]) -> list[Doomed]:
    found: dict[str, Doomed] = {}
    for ref in refs:
        run, step = _target(store, ref)
        each = found.setdefault(run.hash, Doomed(run))
        if step is None:
            each.whole, each.steps = True, store.index.steps(run.hash)
        elif step not in each.steps:
            each.steps.append(step)
    return list(found.values())


def _target(store: Store, ref: str) -> tuple[Run, int | None]:
    """The run, and the step where one is given: `latest` and `best` move, and are no such thing."""
    name, at, step = ref.partition("@")
    if not at:
        tagged = store.tagged(ref)
        if tagged is not None and store.index.runs(name=ref):
            raise AmbiguousRef(f"{ref!r} is a tag and the name of a run: say RUN@STEP, or a hash")
        if tagged is not None:
            return tagged.run, tagged.step
        return store.find_run(name), None
    run = store.find_run(name)
    if not (step.isascii() and step.isdecimal()):
        raise RefNotFound(f"{ref}: which step? rm wants it as a number; `holdfast ls {name}`")
    if int(step) not in store.index.steps(run.hash):
        raise RefNotFound(f"run {run.hash} has no checkpoint of step {int(step)}")
    return run, int(step)


def _frees(store: Store, doomed: Iterable[Doomed]) -> int:
    """The bytes that are free once all of it is deleted, and the trash emptied."""
    space = Space(store.backend, store.index, {each.run.hash for each in doomed})
    return sum(
        space.delete_run(each.run.hash)
        if each.whole
        else sum(space.delete(each.run.hash, step) for step in each.steps)
        for each in doomed
    )


def _lines(doomed: Iterable[Doomed]) -> Iterator[str]:
    return (printable(line) for each in doomed for line in each.lines())


def _tags(store: Store, each: Doomed) -> list[str]:
    tags = store.index.tags(each.run.hash)
    return [tag for step in each.steps for tag in tags.get(step, ())]


def _report(store: Store, doomed: list[Doomed], nbytes: int, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(store, doomed, nbytes, deleted=False))
        return
    for line in _lines(doomed):
        say("would go    ", line)
    protected = [why for each in doomed for why in _protected(store, each)]
    for why in protected:
        say(("protected   ", "yellow"), printable(why))
    if not protected:
        size = size_text(nbytes)
        say(f"            {size} would be free once the trash is emptied; --yes moves it there")


def _protected(store: Store, each: Doomed) -> Iterator[str]:
    """Why it cannot be deleted."""
    tags = _tags(store, each)
    yield from (f"by the tag {tag}, which is to go first" for tag in tags)
    if not each.whole and not tags:
        try:
            each.run.check_delete(*each.steps)
        except Protected as error:
            yield str(error)


def _as_json(store: Store, doomed: list[Doomed], nbytes: int, *, deleted: bool) -> dict[str, Any]:
    return {
        "deleted": deleted,
        "in_trash": deleted and _is_in_trash(store, doomed),
        "what": [
            {
                "run": each.run.hash,
                "name": each.run.name,
                "steps": each.steps,
                "whole_run": each.whole,
                "tags": _tags(store, each),
            }
            for each in doomed
        ],
        "bytes": nbytes,
    }

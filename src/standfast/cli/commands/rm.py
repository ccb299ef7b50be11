"""`standfast rm`: checkpoints and runs go to the trash, once it was shown what would go."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from standfast.display.output import count_text, print_json, say, size_text
from standfast.errors import AmbiguousRef, Protected, RefNotFound, printable
from standfast.store import Run, Store
from standfast.store.retention.collection import is_idle
from standfast.store.retention.space import Space
from standfast.store.retention.trash import Trash
from standfast.store.retention.verdicts import IN_USE, protections


@dataclass
class Doomed:
    """What of a run is to be deleted."""

    run: Run
    steps: list[int] = field(default_factory=list)
    whole: bool = False
    frees: int = 0
    """The bytes that are free once it is gone, what comes before it too, and the trash emptied."""

    def lines(self, hints: Mapping[int, Iterable[str]] | None = None) -> Iterator[str]:
        """What it is, for people, and what of it should be known."""
        name = f" ({self.run.name})" if self.run.name else ""
        if self.whole:
            yield f"run {self.run.hash}{name} with {count_text(len(self.steps), 'checkpoint')}"
            return
        for step in self.steps:
            hint = "; ".join((hints or {}).get(step, ()))
            yield f"{self.run.hash}@{step}{name}{f': {hint}' if hint else ''}"

    def refs(self) -> list[str]:
        """What it is called on the command line."""
        label = self.run.name or self.run.hash
        return [label] if self.whole else [f"{label}@{step}" for step in self.steps]


def remove(store: Store, refs: Sequence[str], *, yes: bool, as_json: bool) -> int:
    """Print what would be deleted, or with `yes` put it into the trash; returns the exit code."""
    store.index.refresh()
    doomed = _doomed(store, refs)
    _measure(store, doomed)
    if not yes:
        return _report(store, doomed, as_json)
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
            print_json(_as_json(store, done, deleted=True))
        else:
            _print_done(store, done)
    return 0


def _print_done(store: Store, done: list[Doomed]) -> None:
    for each in done:
        for line in each.lines():
            say(("deleted     ", "green"), printable(line))
    if not done:
        return
    if not _is_in_trash(store, done):
        size = size_text(sum(each.frees for each in done))
        say(f"            {size} freed: without hard links there is no trash here")
        return
    refs = [shlex.quote(ref) for each in done for ref in each.refs()]
    back = f"standfast restore {' '.join(refs)}" if len(refs) <= 3 else "standfast restore"
    how = "brings it back" if len(refs) <= 3 else "lists what can come back"
    size = size_text(Trash(store.backend).nbytes())
    say(
        printable(
            f"            moved to the trash; `{back}` {how}; the whole trash holds {size}, "
            "which `standfast gc --empty --yes` frees"
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
        raise RefNotFound(f"{ref}: which step? rm wants it as a number; `standfast ls {name}`")
    if int(step) not in store.index.steps(run.hash):
        raise RefNotFound(f"run {run.hash} has no checkpoint of step {int(step)}")
    return run, int(step)


def _measure(store: Store, doomed: Iterable[Doomed]) -> None:
    space = Space(store.backend, store.index, {each.run.hash for each in doomed})
    for each in doomed:
        if each.whole:
            each.frees = space.delete_run(each.run.hash)
        else:
            each.frees = sum(space.delete(each.run.hash, step) for step in each.steps)


def _report(store: Store, doomed: list[Doomed], as_json: bool) -> int:
    """Print what `--yes` would do, which stops at the first that is refused."""
    going: list[Doomed] = []
    refusals: list[str] = []
    for each in doomed:
        refusals = list(_refusals(store, each))
        if refusals:
            break
        going.append(each)
    if as_json:
        print_json({**_as_json(store, going, deleted=False), "refused": refusals})
    else:
        for each in going:
            for line in each.lines(protections(store, each.run.hash)):
                say("would go    ", printable(line))
        for why in refusals:
            say(("refused     ", "yellow"), printable(why))
        staying = [line for each in doomed[len(going) :] for line in each.lines()]
        if len(staying) > 1:  # else the refusal names it
            for line in staying:
                say("would stay  ", printable(line))
        if going:
            size = size_text(sum(each.frees for each in going))
            then = f"{size} would be free once the trash is emptied; --yes moves it there"
            if not store.backend.links:
                then = (
                    f"{size} would be freed by --yes; there is no trash in an object store: what "
                    "goes does not come back"
                )
            say(f"            {then}")
    return 2 if refusals else 0


def _refusals(store: Store, each: Doomed) -> Iterator[str]:
    """Why it would not be deleted."""
    run = each.run.hash
    protected = store.index.protected(run)
    kept = [step for step in protected if each.whole or step in each.steps]
    yield from (f"step {step} of run {run} {protected[step]}" for step in kept)
    if kept:
        return
    if each.whole:
        used = [step for step, why in protections(store, run).items() if IN_USE in why]
        yield from (f"step {step} of run {run} is {IN_USE}" for step in used)
        if not is_idle(store.backend, run):
            yield f"run {run}: {store.backend.holder(run)} writes into it; end that first"
        return
    try:
        each.run.check_delete(*each.steps)
    except (Protected, RefNotFound) as error:
        yield str(error)


def _as_json(store: Store, doomed: list[Doomed], *, deleted: bool) -> dict[str, Any]:
    return {
        "deleted": deleted,
        "in_trash": deleted and _is_in_trash(store, doomed),
        "what": [_doomed_json(store, each, deleted) for each in doomed],
        "bytes": sum(each.frees for each in doomed),
    }


def _doomed_json(store: Store, each: Doomed, deleted: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "run": each.run.hash,
        "name": each.run.name,
        "steps": each.steps,
        "whole_run": each.whole,
    }
    if not deleted:
        hints = protections(store, each.run.hash)
        found["hints"] = {step: hints[step] for step in each.steps if step in hints}
    return found

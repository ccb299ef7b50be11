"""`standfast push` and `standfast pull`: checkpoints go from one store to another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from standfast.display.output import (
    count_text,
    exit_code,
    message_of,
    print_json,
    progress_bar,
    say,
    size_text,
)
from standfast.errors import DamagedFile, RefNotFound, StandfastError, StepExists, printable
from standfast.store import Checkpoint, Store
from standfast.store.copies.copy import Copied

Verb = Literal["push", "pull"]

_ITS_OWN: Final = (DamagedFile, RefNotFound, StepExists)
"""What is wrong with one checkpoint, and lets others be copied all the same."""


@dataclass
class _Done:
    copied: list[Copied] = field(default_factory=list)
    refused: list[tuple[str, StandfastError]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.copied)

    @property
    def shared(self) -> int:
        return sum(each.shared for each in self.copied)


def copy_all(
    source: Store, ref: str, target: Store, verb: Verb, every: bool, check: bool, *, as_json: bool
) -> int:
    """Copy the checkpoint that is meant, or all of a run, and print it; returns the exit code."""
    chosen = source.find_run(ref).checkpoints() if every else [source.resolve(ref)]
    if not chosen:
        raise RefNotFound(f"{source.url}: the run {ref!r} has no checkpoint yet")
    done = _Done()
    with target:
        for number, checkpoint in enumerate(chosen, 1):
            label = f"{verb}ing {checkpoint.ref}"
            if every:
                label += f" ({number} of {len(chosen)})"
            try:
                done.copied.append(_copy(checkpoint, target, label, check))
            except _ITS_OWN as error:
                if not every:
                    raise
                done.refused.append((checkpoint.ref, error))
    if as_json:
        print_json(_as_json(done, source, target, check))
    else:
        _print(done, target, verb, check)
    codes = {exit_code(error) for _, error in done.refused}
    return 1 if 1 in codes else max(codes, default=0)


def _copy(checkpoint: Checkpoint, target: Store, label: str, check: bool) -> Copied:
    total = sum(file.size for file in checkpoint.head.files)
    with progress_bar(label, total) as report:
        return checkpoint.copy_to(target, report, check=check)


def _print(done: _Done, target: Store, verb: Verb, check: bool) -> None:
    for ref, error in done.refused:
        is_damaged = exit_code(error) == 1
        word, style = ("damaged", "bold red") if is_damaged else ("refused", "yellow")
        say((f"{word:<12}", style), printable(f"{ref}: {message_of(error)}"))
    for each in done.copied:
        for what in each.left_out:
            say(("left out    ", "yellow"), printable(f"{each.run}@{each.step}: {what}"))
    if not done.copied:
        return
    what = count_text(len(done.copied), "checkpoint")
    if len(done.copied) == 1:
        what = f"{done.copied[0].run}@{done.copied[0].step}"
    read_back = ", every byte read back" if check else ""
    say(
        (f"{verb}ed".ljust(12), "green"),
        printable(f"{what} to {target.url}: {size_text(done.nbytes)} copied, ")
        + f"{size_text(done.shared)} there already{read_back}",
    )


def _as_json(done: _Done, source: Store, target: Store, check: bool) -> dict[str, Any]:
    return {
        "from": source.url,
        "to": target.url,
        "copied": [
            {
                "ref": f"{each.run}@{each.step}",
                "run": each.run,
                "step": each.step,
                "bytes": each.nbytes,
                "shared_bytes": each.shared,
                "already": each.already,
                "left_out": list(each.left_out),
            }
            for each in done.copied
        ],
        "refused": [
            {"ref": ref, "error": type(error).__name__, "message": message_of(error)}
            for ref, error in done.refused
        ],
        "bytes": done.nbytes,
        "shared_bytes": done.shared,
        "read_back": check,
    }

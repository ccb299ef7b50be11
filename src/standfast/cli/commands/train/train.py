"""`standfast train`: LeNet-5, with checkpoints from which it continues bit for bit."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from standfast.cli.commands.train.lines import PlainLines, percent
from standfast.display.output import count_text, on_terminal, say
from standfast.tenzor.program import Program


def train_lenet(
    given: Mapping[str, Any], *, folder: Path | None, resume: Path | None, plain: bool
) -> None:
    """Train, and show how it goes; `given` are the flags that were given."""
    program = None
    try:
        program = Program(given, folder=folder, resume=resume)
        _introduce(program, resume)
        _run(program, plain or not on_terminal() or os.environ.get("TERM") == "dumb")
    except KeyboardInterrupt:
        print(f"standfast: {_interrupted(program)}", file=sys.stderr)
        raise typer.Exit(130) from None
    _conclude(program)


def _introduce(program: Program, resume: Path | None) -> None:
    digits, state = program.digits, program.trainer.state
    say(
        f"LeNet-5 on {digits.name}: {len(digits.training.labels):,} samples, "
        f"{len(digits.validation.labels):,} more to validate"
    )
    for note in program.notes:
        say(("note: ", "yellow"), note)
    if resume is not None:
        say(f"resumed from {resume}, after epoch {state.epoch} and step {state.global_step:,}")


def _run(program: Program, plain: bool) -> None:
    if plain:
        program.run(PlainLines(program))
        return
    from standfast.cli.commands.train.terminal import LiveDisplay

    with LiveDisplay(program) as display:
        program.run(display)


def _conclude(program: Program) -> None:
    trainer = program.trainer
    stats = trainer.get_stats()
    if stats.stopped_early:
        waited = trainer.state.epochs_without_best
        say(
            f"stopped after epoch {stats.final_epoch}: no better accuracy in "
            f"{count_text(waited, 'epoch')}; a larger --patience goes on"
        )
    elif not stats.total_time_sec:
        say(
            f"nothing left to do: epoch {stats.final_epoch} of {program.settings.epochs} is done; "
            "a larger --epochs goes on"
        )
    best = f"best validation accuracy {percent(stats.best_val_acc)} in epoch {stats.best_epoch}"
    took = f"; {stats.total_time_sec:.1f} s" if stats.total_time_sec else ""
    say(best if stats.best_epoch else "no validation accuracy above 0", took)
    if program.last is not None:
        say(f"last checkpoint {program.last}")


def _interrupted(program: Program | None) -> str:
    if program is None:
        return "interrupted before the training began; nothing was written"
    last = program.last
    if program.folder is None:
        return f"interrupted in epoch {program.trainer.state.epoch}; nothing was to be saved"
    if last is None:
        return "interrupted before the first checkpoint; nothing was written"
    return (
        f"interrupted; {last} is intact, and `standfast train --resume {last}` goes on from there"
    )

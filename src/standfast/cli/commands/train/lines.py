"""A training as plain lines, one an epoch."""

from __future__ import annotations

from pathlib import Path

from standfast.tenzor.folder import BEST
from standfast.tenzor.program import Program


def percent(fraction: float) -> str:
    """A fraction for people: 96.3 %."""
    return f"{100 * fraction:.1f} %"


class PlainLines:
    """A line when an epoch has ended."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def epoch_began(self) -> None:
        """Nothing: what a pipe gets should be worth a line."""

    def batch_done(self) -> None:
        """Nothing."""

    def epoch_ended(self, written: list[Path]) -> None:
        """Print the epoch's figures, and what was written."""
        state = self._program.trainer.state
        width = len(str(state.total_epochs))
        line = (
            f"epoch {state.epoch:>{width}}/{state.total_epochs}"
            f"  loss {state.train_loss:.4f}  accuracy {percent(state.train_acc):>7}"
            f"  validation loss {state.val_loss:.4f}  accuracy {percent(state.val_acc):>7}"
        )
        names = [path.name for path in written if path.name != BEST]
        best = ["best"] if state.best_epoch == state.epoch else []
        # A pipe's reader should not wait until the buffer is full.
        print("  ".join([line, *names, *best]), flush=True)

"""A training on a terminal: progress, curves, and checkpoints as they land."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Final, Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from standfast.cli.commands.train.lines import percent
from standfast.display.curves import Axes, Curve, Points, plot
from standfast.display.output import size_text
from standfast.tenzor.folder import BEST
from standfast.tenzor.program import Program

TRAINING: Final = "cyan"
VALIDATION: Final = "green"
HEIGHT: Final = 8
LISTED: Final = 4
"""So many checkpoints are shown, the newest."""
_REFRESH: Final = 0.1
_WIDEST: Final = 120
_NARROW: Final = 76
"""Below this the curves stand one above the other."""
_LABEL: Final = 6


class LiveDisplay:
    """A picture of a training that is drawn again and again in its place."""

    def __init__(self, program: Program, console: Console | None = None) -> None:
        self._program = program
        self._console = console if console is not None else Console(highlight=False)
        self._live = Live(self, console=self._console, auto_refresh=False)
        self._drawn = 0.0
        self._landed: list[tuple[Path, int, float, int]] = []
        """Path, epoch, accuracy and bytes of each checkpoint."""

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.refresh()
        self._live.stop()

    def epoch_began(self) -> None:
        """Draw the bar at its beginning."""
        self._live.refresh()

    def batch_done(self) -> None:
        """Draw again, if it was some time ago."""
        if time.monotonic() - self._drawn > _REFRESH:
            self._drawn = time.monotonic()
            self._live.refresh()

    def epoch_ended(self, written: list[Path]) -> None:
        """Add the epoch to the curves, and what was written to the list."""
        state = self._program.trainer.state
        for path in written:
            self._landed = [each for each in self._landed if each[0] != path]
            self._landed.append((path, state.epoch, state.val_acc, path.stat().st_size))
        self._live.refresh()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _WIDEST)
        yield Group(
            Text(), self._progress(width), Text(), self._curves(width), Text(), *self._checkpoints()
        )

    def _progress(self, width: int) -> Table:
        state = self._program.trainer.state
        figures = f"loss {state.train_loss:.4f}  {percent(state.train_acc):>7}"
        if width >= _NARROW:
            figures += f"  lr {state.lr:.5f}"
        row = Table.grid(padding=(0, 2, 0, 0))
        label = f"epoch {max(1, state.epoch)}/{state.total_epochs}"
        batches = self._program.batches
        counted = f"{state.batch:>{len(str(batches))}}/{batches}"
        room = max(10, width - len(label) - len(counted) - len(figures) - 6)
        bar = ProgressBar(batches, min(state.batch, batches), room, complete_style=TRAINING)
        row.add_row(Text(label, "bold"), bar, Text(counted, "dim"), Text(figures))
        return row

    def _curves(self, width: int) -> Table:
        each = width if width < _NARROW else (width - 3) // 2
        history, state = self._program.trainer.history, self._program.trainer.state
        losses: list[tuple[float, float]] = [(s.epoch, s.train_loss) for s in history]
        accuracies: list[tuple[float, float]] = [(s.epoch, s.train_acc) for s in history]
        if 0 < state.batch < self._program.batches:  # the epoch that runs, as far as it is
            at = state.epoch - 1 + state.batch / self._program.batches
            losses.append((at, state.train_loss))
            accuracies.append((at, state.train_acc))
        loss = self._plot("loss", losses, [(s.epoch, s.val_loss) for s in history], each)
        accuracy = self._plot("accuracy", accuracies, [(s.epoch, s.val_acc) for s in history], each)
        both = Table.grid(padding=(0, 3, 0, 0))
        for row in [(loss,), (accuracy,)] if width < _NARROW else [(loss, accuracy)]:
            both.add_row(*row)
        return both

    def _plot(self, title: str, training: Points, validation: Points, width: int) -> Group:
        is_accuracy = title == "accuracy"
        values = [y for _, y in (*training, *validation) if math.isfinite(y)]
        top = 1.0 if is_accuracy else max(values, default=1.0)
        bottom = min([0.9, *values]) if is_accuracy else 0.0
        epochs = max(2, self._program.settings.epochs)
        axes = Axes(1, epochs, math.floor(bottom * 10) / 10, top or 1.0)
        curves = [Curve(training, TRAINING), Curve(validation, VALIDATION)]
        lines = plot(curves, axes, width - _LABEL - 2, HEIGHT)
        labels = [""] * HEIGHT
        labels[0], labels[-1] = _label(axes.top, is_accuracy), _label(axes.bottom, is_accuracy)
        head = Text.assemble(
            (f"{'':>{_LABEL + 2}}{title}", "bold"),
            ("  training", TRAINING),
            ("  validation", VALIDATION),
        )
        body = [
            Text.assemble((f"{label:>{_LABEL}} │", "dim"), line)
            for label, line in zip(labels, lines, strict=True)
        ]
        room = width - _LABEL - 2
        foot = Text(f"{'':>{_LABEL}} └{'─' * room}\n{'':>{_LABEL + 2}}1{epochs:>{room - 1}}", "dim")
        return Group(head, *body, foot)

    def _checkpoints(self) -> list[Text]:
        state = self._program.trainer.state
        if self._program.folder is None:
            lines = [Text("no checkpoints: --checkpoint DIR saves them", "dim")]
        else:
            epochs = [each for each in self._landed if each[0].name != BEST][-LISTED:]
            best = [each for each in self._landed if each[0].name == BEST]
            lines = [Text(f"checkpoints in {self._program.folder}", "dim")]
            shown = [*epochs, *best]
            names = max((len(each[0].name) for each in shown), default=0)
            for path, epoch, accuracy, nbytes in shown:
                mark, style = ("★", "yellow") if path.name == BEST else ("✓", VALIDATION)
                of = f"  epoch {epoch}" if path.name == BEST else ""
                lines.append(
                    Text.assemble(
                        (f"  {mark} ", style),
                        f"{path.name:<{names}}  {percent(accuracy):>7}  ",
                        (f"{size_text(nbytes)}{of}", "dim"),
                    )
                )
        if state.best_epoch and not any(path.name == BEST for path, *_ in self._landed):
            best_text = f"  ★ best so far {percent(state.best_val_acc)} in epoch {state.best_epoch}"
            lines.append(Text(best_text, "yellow"))
        return lines


def _label(value: float, is_accuracy: bool) -> str:
    return f"{100 * value:.0f} %" if is_accuracy else f"{value:.2f}"

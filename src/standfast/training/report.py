"""What came back when a run was resumed, and whether it goes on exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from standfast.store.load.filling import LoadReport

NO_LOADER: Final = (
    "no loader is in the state: where the data goes on is for the program to see to; a "
    "standfast.ResumableLoader sees to it"
)


@dataclass(frozen=True)
class ResumeReport:
    """How a run began: what was restored, what differed, and whether it continues exactly."""

    run: str
    """Its hash."""
    name: str | None
    """Its label, if it has one."""
    step: int = 0
    """The last step that is done; 0 if it begins."""
    epoch: int | None = None
    """The epoch that it goes on with, if its checkpoint knows epochs."""
    ref: str | None = None
    """The checkpoint that it goes on from; None if it begins."""
    branched: bool = False
    """Whether that one belongs to another run."""
    found: LoadReport = field(default_factory=LoadReport)
    """What was restored, unexpected, missing and different, by paths."""
    inexact: Sequence[str] = ()
    """Why it may not continue bit for bit; empty if nothing speaks against it."""
    notes: Sequence[str] = ()
    """What else is worth knowing."""

    @property
    def exact(self) -> bool:
        """Whether everything is as it was, bit for bit; true of a run that begins."""
        return not self.inexact

    @property
    def restored(self) -> Sequence[str]:
        """The paths of the leaves that were restored."""
        return self.found.loaded

    @property
    def missing(self) -> Sequence[str]:
        """What the program has and the checkpoint does not; it is as the program made it."""
        return self.found.missing

    @property
    def unexpected(self) -> Sequence[str]:
        """What the checkpoint has and nothing in the program wanted."""
        return self.found.unexpected

    @property
    def mismatched(self) -> Sequence[str]:
        """What both have in different shapes or dtypes, each with the two."""
        return self.found.mismatched

    def __str__(self) -> str:
        return "\n".join([self._first_line(), *(f"  {line}" for line in self._more_lines())])

    def _first_line(self) -> str:
        run = f"run {self.name} ({self.run})" if self.name else f"run {self.run}"
        if self.ref is None:
            return f"{run} begins"
        verb = f"branches from {self.ref}" if self.branched else "continues"
        exact = "exactly as it was" if self.exact else "which may not be exact"
        if self.exact and NO_LOADER in self.notes:
            exact += ", if its data is"
        return f"{run} {verb} after step {self.step}, {exact}"

    def _more_lines(self) -> list[str]:
        lines = []
        if self.restored:
            parts = Counter(path.partition(".")[0] for path in self.restored)
            counts = ", ".join(f"{name} ({count:,})" for name, count in parts.items())
            lines.append(f"restored: {counts}")
        lines += self.found.differences()
        lines += [f"not exact: {reason}" for reason in self.inexact]
        return [*lines, *self.notes]

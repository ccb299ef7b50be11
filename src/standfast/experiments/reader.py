"""What a manager reads from: the experiments of a root, whoever wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from standfast.experiments.hashes import split_hash
from standfast.store import Checkpoint


@dataclass(frozen=True)
class Entry:
    """An experiment in a list."""

    hash: str
    created: str
    last_used: str

    def as_dict(self) -> dict[str, str]:
        """What a manifest says of it, with its hash."""
        return {**parts_of(self.hash), "created": self.created, "last_used": self.last_used}


class Loaded(NamedTuple):
    """The content of a checkpoint."""

    content: Any
    checkpoint: Checkpoint | None
    """Where it is in the store; None if it is in none."""


class Experiments(Protocol):
    """The experiments of a root; all but `find` take a whole hash."""

    def entries(self) -> list[Entry]:
        """All of them, the one that was used last first."""
        ...

    def latest(self) -> str | None:
        """The one with the latest checkpoint; None if there is none."""
        ...

    def find(self, exp_hash: str) -> str:
        """The whole hash of the one that is meant; raises RefNotFound or AmbiguousRef."""
        ...

    def config(self, exp_hash: str) -> Any:
        """Its hyperparameters; None if it has none."""
        ...

    def data_state(self, exp_hash: str) -> Any:
        """Its samples; None if it has none."""
        ...

    def architecture(self, exp_hash: str) -> Path:
        """Where its model would lie, pickled."""
        ...

    def has_checkpoint(self, exp_hash: str) -> bool:
        """Whether it has a checkpoint, intact or not."""
        ...

    def load(self, exp_hash: str, target_step: int | None = None) -> Loaded:
        """The checkpoint of the step closest to a target, or the latest; raises RefNotFound."""
        ...

    def info(self, exp_hash: str) -> dict[str, Any]:
        """What there is to say about it and its checkpoints."""
        ...


def parts_of(exp_hash: str) -> dict[str, str]:
    """A hash and its parts, by the keys that a manifest has for them."""
    return {
        "hash": exp_hash,
        **{f"{part}_hash": value for part, value in split_hash(exp_hash).items()},
    }

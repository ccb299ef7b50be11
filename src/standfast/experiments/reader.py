"""What a manager reads: experiments in a list, and the content of their checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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


def parts_of(exp_hash: str) -> dict[str, str]:
    """A hash and its parts, by the keys that a manifest has for them."""
    return {
        "hash": exp_hash,
        **{f"{part}_hash": value for part, value in split_hash(exp_hash).items()},
    }

"""What the fuzzer has to know of what it reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from standfast.errors import StandfastError
from standfast.files.layout import Index
from standfast.formats.reader import Options
from tests.fuzz.mutations import Part, mutate

LARGEST = 1 << 16
"""Inputs are cut to this size."""
LARGEST_SEED = 16 << 10
"""Larger seeds would slow the fuzzer down; what is special in them is tested elsewhere."""

Outcome = Index | StandfastError
"""What the reader makes of an input."""


class Broken(Exception):
    """A property does not hold."""


def require(holds: bool, what: str) -> None:
    """Raise Broken, with what is wrong, unless it holds."""
    if not holds:
        raise Broken(what)


@dataclass(frozen=True)
class Target:
    """A format: where its inputs come from, and what only it can promise of them."""

    name: str
    suffix: str
    parts: tuple[Part, ...]
    """Parts of a file; one that is named twice is changed more often."""
    reseal: Callable[[bytes], bytes]
    """Makes the digest of all but the tensors right again, wherever a file has one."""
    check: Callable[[bytes, Outcome, Options], None]
    """The format's own properties, and the comparison with another reader."""
    has_objects: bool = False
    """Whether `tensors_only` makes a difference."""

    def mutate(self, random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
        """The file with a few changes; most often with a digest that fits it again."""
        file = mutate(random, file, self.parts, others)[:LARGEST]
        return self.reseal(file) if random.random() < 0.8 else file

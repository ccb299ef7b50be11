"""What a mutant is, the list of all of them, and where in the source each applies.

The list is in the TOML files of this folder, a table for each mutant.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


class WrongList(Exception):
    """The list of mutants has a mistake; it says nothing about the tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change that breaks the product, and the tests that have to notice."""

    name: str
    breaks: str
    """One sentence: what users would lose."""
    old: str
    """Text that occurs exactly once in src/standfast, so that it is found wherever it moves to."""
    new: str
    tests: tuple[str, ...]
    """Node ids for pytest; one that fails is enough."""
    guarantee: str = ""
    """The promise of docs/guarantees.md that no longer holds."""
    reverts: str = ""
    """The defect that comes back, if the mutant takes away what fixed one."""
    long: bool = False
    """Whether only tests that are marked `long` notice."""


def _mutant(name: str, tests: str | list[str], **fields: Any) -> Mutant:
    return Mutant(name=name, tests=(tests,) if isinstance(tests, str) else tuple(tests), **fields)


MUTANTS: Final = tuple(
    _mutant(name, **fields)
    for path in sorted(Path(__file__).parent.glob("*.toml"))
    for name, fields in tomllib.loads(path.read_text()).items()
)


def module_of(mutant: Mutant, sources: dict[Path, str]) -> Path:
    """The one module that contains the mutant's text; raises WrongList."""
    found = [path for path, text in sources.items() for _ in range(text.count(mutant.old))]
    if len(found) != 1:
        where = ", ".join(map(str, found)) or "nowhere"
        raise WrongList(f"{mutant.name}: its old text must occur once, and it is found: {where}")
    return found[0]


def read_sources(folder: Path) -> dict[Path, str]:
    """Every module of the package, by its path in the folder."""
    return {path.relative_to(folder): path.read_text() for path in sorted(folder.rglob("*.py"))}

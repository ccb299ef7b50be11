"""The size of the project, which only goes down. `python -m tests.test_house` prints it.

A number above its limit fails: make the change smaller, or merge or delete something else. If the
number has to rise, write a page in `docs/decisions/` that says why, and name it in the row. A
number well below its limit fails too: lower the limit, so that the gain stays.
"""

import inspect
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

import standfast
from standfast import errors
from standfast.cli.app import app
from tests import ROOT
from tests.kit.source_code import lines_of_code, modules, own_imports, room


class Limit(NamedTuple):
    """The most that something may measure."""

    most: int
    decision: str = ""
    """The page in `docs/decisions/` that says why it was raised, if it ever was."""


class Room(NamedTuple):
    """The most modules with code, and lines of code, that a room may have."""

    modules: int
    lines: int
    decision: str = ""


class Way(NamedTuple):
    """The modules and functions that an operation runs through; 5 % more are allowed."""

    modules: int
    functions: int
    decision: str = ""


DEFECTS: Final = "0034-what-the-defects-of-the-review-cost.md"
SEEDS: Final = "0035-what-matching-the-seeds-costs.md"

ROOMS: Final = {
    "amr": Room(36, 4571, SEEDS),
    "cli": Room(41, 4447, DEFECTS),
    "conventions": Room(1, 89),
    "dcp": Room(13, 1352, DEFECTS),
    "display": Room(4, 378, DEFECTS),
    "errors": Room(1, 122, DEFECTS),
    "experiments": Room(8, 983, SEEDS),
    "files": Room(34, 3397, DEFECTS),
    "formats": Room(31, 4818, DEFECTS),
    "identity": Room(9, 567, SEEDS),
    "jax": Room(6, 617),
    "lightning": Room(11, 1077, DEFECTS),
    "orbax": Room(1, 105, DEFECTS),
    "oxck": Room(2, 362, SEEDS),
    "packages": Room(20, 3642, SEEDS),
    "parallel": Room(14, 1156, SEEDS),
    "policies": Room(1, 211),
    "schedule": Room(1, 183, DEFECTS),
    "standfast": Room(1, 78),
    "store": Room(110, 14992, DEFECTS),
    "tensorfile": Room(22, 2170, DEFECTS),
    "tensors": Room(10, 861, SEEDS),
    "tenzor": Room(13, 1513, SEEDS),
    "torch": Room(9, 969, SEEDS),
    "training": Room(37, 4486, DEFECTS),
    "transformers": Room(6, 824, DEFECTS),
    "web": Room(21, 2575),
}
"""Lines with code, imports included, without blank lines, comments and docstrings."""

SIZES: Final = {
    "modules": Limit(463),
    "lines of code": Limit(56545, DEFECTS),
    "names in standfast.__all__": Limit(34),
    "options of the command line": Limit(116, SEEDS),
    "arguments of Checkpointer": Limit(23),
    "error classes": Limit(79, DEFECTS),
    "modules with a single importer": Limit(119),
    "bytes of the README": Limit(5610),
    "lines of tests": Limit(77993),
}

WAYS: Final = {
    "run.save": Way(59, 403, DEFECTS),
    "run.load": Way(42, 225, DEFECTS),
    "save": Way(19, 103, DEFECTS),
    "load": Way(19, 81, DEFECTS),
    "ckpt.step, wait": Way(34, 172, DEFECTS),
    "resume": Way(114, 685, DEFECTS),
}
"""As `tools/way.py` counts them; threads make a resume vary."""


class Size(NamedTuple):
    modules: int
    lines: int


@cache
def rooms() -> dict[str, Size]:
    found: dict[str, Size] = {}
    for name, path in modules().items():
        if lines := lines_of_code(path):
            before = found.get(room(name), Size(0, 0))
            found[room(name)] = Size(before.modules + 1, before.lines + lines)
    return found


def single_importers() -> int:
    """Modules that one other module imports, and nothing else does."""
    importers: dict[str, set[str]] = {}
    for name, path in modules().items():
        for imported in own_imports(path):
            if imported in modules() and imported != name:
                importers.setdefault(imported, set()).add(name)
    return sum(len(names) == 1 for names in importers.values())


def options() -> int:
    """The options of all commands, `--help` aside."""

    def count(command: Any) -> int:
        own = sum(each.param_type_name == "option" for each in command.params)
        return own + sum(map(count, getattr(command, "commands", {}).values()))

    return count(typer.main.get_command(app))


@cache
def sizes() -> dict[str, int]:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    return {
        "modules": sum(size.modules for size in rooms().values()),
        "lines of code": sum(size.lines for size in rooms().values()),
        "names in standfast.__all__": len(standfast.__all__),
        "options of the command line": options(),
        "arguments of Checkpointer": len(inspect.signature(standfast.Checkpointer).parameters),
        "error classes": sum(issubclass(kind, Exception) for kind in kinds),
        "modules with a single importer": single_importers(),
        "bytes of the README": (ROOT / "README.md").stat().st_size,
        "lines of tests": sum(
            len(path.read_text().splitlines()) for path in Path(__file__).parent.rglob("*.py")
        ),
    }


def ways() -> dict[str, list[int]]:
    command = [sys.executable, ROOT / "tools" / "way.py", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


def check_limit(what: str, measured: int, most: int) -> None:
    assert measured <= most, (
        f"{what}: {measured:,}, over the limit of {most:,}. Make it smaller, or merge or delete "
        "something else. If it has to be larger, say why in a page of docs/decisions/ and name "
        "that page in the row of tests/test_house.py"
    )
    assert measured >= most - max(2, most // 20), (
        f"{what}: {measured:,}, well below the limit of {most:,}: lower the limit to {measured} "
        "in tests/test_house.py, so that it stays there"
    )


def test_no_room_grows():
    assert set(rooms()) == set(ROOMS)
    for name, limit in ROOMS.items():
        check_limit(f"modules of {name}", rooms()[name].modules, limit.modules)
        check_limit(f"lines of code of {name}", rooms()[name].lines, limit.lines)


def test_the_project_does_not_grow():
    for what, limit in SIZES.items():
        check_limit(what, sizes()[what], limit.most)


def test_no_operation_runs_through_more_code():
    found = ways()
    assert set(found) == set(WAYS)
    for name, (passed, functions) in found.items():
        assert passed <= WAYS[name].modules * 1.05, f"{name}: {passed} modules"
        assert functions <= WAYS[name].functions * 1.05, f"{name}: {functions} functions"


def test_every_decision_that_is_named_exists():
    rows = [*ROOMS.values(), *SIZES.values(), *WAYS.values()]
    for page in {row.decision for row in rows} - {""}:
        assert (ROOT / "docs" / "decisions" / page).is_file(), page


if __name__ == "__main__":
    for place, size in rooms().items():
        print(f'    "{place}": Room({size.modules}, {size.lines}),')
    for what, measured in sizes().items():
        print(f'    "{what}": Limit({measured}),')
    for name, (passed, functions) in ways().items():
        print(f'    "{name}": Way({passed}, {functions}),')

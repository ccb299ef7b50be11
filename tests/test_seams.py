"""Tests put things of their own into the seams of the kit, and nowhere else.

What is left of the old ways is counted here, and only goes down.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Final

from tests import ROOT
from tests.kit.source_code import imports, tree
from tests.test_rooms import PUBLIC

TESTS: Final = ROOT / "tests"
LIMITS: Final = {
    "replaced functions": 0,
    "patterns of prose": 11,
    "internal modules": 86,
}


@cache
def _trees() -> dict[Path, ast.Module]:
    kit = TESTS / "kit"
    paths = [path for path in TESTS.rglob("*.py") if not path.is_relative_to(kit)]
    return {path: tree(path) for path in paths}


@cache
def _calls() -> list[tuple[Path, ast.Call]]:
    nodes = ((path, node) for path, module in _trees().items() for node in ast.walk(module))
    return [(path, node) for path, node in nodes if isinstance(node, ast.Call)]


def replaced_functions() -> list[str]:
    """Where a test sets an attribute of something else than by a seam."""
    return [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, call in _calls()
        if isinstance(call.func, ast.Attribute) and call.func.attr == "setattr"
    ]


def patterns_of_prose() -> list[str]:
    """Where a message is matched by its words: `match=` may hold a name, a number or a path."""
    found = []
    for path, call in _calls():
        for option in call.keywords:
            if option.arg == "match":
                text = [each for each in ast.walk(option.value) if isinstance(each, ast.Constant)]
                if any(" " in str(each.value) for each in text):
                    found.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    return found


def internal_modules() -> list[str]:
    """The modules that are no room's interface, and that tests import."""
    public = {f"{room}.{name}" for room, names in PUBLIC.items() for name in names.split()}
    found = set()
    for path in _trees():
        found |= {name.removeprefix("standfast.") for name in imports(path) if "standfast." in name}
    return sorted(name for name in found - public if "." in name)


def test_tests_go_through_the_seams_and_the_rooms():
    for what, limit in LIMITS.items():
        found = globals()[what.replace(" ", "_")]()
        assert len(found) <= limit, found
        assert len(found) >= limit - 5, f"lower the limit of {what} to {len(found)}"

"""The promises of docs/guarantees.md, and the tests that carry their names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

PROMISE = re.compile(r"^### (G\d+): ", re.MULTILINE)


def _marked(path: Path) -> Iterator[tuple[str, str]]:
    """The tests of a file that are marked, each with a promise that it names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("mark.guarantee"):
                    yield from ((node.name, ast.literal_eval(name)) for name in mark.args)


def test_every_promise_has_a_test_and_every_marker_names_a_promise():
    promises = PROMISE.findall((ROOT / "docs" / "guarantees.md").read_text())
    assert promises == [f"G{number}" for number in range(1, len(promises) + 1)]
    marked = {name for path in (ROOT / "tests").rglob("test_*.py") for _, name in _marked(path)}
    assert marked == set(promises)


def test_every_promise_says_what_it_relies_on_and_what_is_not_promised():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    for promise in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        assert promise.count("\n- Relies on: ") == 1, promise
        assert promise.count("\n- Not promised: ") == 1, promise

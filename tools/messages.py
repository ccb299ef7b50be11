"""Lists the texts that users of the package may read: errors, warnings, reports and help.

    python tools/messages.py > docs/messages.txt

Each text is listed under its room, after the error class or function that takes it. Docstrings,
SQL and lists of words are left out. `{…}` stands for what is filled in.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).parent.parent / "src" / "standfast"
SQL: Final = re.compile(r"(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|PRAGMA|BEGIN) ")
IGNORED: Final = {"compile", "split", "execute", "executemany", "getattr", "import_module"}
"""Functions whose arguments nobody reads."""


class Text(NamedTuple):
    """A text of the source, and where it is."""

    room: str
    taker: str
    """What the text is an argument of; a dash if it is assigned or returned."""
    text: str


def texts() -> list[Text]:
    """All texts, each once per room and taker."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {Text(room, taker, text) for taker, text in _texts(tree, "-")}
    return sorted(found)


def _texts(node: ast.AST, taker: str) -> Iterator[tuple[str, str]]:
    """The texts below a node, with what takes them."""
    if isinstance(node, ast.JoinedStr | ast.Constant):
        text = _template(node)
        if taker not in IGNORED and len(text.split()) >= 3 and not SQL.match(text):
            yield taker, text
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Call):
        taker = _name(node.func)
    for child in ast.iter_child_nodes(node):
        yield from _texts(child, taker)


def _template(node: ast.JoinedStr | ast.Constant) -> str:
    """The text with a place for each value, on one line."""
    if isinstance(node, ast.JoinedStr):
        parts = [_template(v) if isinstance(v, ast.Constant) else _place(v) for v in node.values]
        return "".join(parts)
    return node.value.replace("\n", "\\n") if isinstance(node.value, str) else ""


def _place(value: ast.expr) -> str:
    inner = value.value if isinstance(value, ast.FormattedValue) else value
    return "{" + (_name(inner) if isinstance(inner, ast.Name | ast.Attribute) else "…") + "}"


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else "…"


def listing() -> str:
    """The file `docs/messages.txt`."""
    rooms: defaultdict[str, list[str]] = defaultdict(list)
    for room, taker, text in texts():
        rooms[room].append(f"{taker}: {text}\n")
    return "\n".join(f"# {room}\n{''.join(lines)}" for room, lines in rooms.items())


if __name__ == "__main__":
    print(listing(), end="")

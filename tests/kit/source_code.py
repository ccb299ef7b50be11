"""What the tests of the structure measure: modules, their imports, their lines of code."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import standfast

SOURCE = Path(standfast.__file__).parent


def paths() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def module_name(path: Path) -> str:
    """`store/index/forks.py` → `standfast.store.index.forks`; a package by its folder."""
    parts = ["standfast", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in paths()}


def room(name: str) -> str:
    """The room that a module is in; the package itself is `standfast`."""
    return name.split(".")[1] if "." in name else name


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    """What a module imports, anywhere in it: of our own, the module that each name is from."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module


def own_imports(path: Path) -> Iterator[str]:
    return (name for name in imports(path) if name.split(".")[0] == "standfast")


def lines_of_code(path: Path) -> int:
    """Lines with code on them, imports included; without blank lines, comments and docstrings."""
    text = enumerate(path.read_text().splitlines(), 1)
    lines = {number for number, line in text if line.strip() and line.lstrip()[0] != "#"}
    for node in ast.walk(tree(path)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            lines.difference_update(range(value.lineno, (value.end_lineno or 0) + 1))
    return len(lines)

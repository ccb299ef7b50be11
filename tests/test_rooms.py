"""The rooms of the architecture: each imports only rooms above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import standfast
from standfast.formats import FORMATS

ROOMS = [
    "errors",
    "tensors",
    "schedule",
    "retention",
    "conventions",
    "randomness",
    "parallel",
    "files",
    "formats",
    "verbs",
    "identity",
    "store",
    "training",
    "adapters",
    "oxck",
    "tenzor",
    "amr",
    "packages",
    "experiments",
    "cli",
    "web",
]
"""From the bottom up; the package itself, which hands out the public names, is on top."""

SOURCE = Path(standfast.__file__).parent


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else "standfast"


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module == "standfast":
                yield from (f"standfast.{alias.name}" for alias in node.names)
            else:
                yield node.module


def _same_framework(module: str, imported: str) -> bool:
    """Whether an adapter imports a part of itself: those of torch are called torch_…."""
    return imported.startswith(f"standfast.adapters.{module.partition('_')[0]}_")


def _violations() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        if path.parent == SOURCE and path.name == "__init__.py":
            continue
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert room in ROOMS, f"{path} is in no room"
        for name in _imports(path):
            if name.split(".")[0] != "standfast":
                continue
            other = _room(name)
            if other == "__version__" and room in ("cli", "web"):
                continue
            if other == "web" and path.relative_to(SOURCE) == Path("cli", "ui.py"):
                continue  # the command that starts it
            if ROOMS.index(other) > ROOMS.index(room):
                yield f"{path.relative_to(SOURCE)} imports {name}"
            if room == other == "adapters" and not _same_framework(path.stem, name):
                yield f"{path.relative_to(SOURCE)}: adapters do not know each other"


def test_each_room_imports_only_rooms_above_it() -> None:
    assert list(_violations()) == []


def test_formats_do_not_know_each_other() -> None:
    formats = {format.NAME for format in FORMATS}
    for name in formats:
        imported = set(_imports(SOURCE / "formats" / f"{name}.py"))
        assert not imported & {f"standfast.formats.{other}" for other in formats - {name}}


def test_the_core_imports_no_framework() -> None:
    models = {SOURCE / "tenzor" / "lenet.py", SOURCE / "packages" / "gpt.py"}  # are torch's
    for path in SOURCE.rglob("*.py"):
        if "adapters" not in path.parts and path not in models:
            assert not {"torch", "jax", "safetensors"} & set(_imports(path)), path


def test_the_files_room_alone_changes_disks() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] != "files":
            text = path.read_text()
            for call in ("os.rename", "os.replace", "os.unlink", "os.write", "os.fsync"):
                assert call not in text, f"{path} calls {call}"

"""The names of classes and functions, as another process finds them too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from standfast.errors import UnstableValue

_MAIN = ("__main__", "__mp_main__")


def qualified_name(value: Any) -> str:
    """The module and the qualified name: `torch.nn.modules.linear:Linear`."""
    return f"{_module_of(value)}:{value.__qualname__}"


def lookup_name(value: Any) -> str:
    """The name under which a class or function is found in its module, or UnstableValue."""
    for name in (value.__qualname__, getattr(value, "__name__", None)):
        if isinstance(name, str) and _look_up(value.__module__, name) is value:
            return f"{_module_of(value)}:{name}"
    raise UnstableValue(
        f"is a {type_name(type(value))}, {value.__module__}.{value.__qualname__}, that no other "
        "process finds under this name: give a class or function from the top level of a module, "
        "or its name as text"
    )


def found_by(name: str) -> Any:
    """The class or function of this name; None if the program has not loaded it.

    Nothing is imported, and no attribute is computed.
    """
    module, _, path = name.partition(":")
    found: Any = sys.modules.get("__main__" if module == _main_module() else module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    found = found.__func__ if isinstance(found, staticmethod) else found
    return found if has_name(found) and qualified_name(found) == name else None


def has_name(value: Any) -> bool:
    """Whether the value is a class, a function, or something that goes by a name as they do."""
    names = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return all(isinstance(name, str) for name in names)


def type_name(kind: type) -> str:
    """The name of a type, for a message."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _look_up(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _module_of(value: Any) -> str:
    module: str = value.__module__
    return _main_module() if module in _MAIN else module


def _main_module() -> str:
    """The name of the program as if it had been imported.

    A worker process and a program that imports it see its classes under another module than
    the program itself does, and mean the same ones.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "__main__"

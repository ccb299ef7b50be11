"""Records and other sealed files with something changed in them, and all their digests right."""

from collections.abc import Callable, Iterable
from functools import reduce
from operator import delitem, getitem, setitem
from pathlib import Path
from typing import Any

from blake3 import blake3

from standfast.store.schema import record
from standfast.store.schema.seal import seal, unseal
from tests.kit.stores import overwrite

Change = Callable[[Any], Any]


def _edit(keys: Iterable[Any], act: Callable[[Any], object]) -> Change:
    """Act on what these keys lead to; gives the whole back."""

    def change(node: Any) -> Any:
        act(reduce(getitem, keys, node))
        return node

    return change


def put(*path: Any) -> Change:
    """Put the last of these at the place that the others lead to."""
    *keys, last, value = path
    return _edit(keys, lambda found: setitem(found, last, value))


def take(*path: Any) -> Change:
    """Remove what is at this place."""
    *keys, last = path
    return _edit(keys, lambda found: delitem(found, last))


def add(value: Any, *keys: Any) -> Change:
    """Append to the list at this place."""
    return _edit(keys, lambda found: found.append(value))


def lines_of(text: bytes) -> list[bytes]:
    """The lines of a record but the last, which has the digest of the others."""
    return text.split(b"\n")[:-2]


def ended(lines: Iterable[bytes]) -> bytes:
    """A record of these lines, with a last line that fits them."""
    text = b"".join(line + b"\n" for line in lines)
    return text + b'{"digest":"%b"}\n' % blake3(text).hexdigest().encode()


def changed(text: bytes, format: str, newer: str | None = None, **members: Any) -> bytes:
    """Sealed JSON with more members, or as a newer version."""
    return seal(newer or format, unseal(text, format) | members)


def resealed(path: Path, format: str, newer: str | None = None, **members: Any) -> None:
    """Write a sealed file again with more members, or as one of a newer version."""
    line, _, rest = path.read_bytes().partition(b"\n")
    overwrite(path, changed(line, format, newer, **members) + b"\n" + rest)


def rewritten(
    path: Path, change: Callable[[list[bytes]], object] = lambda lines: None, **members: Any
) -> None:
    """Write a record again with other lines, or other members of its head."""
    lines = lines_of(path.read_bytes())
    lines[0] = changed(lines[0], record.FORMAT, **members)
    change(lines)
    overwrite(path, ended(lines))


def needing(path: Path) -> None:
    """Let a record need something that this version does not know."""
    rewritten(path, needs=["packed"])


def of_version_2(path: Path) -> None:
    """Let a record be one of a later version of the format."""
    resealed(path, record.FORMAT, "standfast record 2", sequence="counted in another way")

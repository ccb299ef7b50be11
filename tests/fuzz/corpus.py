"""The inputs that campaigns found, in one file for each target: each after its length."""

from __future__ import annotations

import lzma
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).with_name("corpus")


def inputs(name: str) -> list[bytes]:
    """Those of a target."""
    data, found, at = lzma.decompress((FOLDER / f"{name}.xz").read_bytes()), [], 0
    while at < len(data):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        found.append(data[start:at])
    return found


def replace(name: str, files: Iterable[bytes]) -> None:
    """Keep these inputs in the place of those of a target."""
    data = b"".join(len(file).to_bytes(4, "little") + file for file in sorted(set(files)))
    (FOLDER / f"{name}.xz").write_bytes(lzma.compress(data, preset=9))

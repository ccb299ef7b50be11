"""The hashes that stand for names in a `.tenzor` file: FNV-1a, 64 bits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

_BASIS: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_PLACEHOLDER: Final = re.compile("0x([0-9a-f]{16})")


def hash_name(name: str) -> int:
    """The hash of one name.

    >>> hex(hash_name("conv1_weight"))
    '0xc0713d87c613c5c3'
    """
    value = _BASIS
    for byte in name.encode():
        value = (value ^ byte) * _PRIME & 0xFFFFFFFFFFFFFFFF
    return value


def hash_names(names: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The hashes of many names, letter by letter for all of them at once.

    A name that shows a hash, as those of tensors without names do, stands for that hash.
    """
    hashes = np.full(len(names), _BASIS, np.uint64)
    joined = "".join(names)
    text = np.frombuffer(joined.encode(), np.uint8)
    parts = names if joined.isascii() else [name.encode() for name in names]
    lengths = np.fromiter(map(len, parts), np.int64, len(names))
    starts = np.cumsum(lengths) - lengths
    # The longest first, so that those which still have a letter are a slice.
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    values = hashes[order]
    active = len(names)
    for letter in range(int(lengths[0]) if active else 0):
        while lengths[active - 1] <= letter:
            active -= 1
        values[:active] = (values[:active] ^ text[starts[:active] + letter]) * np.uint64(_PRIME)
    hashes[order] = values
    for i, name in enumerate(names if "0x" in joined else ()):
        if len(name) == 18 and (found := _PLACEHOLDER.fullmatch(name)):
            hashes[i] = int(found[1], 16)
    return hashes

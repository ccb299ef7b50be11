"""States of which every bit follows from one number, and a comparison that knows it."""

import struct
from functools import lru_cache
from typing import Any

import numpy as np

CHUNK = 16 << 20
LARGE, TORCH, TRAINING = 0, 7, 9
"""The last digit of a number says of what kind its state is."""

State = dict[str, Any]


@lru_cache(maxsize=8)
def _chunk(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(CHUNK)


def state(number: int) -> State:
    """The state of a number: some of its tensors are those of other numbers too."""
    random = np.random.default_rng(number)
    wte = random.standard_normal((160, 128)).astype(np.float32)
    frozen = np.random.default_rng(number // 10 % 3).standard_normal((200, 150))
    found: State = {
        "model": {
            "frozen": frozen,
            "wte": wte,
            "head": wte,
            "rows": wte[3:9],
            "bias": random.standard_normal(33),
            "empty": np.zeros((0, 4), np.int16),
        },
        "optimizer": {"moments": random.standard_normal((80, 128)), "steps": [number, 2.5]},
        "info": {"number": number, "rate": random.random()},
    }
    kind = number % 10
    if kind == LARGE:
        first, second = number // 10 % 2, 2 + number // 20 % 3
        large = _chunk(first) + _chunk(second) + random.bytes(100_001)
        found["model"]["large"] = np.frombuffer(large, np.uint8)
    if kind != TRAINING:
        found["info"] |= {
            "nan": struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0],
            "integer": -(1 << 70) - number,
            "text": f"ä\n{number}",
            "tuple": (None, True, b"\x00\xff", ()),
            "keys": {1: "one", "$": -0.0},
        }
    return found


def without(full: State, parts: set[str]) -> State:
    return {key: each for key, each in full.items() if key not in parts}


def difference(a: Any, b: Any, path: str = "state") -> str:
    """Where two states differ, in a bit, a type or the order of keys; empty if they do not."""
    if type(a) is not type(b):
        return f"{path}: {type(a).__name__} and {type(b).__name__}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{path}: keys {list(a)} and {list(b)}"
        found = (difference(a[key], b[key], f"{path}.{key}") for key in a)
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"{path}: {len(a)} and {len(b)} items"
        found = (difference(x, y, f"{path}.{i}") for i, (x, y) in enumerate(zip(a, b, strict=True)))
    elif isinstance(a, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return "" if same else f"{path}: other bytes"
    elif isinstance(a, float):
        return "" if struct.pack("d", a) == struct.pack("d", b) else f"{path}: {a!r} and {b!r}"
    else:
        return "" if a == b else f"{path}: {a!r} and {b!r}"
    return next(filter(None, found), "")


def mismatch(found: State) -> str:
    """What is wrong with a state that was loaded, whole or without some parts; empty if nothing."""
    number = found.get("info", {}).get("number")
    if not isinstance(number, int):
        return "no number in it"
    expected = {key: each for key, each in state(number).items() if key in found}
    if wrong := difference(expected, without(found, {"random"})):
        return f"number {number}: {wrong}"
    model = found.get("model", {})
    if model and not all(np.shares_memory(model["wte"], model[key]) for key in ("head", "rows")):
        return f"number {number}: tied tensors are not tied"
    return ""

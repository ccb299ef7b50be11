"""What the tests of the store share: states, how to compare them, and how to hurt files."""

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from standfast import Packed, Run, Store
from standfast.files.digests import CHUNK
from standfast.store.schema import names

Array = np.ndarray[Any, Any]
MIB = 1 << 20


def random_bytes(size: int, seed: int = 0) -> Array:
    """A writable array of bytes that no other seed gives."""
    return np.frombuffer(np.random.default_rng(seed).bytes(size), np.uint8).copy()


def chunks(*seeds: int) -> Array:
    """A tensor of a chunk for each seed; equal seeds give equal chunks."""
    return np.concatenate([random_bytes(CHUNK, seed) for seed in seeds])


def folder(run: Run) -> Path:
    """Where the files of a run lie."""
    path = run._store.backend.path(names.run_folder(run.hash))
    assert path is not None
    return path


def data_files(run: Run) -> dict[str, int]:
    """The data files in the folder of a run, with their sizes."""
    found = sorted(folder(run).glob("*.safetensors"))
    return {path.name: path.stat().st_size for path in found}


def bytes_written(run: Run, save: Callable[[], object]) -> int:
    """How many bytes of data files a save adds to the folder of a run."""
    before = data_files(run)
    save()
    return sum(size for name, size in data_files(run).items() if name not in before)


def record_path(run: Run, step: int) -> Path:
    return folder(run).parent.parent / names.record_file(run.hash, step)


def data_path(run: Run, step: int, label: str = "") -> Path:
    """The one data file that a step wrote, of this label if one is given."""
    pattern = f"{run.hash}_step_{step:06d}.*.{label or '*'}.safetensors"
    (path,) = folder(run).glob(pattern)
    return path


def before_lock(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    action: Callable[[], object],
    turn: int = 1,
) -> None:
    """Let another process do something just before this one locks changes for the n-th time."""
    lock, turns = store.backend.lock, iter(range(1, turn + 1))

    def locked(wanted: str, *args: Any, **options: Any) -> Any:
        if wanted == f"{name}.change" and next(turns, None) == turn:
            action()
        return lock(wanted, *args, **options)

    monkeypatch.setattr(store.backend, "lock", locked)


def flip(path: Path, offset: int = -1) -> None:
    """Turn one bit of a file, which gets an inode of its own: its other names keep the old one."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    overwrite(path, bytes(data))


def overwrite(path: Path, data: bytes) -> None:
    """Put other bytes in the place of a file, as a copy from elsewhere would."""
    aside = path.with_name("replacement")
    aside.write_bytes(data)
    os.replace(aside, path)


def part_by_hand(path: Path) -> None:
    """Let a name that is a hard link be a file of its own, with the same bytes."""
    overwrite(path, path.read_bytes())


def same(a: Any, b: Any) -> bool:
    """Equal in type, key order and every bit, tensors included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return (
            len(a) == len(b)
            and all(map(same, a.items(), b.items()))
            and same(getattr(a, "_metadata", None), getattr(b, "_metadata", None))
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if _is_torch(a):
        flags = a.requires_grad == b.requires_grad
        return flags and a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)
    if isinstance(a, Packed):
        return (a.dtype, tuple(a.shape)) == (b.dtype, tuple(b.shape)) and _bits(a) == _bits(b)
    if isinstance(a, np.ndarray | np.generic):
        dtypes = [each.dtype.newbyteorder("<") for each in (a, b)]
        return dtypes[0] == dtypes[1] and a.shape == b.shape and _bits(a) == _bits(b)
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return bool(a == b)


def _is_torch(value: Any) -> bool:
    """Whether it is a tensor of torch, which takes a second to import."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def _bits(value: Any) -> bytes:
    if _is_torch(value):
        flat = value.detach().cpu().contiguous().reshape(-1)
        return bytes(flat.view(sys.modules["torch"].uint8).numpy())
    if isinstance(value, Packed):
        return value.data.tobytes()
    return np.asarray(value).astype(value.dtype.newbyteorder("<"), copy=False).tobytes()


QUERIES: Final[dict[str, Callable[[Store], Any]]] = {
    "runs": lambda store: store.runs(),
    "known_run": lambda store: store.known_run("a", hp={"lr": 1}),
    "open_run": lambda store: store.open_run("0" * 24),
    "find_run": lambda store: store.find_run("a"),
    "resolve": lambda store: store.resolve("latest"),
    "tagged": lambda store: store.tagged("paper"),
    "untag": lambda store: store.untag("paper"),
    "find": lambda store: store.find("0" * 24, 1),
    "checkpoint": lambda store: store.checkpoint("0" * 24, 1),
    "with_latest": lambda store: store.with_latest(lambda found: found),
    "with_latest of a run": lambda store: store.with_latest(lambda found: found, "0" * 24),
    "with_best": lambda store: store.with_best(lambda found: found, "0" * 24),
    "budget": lambda store: store.budget,
    "retain": lambda store: store.retain(),
    "restore": lambda store: store.restore("0" * 24),
}
"""All that a store can be asked."""

"""How much memory may still be taken, by this machine and by the group that this runs in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")
_MINE: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")


def available() -> int | None:
    """The bytes that can be had without pushing anything out; None where nobody says."""
    found = [each for each in (_of_machine(), *map(_of_group, _groups())) if each is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _groups() -> Iterator[Path]:
    """The groups of processes that this one is in, with limits of their own.

    Of a container, its root; of a job that a scheduler started, the groups down to the job's.
    """
    lines = []
    with suppress(OSError):
        lines = _MINE.read_text().splitlines()
    for line in lines:  # `0::/path`, and of older kernels `9:memory:/path`
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if kinds and "memory" not in kinds.split(","):
            continue
        root = _GROUPS / "memory" if kinds else _GROUPS
        below = Path(path.lstrip("/"))
        yield from (root / each for each in (below, *below.parents))
    yield from (_GROUPS, _GROUPS / "memory")


def _of_group(group: Path) -> int | None:
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such file, or "max"
            return int((group / limit).read_text()) - int((group / usage).read_text())
    return None

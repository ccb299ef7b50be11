"""How much memory may still be taken, by this machine and by the container that this runs in."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/sys/fs/cgroup")


def available() -> int | None:
    """The bytes that can be had without pushing anything out; None where nobody says."""
    found = [each for each in (_of_machine(), _of_container()) if each is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _of_container() -> int | None:
    with suppress(OSError, ValueError):
        most = (_GROUP / "memory.max").read_text().strip()
        return None if most == "max" else int(most) - int((_GROUP / "memory.current").read_text())
    return None

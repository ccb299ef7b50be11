"""The machine that figures were measured on, in words."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe(folder: Path) -> dict[str, str]:
    """What a reader needs to know to compare figures."""
    libraries = ("numpy", "blake3", "torch", "safetensors")
    return {
        "processor": f"{len(os.sched_getaffinity(0))} × {_processor()}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "file system": _file_system(folder),
        "python": platform.python_version(),
        **{name: version(name) for name in libraries},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    found = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
    }
    widest = "AVX-512" if "avx512f" in found.get("flags", "") else "AVX2"
    return f"{found.get('model name', 'unknown')} ({widest})"


def _file_system(folder: Path) -> str:
    device = os.stat(folder).st_dev
    number = f" {os.major(device)}:{os.minor(device)} "
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if number in line:
            return line.partition(" - ")[2].split()[0]
    return "unknown"

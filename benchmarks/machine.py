"""The machine that figures were measured on, in words."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
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
        **{name: _version(name) for name in libraries},
        **_gpu(),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _gpu() -> dict[str, str]:
    """The GPU that torch would use, if torch is in use and sees one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    return {
        "GPU": f"{torch.cuda.device_count()} × {properties.name}",
        "GPU memory": f"{properties.total_memory / 2**30:.0f} GiB",
        "driver": _driver(),
        "CUDA": str(torch.version.cuda),
    }


def _driver() -> str:
    """The release of NVIDIA's kernel module, out of the line that names it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    found = re.search(r"\b\d+\.\d+(\.\d+)*\b", text)
    return found[0] if found else "unknown"


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

"""Open a package and print by how many KiB memory grew, and by how many when one layer was read.

Pages of mapped files count: they are there, even if the system can drop them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.files import touch
from benchmarks.models import from_pretrained, transformers
from standfast.packages import load_model_folder, load_model_mmaped

WAYS: dict[str, Callable[[Path], Any]] = {
    "load_model_mmaped": lambda folder: load_model_mmaped(folder)[0],
    "load_model_folder": lambda folder: load_model_folder(folder)[0],
    "from_pretrained": from_pretrained,
}


def resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def main() -> None:
    way, opened, small = WAYS[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3])
    transformers()
    way(small)  # so that everything is imported
    before = resident()
    model = way(opened)
    after = resident()
    touch(weight.detach() for name, weight in model.named_parameters() if ".h.0." in f".{name}")
    print(after - before, resident() - before)


if __name__ == "__main__":
    main()

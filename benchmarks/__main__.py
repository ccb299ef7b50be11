"""Measure everything: `python -m benchmarks [--folder build/bench] [--json build/bench.json]`."""

from __future__ import annotations

import argparse
import json
import shutil
from itertools import chain
from pathlib import Path

from rich.console import Console

from benchmarks import (
    dashboard,
    experiments,
    files,
    formats,
    object_store,
    packages,
    ranks,
    simulations,
    store,
    training,
)
from benchmarks.machine import describe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/bench"))
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--only", default="", help="some of its modules: files,training")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=100)
    machine = describe(arguments.folder)
    console.print("GPT-2 124M with Adam moments: 444 tensors, 1.49 GB", style="bold")
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()), style="dim")
    console.print()
    parts = [
        part
        for part in (
            files,
            formats,
            store,
            experiments,
            training,
            simulations,
            packages,
            ranks,
            object_store,
            dashboard,
        )
        if any(name in part.__name__ for name in arguments.only.split(","))
    ]
    sections = []
    try:
        for section in chain.from_iterable(part.sections(arguments.folder) for part in parts):
            section.print(console)
            sections.append(section.as_json())
    finally:
        shutil.rmtree(arguments.folder)
    arguments.json.write_text(json.dumps({"machine": machine, "sections": sections}, indent=1))
    console.print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()

"""The command: `python -m tests.fuzz --seconds 60`, and `--replay FILE` for what it kept."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.run import fuzz, replay


def main() -> int:
    """Fuzz, print the report, and return 1 if a property did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to try inputs")
    parser.add_argument("--seed", type=int, default=None, help="for the same inputs again")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try this one input alone")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="holdfast-fuzz-") as folder:
        if options.replay:
            replay(options.replay, Path(folder))
            print(f"{options.replay}: all properties hold")
            return 0
        seed = secrets.randbits(32) if options.seed is None else options.seed
        report = fuzz(options.seconds, seed, Path(folder))
        print(report)
        return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())

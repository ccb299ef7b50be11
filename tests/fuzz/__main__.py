"""The command: `python -m tests.fuzz --seconds 60`, and `--replay FILE` for what it kept."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.run import fuzz, replay
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Fuzz each format in turn, print the reports, and return 1 if a property did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to try, all in all")
    parser.add_argument("--seed", type=int, default=None, help="for the same inputs again")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this format")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try this one input alone")
    options = parser.parse_args()
    targets = [TARGETS[name] for name in options.target or TARGETS]
    with TemporaryDirectory(prefix="holdfast-fuzz-") as folder:
        if options.replay:
            for target in targets:
                if target.suffix == options.replay.suffix:
                    replay(target, options.replay, Path(folder))
            print(f"{options.replay}: all properties hold")
            return 0
        seed = secrets.randbits(32) if options.seed is None else options.seed
        failed = False
        for target in targets:
            report = fuzz(target, options.seconds / len(targets), seed, Path(folder))
            print(report, flush=True)
            failed |= bool(report.failures)
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The command: `python -m tests.fuzz --seconds 60`, and `--replay FILE` for what it kept."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz import records
from tests.fuzz.run import fuzz, replay
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Fuzz each format in turn, print the reports, and return 1 if a property did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to try, all in all")
    parser.add_argument("--seed", type=int, default=None, help="for the same inputs again")
    parser.add_argument(
        "--target", choices=[*TARGETS, records.NAME], action="append", help="only this format"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try this one input alone")
    options = parser.parse_args()
    names = options.target or [*TARGETS, records.NAME]
    targets = [TARGETS[name] for name in names if name != records.NAME]
    with TemporaryDirectory(prefix="standfast-fuzz-") as folder:
        if options.replay:
            for target in targets:
                if target.suffix == options.replay.suffix:
                    replay(target, options.replay, Path(folder))
            if options.replay.suffix == records.SUFFIX:
                records.replay_record(options.replay, Path(folder))
            print(f"{options.replay}: all properties hold")
            return 0
        seed = secrets.randbits(32) if options.seed is None else options.seed
        failed = False
        for name in names:
            seconds = options.seconds / len(names)
            if name == records.NAME:
                report = records.fuzz_records(seed, Path(folder), seconds)
            else:
                report = fuzz(TARGETS[name], seed, Path(folder), seconds)
            print(report, flush=True)
            failed |= bool(report.failures)
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The command: `python -m tests.soak --minutes 10`."""

import argparse
import secrets
import signal
import sys

from tests.soak.campaign import KINDS, soak

FUSE = ("fuse", "fuse-without-fallocate", "fuse-without-links")


def main() -> int:
    """Soak each file system in turn, print the reports, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="on each file system")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this one")
    parser.add_argument("--seed", type=int, help="for the same choices again; timing differs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    seed = secrets.randbits(32) if options.seed is None else options.seed
    chosen = options.kind or ["ext4", "tmpfs", *FUSE]
    failed = False
    for kind in chosen:
        is_third = not options.kind and kind in FUSE  # the three of FUSE share its minutes
        print(f"{kind}: seed {seed}", flush=True)
        report = soak(kind, seed, options.minutes * 60 / (len(FUSE) if is_third else 1))
        print(report, flush=True)
        failed |= bool(report.wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

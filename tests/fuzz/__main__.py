"""The command: `python -m tests.fuzz --seconds 60`, and `--replay FILE` for what it kept."""

import argparse
import subprocess
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.fuzz.records import NAMES, subject_named
from tests.fuzz.run import KEPT, memory_folder, replace_corpus

LARGEST = 8192
"""Longer inputs find little more, and make each one slower."""


def campaign(name: str, inputs: Path, *options: str) -> int:
    """Fuzz a target in a process of its own, which libFuzzer ends."""
    command = [sys.executable, "-m", "tests.fuzz.campaign", name, str(inputs), *options]
    limits = [f"-max_len={LARGEST}", "-timeout=30", "-rss_limit_mb=3000", "-print_final_stats=1"]
    return subprocess.run([*command, *limits], check=False).returncode


def fuzz(name: str, seconds: float, keep: bool) -> int:
    """Fuzz from the corpus and the seeds; with `keep`, the smallest that cover most stay."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, memory_folder() as files:
        found, merged = Path(folder, "found"), Path(folder, "merged")
        for each in (found, merged):
            each.mkdir()
        for i, data in enumerate(subject_named(name, files).seeds()):
            (found / str(i)).write_bytes(data)
        prefix = f"-artifact_prefix={KEPT}/{name}."
        code = campaign(name, found, f"-max_total_time={seconds:.0f}", prefix)
        if keep and not code:
            code = campaign(name, merged, str(found), "-merge=1")
            replace_corpus(name, [path.read_bytes() for path in merged.iterdir()])
    return code


def replay(name: str, path: Path) -> None:
    """Try one input in many ways; raises what is wrong with it."""
    with memory_folder() as folder:
        subject = subject_named(name, folder)
        for seed in range(100):  # each takes other options, and other slices of the tensors
            subject.attempt(path.read_bytes(), Random(seed), 0)
    print(f"{path}: all properties hold")


def main() -> int:
    """Fuzz each target in turn, and return 1 if a property did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to try, all in all")
    parser.add_argument("--target", choices=NAMES, action="append", help="only this one")
    parser.add_argument("--keep", action="store_true", help="put what was found into the corpus")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try this one input alone")
    options = parser.parse_args()
    names = options.target or NAMES
    if options.replay:
        (name,) = options.target or [options.replay.name.partition(".")[0]]
        replay(name, options.replay)
        return 0
    codes = [fuzz(name, options.seconds / len(names), options.keep) for name in names]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())

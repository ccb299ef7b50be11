"""`python -m tests.mutants`: break the product in one place at a time; do the tests notice?

Each mutant is applied to a copy of src/, and the tests that it names run against the copy. It is
caught if one of them fails or hangs, and survives if they pass.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Final

from tests import ROOT
from tests.mutants.mutant import MUTANTS, Mutant, WrongList, module_of, read_sources

PAGE: Final = ROOT / "docs" / "mutants.md"
LIMIT: Final = 240
"""Seconds after which the tests of a mutant count as hung; they take at most 30."""
FAILURE: Final = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py::.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests said of a mutant."""

    mutant: Mutant
    test: str
    """The first test that failed; empty if none did."""
    hung: bool
    seconds: float
    wrong: str = ""
    """Why the tests could not say anything."""

    @property
    def caught(self) -> bool:
        """Whether a test failed, or hung."""
        return bool(self.test or self.hung) and not self.wrong

    @property
    def result(self) -> str:
        if self.wrong:
            return f"WRONG: {self.wrong}"
        if self.hung:
            return "hung"
        return f"caught by {self.test}" if self.test else "SURVIVED"


def run_tests(source: Path, folder: Path, tests: list[str], *options: str) -> tuple[int, str]:
    """Run tests against a copy of src/; returns pytest's exit status and output.

    Raises TimeoutExpired after the limit, when all processes of the run were killed.
    """
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=line", "-rfE"]
    process = subprocess.Popen(
        [*command, f"--basetemp={folder / 'tmp'}", *options, *tests],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT if "-x" in options else None)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, output


def try_mutant(mutant: Mutant, folder: Path) -> Outcome:
    """Apply a mutant to a fresh copy of src/ in the folder, and run its tests."""
    begun = time.monotonic()
    source = folder / "src"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    module = source / module_of(mutant, read_sources(source))
    module.write_text(module.read_text().replace(mutant.old, mutant.new))
    options = ["-x", *(["-m", ""] if mutant.long else [])]
    try:
        status, output = run_tests(source, folder, list(mutant.tests), *options)
    except subprocess.TimeoutExpired:
        return Outcome(mutant, "", True, time.monotonic() - begun)
    failure = FAILURE.search(output)
    test = failure[1] if failure else ""
    # 2 is an error while tests are collected, 4 a wrong name, 5 no test: these catch nothing.
    right = status == 0 or (status == 1 and test)
    wrong = "" if right else f"pytest exited with {status}\n{output[-3000:]}"
    return Outcome(mutant, test, False, time.monotonic() - begun, wrong)


def check_tests(mutants: list[Mutant], jobs: int) -> None:
    """Run all the named tests on the product as it is; raises WrongList unless they pass."""
    plain = {test for mutant in mutants if not mutant.long for test in mutant.tests}
    with TemporaryDirectory(prefix="mutants-") as folder:
        for tests, *options in (
            (plain, f"-n{jobs}"),
            ({test for mutant in mutants for test in mutant.tests} - plain, f"-n{jobs}", "-m", ""),
        ):
            if tests:
                status, output = run_tests(ROOT / "src", Path(folder), sorted(tests), *options)
                if status:
                    raise WrongList(f"the tests fail without any mutant:\n{output[-5000:]}")


def try_all(mutants: list[Mutant], jobs: int) -> list[Outcome]:
    """Try each mutant and print what came of it."""
    with TemporaryDirectory(prefix="mutants-") as above, ThreadPoolExecutor(jobs) as pool:
        folders: SimpleQueue[Path] = SimpleQueue()
        for job in range(jobs):
            folder = Path(above) / str(job)
            folder.mkdir()
            folders.put(folder)

        def try_one(mutant: Mutant) -> Outcome:
            folder = folders.get()
            outcome = try_mutant(mutant, folder)
            folders.put(folder)
            print(f"{mutant.name}: {outcome.result} ({outcome.seconds:.0f} s)", flush=True)
            return outcome

        return list(pool.map(try_one, mutants))


def page(outcomes: list[Outcome], seconds: float) -> str:
    """The page docs/mutants.md."""
    caught = [outcome for outcome in outcomes if outcome.caught]
    rows = []
    for outcome in sorted(outcomes, key=lambda outcome: outcome.mutant.name):
        mutant = outcome.mutant
        breaks = mutant.breaks + (f" Fixed before: {mutant.reverts}." if mutant.reverts else "")
        test = f"`{outcome.test.partition('[')[0]}`" if outcome.test else outcome.result
        rows.append(f"| {mutant.name} | {breaks} | {mutant.guarantee} | {test} |")
    return f"""\
# Mutants

A mutant is the product with one place broken on purpose: an `fsync` left out, a digest that is not
checked, a lock that is ignored. If all tests still pass, none of them tests that place. `make
mutants` applies each mutant below to a copy of `src/`, one at a time, runs the few tests that are
named for it, and writes this page. The lists are in `tests/mutants/`.

It takes {max(1, round(seconds / 60))} minutes on two cores. To try some of the mutants: `python -m
tests.mutants NAME…`. The exit status is 1 if a mutant survives, or if the list is wrong: the text
to be replaced is not found exactly once, or a test cannot be run.

To add a mutant, break the place by hand and look for the fastest test that fails. If none does,
write it first.

## Result
{len(outcomes)} mutants: {len(caught)} caught, \
{sum(not outcome.mutant.long for outcome in caught)} of them by tests that `make test` runs. \
{sum(bool(outcome.mutant.reverts) for outcome in outcomes)} of them bring back a defect that was \
fixed before.

| mutant | what it breaks | guarantee | caught by |
|---|---|---|---|
{chr(10).join(rows)}
"""


def main() -> int:
    """Return 1 if a mutant survived, or if the list is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants at once")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if unknown := set(options.names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    if options.page and options.names:
        parser.error("--page needs all mutants")
    mutants = [each for each in MUTANTS if not options.names or each.name in options.names]
    begun = time.monotonic()
    try:
        sources = read_sources(ROOT / "src")
        for mutant in mutants:
            module_of(mutant, sources)
        check_tests(mutants, options.jobs)
        outcomes = try_all(mutants, options.jobs)
    except WrongList as error:
        print(error)
        return 1
    seconds = time.monotonic() - begun
    survived = [outcome for outcome in outcomes if not outcome.caught]
    print(f"{len(outcomes)} mutants, {len(survived)} not caught, in {seconds:.0f} s")
    for outcome in survived:
        print(f"{outcome.mutant.name}: {outcome.result}: {outcome.mutant.breaks}")
    if options.page:
        PAGE.write_text(page(outcomes, seconds))
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())

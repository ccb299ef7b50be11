"""What is latest is a matter of sequence, whatever the clock and the times of files say."""

import os
import time
from pathlib import Path

import pytest

from standfast.store import Store
from tests.kit.fault_states import state
from tests.kit.seams import Seams
from tests.kit.stores import same

YEAR = 365 * 24 * 3600


class Clock:
    """A clock that can be set, for this process and for the folders of a store."""

    def __init__(self, path: Path, seams: Seams) -> None:
        self._path = path
        self.offset = 0
        seams.system(
            time,
            time=lambda real: real() + self.offset,
            time_ns=lambda real: real() + self.offset * 10**9,
        )

    def stamp(self) -> None:
        """Let everything in the store have the time that the clock tells."""
        for folder, folders, files in os.walk(self._path):
            for name in [*folders, *files]:
                os.utime(os.path.join(folder, name), ns=(time.time_ns(), time.time_ns()))


@pytest.fixture
def clock(folder: Path, seams: Seams) -> Clock:
    return Clock(folder, seams)


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("stamped", [True, False], ids=["files too", "the process alone"])
@pytest.mark.parametrize(
    "offsets", [(0, -YEAR, -2 * YEAR), (0, YEAR, -YEAR), (YEAR, 0, YEAR)], ids=str
)
def test_latest_is_the_last_commit_whatever_the_clock_says(offsets, stamped, clock, folder):
    step = 0
    times = []
    for offset in offsets:
        clock.offset = offset
        for name in ("first", "second", "first"):
            # A step lower than those before is as good as any: order is no matter of steps.
            step += 1
            run = Store(folder).run(name)
            times.append(run.save(1000 - step, state(step)).head.time)
            run.close()
            if stamped:
                clock.stamp()
            opened = Store(folder)
            assert opened.resolve("latest").sequence == step
            assert same(opened.resolve("latest").state(), state(step))
            assert same(opened.run(name).load(), state(step))
    assert times != sorted(times), "the clock was not set back"
    sequences = [each.sequence for run in Store(folder).runs() for each in run.checkpoints()]
    assert sorted(sequences) == list(range(1, 10))


@pytest.mark.guarantee("G7")
def test_a_change_is_seen_by_others_whatever_the_clock_says(clock, folder):
    other = Store(folder)
    run = Store(folder).run("first")
    for step in range(60):
        clock.offset = (-YEAR, 0, YEAR)[step % 3]
        run.save(step, {"seed": step})
        assert other.resolve("latest").step == step

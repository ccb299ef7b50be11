"""Both programs, stopped and started again, end as if they had never been stopped."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.testing import assert_equal

from standfast.amr import Snapshot, logical_digest
from tests.examples import EXAMPLES
from tests.examples.programs import checkpoints, command, digest, exported, run
from tests.kit.parallel_ranks import run_ranks

# How each is told to be small, and for how long it runs, in three parts.
PROGRAMS = {
    "heat": (["--every", 20], "--steps", 60),
    "lattice": (["--every", 8, "--size", 8, "--warm-up", 4], "--trajectories", 24),
}
LONG = pytest.mark.long


def small(name, part=3):
    options, count, last = PROGRAMS[name]
    return [*options, count, part * last // 3]


def once_for_each(make):
    """A fixture: what `make` makes for a program, in a folder of the module, once."""

    @pytest.fixture(scope="module")
    def fixture(tmp_path_factory):
        made = {}

        def of(name):
            if name not in made:
                made[name] = make(name, tmp_path_factory.mktemp(name))
            return made[name]

        return of

    return fixture


@once_for_each
def whole(name, folder):
    """What a program that was never stopped printed, saved and drew."""
    store, picture = folder / "store", folder / "end.png"
    printed = run(name, *small(name), "--checkpoint", store, "--picture", picture)
    return printed, store, picture


@once_for_each
def begun(name, folder):
    """What one that ended after a third printed and saved."""
    printed = run(name, *small(name, 1), "--checkpoint", folder / "store", "--resume")
    return printed, folder / "store"


@pytest.mark.parametrize("name", ["heat", pytest.param("lattice", marks=LONG)])
def test_a_run_in_three_processes_is_one_run(name, whole, begun, tmp_path):
    printed, store, picture = whole(name)
    check_shown(name, printed.splitlines(), imread(picture)[..., :3])
    first, third_of_it = begun(name)
    parts = shutil.copytree(third_of_it, tmp_path / "parts")
    unasked = command(name, *small(name), "--checkpoint", parts)
    refused = subprocess.run(unasked, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.strip().endswith("give --resume, or another folder")
    second = run(name, *small(name, 2), "--checkpoint", parts, "--resume")
    third = run(name, *small(name), "--checkpoint", parts, "--resume")
    assert first.startswith("There is no checkpoint yet: a new run begins.")
    assert len({digest(each) for each in (first, second, third)}) == 3
    assert digest(third) == digest(printed)
    of_parts, of_whole = checkpoints(parts), checkpoints(store)
    assert list(of_parts) == list(of_whole) == [small(name, part)[-1] for part in (1, 2, 3)]
    for step, checkpoint in of_whole.items():
        assert_equal(besides(of_parts[step]), besides(checkpoint))
        folders = tmp_path / f"parts{step}", tmp_path / f"whole{step}"
        assert exported(of_parts[step], folders[0]) == exported(checkpoint, folders[1])


def check_shown(name, lines, pixels):
    """Progress is told in about ten lines, and there is something on the picture."""
    told = [line for line in lines if line.startswith("  ")]
    assert 8 <= len(told) <= 14
    assert told[-1].split()[0] == str(PROGRAMS[name][2])
    assert 500 <= pixels.shape[0] <= 1500
    assert 800 <= pixels.shape[1] <= 2000
    assert len(np.unique(pixels[::7, ::7].reshape(-1, 3), axis=0)) > 20


def besides(checkpoint):
    """What a snapshot has besides its trees, less the global generators, which nobody uses."""
    state = checkpoint.load()
    assert set(state) == {"simulation", "rank0"}
    return state["simulation"], state["rank0"]["random"]["own"]


@LONG
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_killed_run_goes_on_from_its_last_checkpoint(name, tmp_path):
    store, count = tmp_path / "store", PROGRAMS[name][1]
    often = [*small(name), "--checkpoint", store, "--every", 1]
    endless = command(name, *often, count, 1_000_000)
    with subprocess.Popen(endless, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while len(list(store.rglob("*_step_??????.json"))) < 8:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    last = max(checkpoints(store))
    resumed = run(name, *often, count, last + 5, "--resume")
    assert resumed.startswith(f"Resumed after step {last}.")
    assert digest(resumed) == digest(run(name, *small(name), count, last + 5))


@LONG
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_rank_becomes_three_and_three_become_one(name, whole, begun, tmp_path):
    store = shutil.copytree(begun(name)[1], tmp_path / "store")
    further = ["--checkpoint", str(store), "--resume", "--reshard"]
    options = [*map(str, small(name, 2)), *further]
    shared = run_ranks(3, EXAMPLES / f"{name}.py", *options)
    alone = run(name, *small(name), *further)
    assert digest(shared.stdout) == logical_digest(checkpoints(whole(name)[1])[small(name, 2)[-1]])
    assert digest(alone) == digest(whole(name)[0])
    assert [Snapshot(each).ranks for each in checkpoints(store).values()] == [1, 3, 1]

"""The programs as a user starts them: stopped and started again, they end as if they never had."""

import shutil
import subprocess

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.testing import assert_equal

from standfast.amr import Snapshot, logical_digest
from tests.examples import EXAMPLES
from tests.examples.programs import checkpoints, command, digest, exported, kill_after, run
from tests.kit.cases import kept
from tests.kit.parallel_ranks import run_ranks

# How each is told to be small, and for how long it runs, in three parts.
PROGRAMS = {
    "heat": (["--every", 20], "--steps", 60),
    "lattice": (["--every", 8, "--size", 8, "--warm-up", 4], "--trajectories", 24),
}


def small(name, part=3):
    options, count, last = PROGRAMS[name]
    return [*options, count, part * last // 3]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What a program printed and saved, whole or a third of it, each made once."""
    found = {}

    def of(name, part):
        if (name, part) not in found:
            folder = tmp_path_factory.mktemp(name)
            options = ["--picture", folder / "end.png"] if part == 3 else ["--resume"]
            words = [*small(name, part), "--checkpoint", folder / "store", *options]
            found[name, part] = run(name, *words), folder / "store"
        return found[name, part]

    return of


@pytest.mark.parametrize("name", kept(PROGRAMS, "heat"))
def test_a_run_in_several_processes_is_one_run(name, made, tmp_path):
    printed, store = made(name, 3)
    check_shown(name, printed.splitlines(), imread(store.parent / "end.png")[..., :3])
    first, third_of_it = made(name, 1)
    parts = shutil.copytree(third_of_it, tmp_path / "parts")
    unasked = command(name, *small(name), "--checkpoint", parts)
    refused = subprocess.run(unasked, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "--resume" in refused.stderr
    last = run(name, *small(name), "--checkpoint", parts, "--resume")
    assert digest(last) == digest(printed) != digest(first)
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
    """What a snapshot has besides its trees, less the global generators, which are not used."""
    state = checkpoint.load()
    assert set(state) == {"simulation", "rank0"}
    return state["simulation"], state["rank0"]["random"]["own"]


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_killed_run_goes_on_from_its_last_checkpoint(name, tmp_path):
    store, count = tmp_path / "store", PROGRAMS[name][1]
    often = [*small(name), "--checkpoint", store, "--every", 1]
    kill_after(command(name, *often, count, 1_000_000), store, checkpoints=8)
    last = max(checkpoints(store))
    resumed = run(name, *often, count, last + 5, "--resume")
    assert resumed.startswith(f"Resumed after step {last}.")
    assert digest(resumed) == digest(run(name, *small(name), count, last + 5))


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_rank_becomes_three_and_three_become_one(name, made, tmp_path):
    store = shutil.copytree(made(name, 1)[1], tmp_path / "store")
    further = ["--checkpoint", str(store), "--resume", "--reshard"]
    options = [*map(str, small(name, 2)), *further]
    shared = run_ranks(3, EXAMPLES / f"{name}.py", *options)
    alone = run(name, *small(name), *further)
    printed, whole = made(name, 3)
    assert digest(shared.stdout) == logical_digest(checkpoints(whole)[small(name, 2)[-1]])
    assert digest(alone) == digest(printed)
    assert [Snapshot(each).ranks for each in checkpoints(store).values()] == [1, 3, 1]


def test_the_example_for_files_finds_the_change_and_the_damage(tmp_path):
    loaded, changed, damaged = run("files", tmp_path / "folder").splitlines()
    assert loaded == "step 100, ['embedding', 'head'], rows (10, 64)"
    assert changed == "changed: ['head']"
    assert "'head'" in damaged

"""A Checkpointer with a mirror: it holds nothing up, and all of it arrives."""

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import KeepLast, Store
from standfast.errors import BadOption, NotMirrored
from standfast.store.backends.memory import MemoryBackend
from standfast.store.query.mirrors import read_mirrors
from standfast.store.retention.pins import pinned_steps
from standfast.store.save.changing import change_of
from standfast.training.beginning import PROOF
from standfast.training.mirror.mirror import Mirrored
from tests.kit.rank_threads import ThreadRanks, on_ranks
from tests.kit.walk import Walk, checkpointer

EVERY: dict[str, Any] = {"name": "walk", "every": 1}
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever it was started by
import numpy as np
import standfast
from standfast.training import mirror

mirror._SILENT = 0.2
store, place, steps, *flags = sys.argv[1:]
state = standfast.TrainingState(walk={"weights": np.zeros(1 << 20)})
with standfast.Checkpointer(store, state, name="walk", every=1, mirror=place) as ckpt:
    for step in ckpt.steps(int(steps)):
        state.walk["weights"] += np.random.default_rng(step).random(1 << 20)
        ckpt.step(step)
    ckpt.wait()
    print("done", flush=True)
    if "--stay" in flags:
        signal.pause()
print("left", flush=True)
"""


@contextmanager
def program(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def steps_in(place: Path) -> list[int]:
    """The steps of the only run, each verified, whatever else lies there."""
    store = Store(place)
    if not Path(store.url, "models").exists():
        return []
    found = [checkpoint for run in store.runs() for checkpoint in run.checkpoints()]
    for checkpoint in found:
        checkpoint.verify()
    return [checkpoint.step for checkpoint in found]


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


def train(store: Path | Store, steps: int, place: Any, **options: Any) -> Any:
    program = Walk()
    options = {**EVERY, "mirror": place, **options}
    with checkpointer(store, program.state, **options) as ckpt:
        for step in ckpt.steps(steps):
            ckpt.step(step, value=program.train())
    return ckpt


@contextmanager
def hanging(place: Path, store: Path) -> Iterator[None]:
    """A mirror into which nothing can be copied for now: somebody else changes the run there."""
    run = Store(store).run("walk").hash
    with change_of(Store(place).backend, run):
        yield


def copying_processes(store: Path) -> list[int]:
    """The numbers of those that copy the checkpoints of a store."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if b"standfast.training.mirror.process" in words and os.fsencode(store) in b"".join(words):
            found.append(int(path.parent.name))
    return found


def test_when_the_with_ends_everything_is_in_the_mirror(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store, place = tmp_path / "store", tmp_path / "mirror"
    ckpt = train(store, 5, "mirror", keep=KeepLast(2), mirror_keep=KeepLast(3))
    assert steps_in(store) == [4, 5]
    assert 5 in steps_in(place)
    assert len(steps_in(place)) <= 3
    assert ckpt.mirrored == Mirrored(str(place), 5, 0, None)
    assert copying_processes(tmp_path) == []
    run = Store(store).run("walk").hash
    assert read_mirrors(Store(store).backend) == {run: str(place)}
    train(store, 6, Store("mirror"))
    assert 6 in steps_in(place)


def test_a_mirror_that_hangs_holds_no_save_up(tmp_path):
    store, place = tmp_path / "store", tmp_path / "mirror"
    with hanging(place, store):
        ckpt = train(store, 4, place, asynchronous=True, mirror_wait=0)
        assert steps_in(store) == [*range(1, 5)]
        assert steps_in(place) == []
        assert ckpt.mirrored.step is None
    train(store, 4, place)  # nothing is left to do but to copy
    assert steps_in(place) == [*range(1, 5)]


def test_a_program_that_is_killed_leaves_no_half_and_nothing_is_copied_twice(tmp_path):
    store, place = tmp_path / "store", tmp_path / "mirror"

    def files() -> dict[str, int]:
        found = {}
        for path in place.glob("checkpoints/models/*/*"):
            with suppress(FileNotFoundError):  # it got its name this moment
                found[path.name] = path.stat().st_ino
        return found

    def records() -> int:
        return sum("_step_" in name and name.endswith(".json") for name in files())

    with hanging(place, store), program(store, place, 6, "--stay") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"  # six are committed, none is copied
    with program(store, place, 6, "--stay") as process:
        wait_for(lambda: records() >= 2)
        process.kill()
        process.wait()
        wait_for(lambda: not copying_processes(store))  # it dies with its parent
    before = files()
    assert set(steps_in(place)) <= {1, 2, 3, 4, 5, 6}  # and each of them is whole
    with program(store, place, 6) as process:
        assert process.wait(60) == 0
    assert sorted(steps_in(place)) == [1, 2, 3, 4, 5, 6]
    after = files()
    kept = {name: number for name, number in before.items() if name.endswith(".safetensors")}
    assert {name: after[name] for name in kept} == kept


def test_a_copying_process_that_dies_is_followed_by_another(tmp_path):
    store, place = tmp_path / "store", tmp_path / "mirror"
    with checkpointer(store, Walk().state, **EVERY, mirror=place) as ckpt:
        wait_for(lambda: copying_processes(store))
        (number,) = copying_processes(store)
        os.kill(number, signal.SIGKILL)
        wait_for(lambda: copying_processes(store) not in ([], [number]))
        ckpt.step(1)
    assert steps_in(place) == [1]
    assert ckpt.mirrored.problem is None


def test_a_mirror_that_fails_is_warned_of_once_and_used_when_it_works_again(tmp_path):
    store, place = tmp_path / "store", tmp_path / "mirror"
    place.write_text("a file where the folder should be")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with checkpointer(store, Walk().state, **EVERY, mirror=place) as ckpt:
            ckpt.step(1)
            wait_for(lambda: caught)
            assert ckpt.mirrored.waiting == 1
            assert str(place) in ckpt.mirrored.problem
            place.unlink()
            ckpt.step(2)
    (warning,) = caught
    assert warning.category is NotMirrored
    assert str(place) in str(warning.message)
    assert sorted(steps_in(place)) == [1, 2]


def test_another_run_in_the_mirror_is_warned_of(tmp_path, seams, capfd):
    place, warned = tmp_path / "mirror", []
    train(tmp_path / "other", 2, None)
    train(place, 3, None)
    seams.system(warnings, warn=lambda warn, text, *_, **__: warned.append(str(text)))
    ckpt = train(tmp_path / "other", 4, place, mirror_keep=KeepLast(1), quiet=False)
    assert steps_in(place) == [1, 2, 3]
    for name in (str(place), ckpt.run.hash, "`standfast rm`"):
        assert name in ckpt.mirrored.problem
    assert ckpt.mirrored.problem in capfd.readouterr().err
    assert ckpt.mirrored.problem in warned[0]


def test_where_warnings_are_errors_the_training_goes_on(tmp_path):
    (tmp_path / "mirror").write_text("a file where the folder should be")
    program = Walk()
    options = {"name": "walk", "mirror": tmp_path / "mirror", "mirror_wait": 0}
    with checkpointer(tmp_path / "store", program.state, **options) as ckpt:
        mirror = ckpt._mirror
        assert mirror is not None
        mirror._warn(3, "it is gone")  # as its thread does: warnings are errors here
        ckpt.step(1)


def test_the_end_waits_no_longer_than_a_signal_gives(tmp_path, seams, capfd):
    seams.bound("grace of a mirror", 0.3)
    store, place = tmp_path / "store", tmp_path / "mirror"
    with (
        hanging(place, store),
        checkpointer(store, Walk().state, **EVERY, mirror=place, quiet=False) as ckpt,
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        ckpt.step(1)
    assert ckpt.should_stop
    assert str(place) in capfd.readouterr().err


def test_ctrl_c_ends_the_wait_and_the_program_goes_on(tmp_path):
    store, place = tmp_path / "store", tmp_path / "mirror"
    with hanging(place, store), program(store, place, 2) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "done\n"
        assert process.stderr.readline()
        assert str(place) in process.stderr.readline()  # that it waits, and how to end that
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "left\n"
        assert process.wait(60) == 0
        assert str(place) in process.stderr.read()
    assert steps_in(store) == [1, 2]


def test_a_wait_without_any_progress_ends(tmp_path, seams):
    seams.bound("patience of a mirror", 0.3)
    store, place = tmp_path / "store", tmp_path / "mirror"
    with hanging(place, store):
        assert train(store, 1, place).mirrored.step is None


def test_what_was_being_copied_is_deleted_at_the_end(tmp_path):
    store, place = tmp_path / "store", tmp_path / "mirror"
    options = {**EVERY, "mirror": place, "mirror_wait": 0, "keep": KeepLast(1)}
    with hanging(place, store):
        with checkpointer(store, Walk().state, **options) as ckpt:
            ckpt.step(1)
            backend, run = ckpt.store.backend, ckpt.run.hash
            wait_for(lambda: pinned_steps(backend, run) == {1})
            ckpt.step(2)
            assert steps_in(store) == [1, 2]  # the policy let it be
        assert steps_in(store) == [2]


def test_of_many_ranks_the_first_one_copies(tmp_path):
    def rank(comm: ThreadRanks) -> bool:
        state = standfast.TrainingState(walk={"weights": np.zeros(4)})
        options = {**EVERY, "mirror": tmp_path / "mirror", "comm": comm}
        with checkpointer(tmp_path / "store", state, **options) as ckpt:
            for _ in ckpt.steps(3):
                pass
        return ckpt.mirrored is not None

    assert on_ranks(2, rank) == [True, False]
    assert sorted(steps_in(tmp_path / "mirror")) == [1, 2, 3]


def test_a_store_in_the_place_of_the_named_one_has_no_mirror(tmp_path, monkeypatch):
    monkeypatch.setenv(PROOF, str(tmp_path / "elsewhere"))
    ckpt = train(tmp_path / "store", 1, tmp_path / "mirror")
    assert ckpt.mirrored is None
    assert steps_in(tmp_path / "elsewhere") == [1]
    assert not (tmp_path / "mirror").exists()
    monkeypatch.setenv(PROOF, str(tmp_path / "store"))
    assert train(tmp_path / "store", 1, tmp_path / "mirror").mirrored is not None


@pytest.mark.parametrize(
    "options",
    [
        {"mirror": "s3://key:secret@bucket/prefix"},
        {"mirror": "s3://bucket/prefix?X-Amz-Signature=secret"},
        {"mirror": 7},
        {"mirror": "store"},
        {"mirror": Store(MemoryBackend())},
        {"mirror": "m", "mirror_wait": -1},
        {"mirror": "m", "mirror_keep": 3},
        {"mirror_keep": KeepLast(3)},
    ],
    ids=["user", "query", "number", "itself", "memory", "wait", "keep", "no mirror"],
)
def test_what_can_be_no_mirror_is_refused(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadOption) as caught:
        checkpointer(Path("store"), Walk().state, **options)
    assert "secret" not in str(caught.value)
    assert not Path("store").exists()


def test_only_a_store_in_a_folder_has_a_mirror(tmp_path):
    with pytest.raises(BadOption):
        checkpointer(Store(MemoryBackend()), Walk().state, mirror=tmp_path)

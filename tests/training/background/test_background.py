"""Saves in the background: what is saved, when what is called, and what the helper process is."""

import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from standfast import Store
from standfast.errors import BadLabel, NotOpen, RefusedState, SlowSaves, StepExists
from standfast.files import mapping
from standfast.store.backends.memory import MemoryBackend
from standfast.store.index.manifest import close_manifests
from standfast.store.save.planning import plan_state
from standfast.store.schema.record import Head
from standfast.training.background.background import Background
from tests.files.staging.test_staging import mappings
from tests.kit.process import open_files
from tests.kit.stores import bytes_written, record_path, same
from tests.training.background.saver import helper

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(300, 300, generator=generator)
    return {
        "model": {"weight": weight, "tied": weight, "row": weight[3], "none": torch.empty(0)},
        "optimizer": {"moment": np.full((40, 70), step, np.float32)[::2]},
        "step": step,
        "history": [1.5, float("inf"), None, "x"],
    }


def wait_for(gate: threading.Event) -> None:
    assert gate.wait(60)


@pytest.mark.guarantee("G4")
def test_what_was_saved_is_loaded_bit_for_bit(run, background):
    background.save(state(1), 1, metrics={"loss": 0.5}, epoch=3, best=True)
    background.save(state(2), 2)
    background.wait()
    assert same(run.load(1), state(1))
    assert same(run.load("latest"), state(2))
    first, second = run.checkpoints()
    assert (first.metrics, first.epoch, first.step) == ({"loss": 0.5}, 3, 1)
    assert second.head.parent == first.head.place
    assert run.checkpoint("best").step == 1
    assert first.head.software["torch"] == version("torch")
    first.verify()
    second.verify()
    loaded = run.load("latest")["model"]
    assert loaded["tied"].data_ptr() == loaded["weight"].data_ptr()

    sync = run.save(3, state(2)).head  # the same record as by a synchronous save
    assert (sync.parent, sync.sequence) == (second.head.place, second.head.sequence + 1)
    for field in ("identity", "software", "tensors", "nbytes", "parts"):
        assert getattr(sync, field) == getattr(second.head, field)
    background.save(state(1), 4)  # and on with the number after that
    background.wait()
    assert run.checkpoint(4).head.sequence == sync.sequence + 1


@pytest.mark.guarantee("G4")
def test_the_state_may_change_as_soon_as_save_returns(run, background):
    saved, expected = state(1), state(1)
    for step in range(1, 6):
        background.save(saved, step)
        saved["model"]["weight"] += 1
        saved["optimizer"]["moment"] += 1
    background.wait()
    for step in range(1, 6):
        assert same(run.load(step), expected)
        expected["model"]["weight"] += 1
        expected["optimizer"]["moment"] += 1


def test_states_of_other_shapes_and_sizes_follow_each_other(run, background):
    large = {"frozen": np.random.default_rng(0).random(1_000_000), "step": np.zeros(1)}
    states: list[Any] = [
        *({"a": np.arange(10)}, {"a": np.arange(10.0)}),
        {"a": {"b": np.arange(2_000_000)}, "c": np.zeros((3, 0))},
        {"only": "plain values"},
        [torch.arange(5), (np.float32(3), b"bytes")],
        *({"a": np.arange(10)}, large),
    ]
    for step, each in enumerate(states):
        background.save(each, step)
    background.wait()
    for step, each in enumerate(states):
        assert same(run.load(step), each)
    large["step"][:] = 1

    def save() -> None:
        background.save(large, 100)
        background.wait()

    assert bytes_written(run, save) < 100_000  # what the store has is not written again
    assert same(run.load(100), large)


def test_what_is_refused_is_raised_once_and_the_next_save_works(run, background):
    with pytest.raises(BadLabel):
        background.save(state(1), -1)
    with pytest.raises(BadLabel):
        background.save(state(1), 1, epoch="first")  # type: ignore[arg-type]
    with pytest.raises(RefusedState):
        background.save(state(1), 1, metrics={"loss": "low"})
    with pytest.raises(RefusedState):
        background.save({"model": object()}, 1)
    background.save(state(1), 1)
    background.save(state(2), 1)
    with pytest.raises(StepExists, match="1"):
        background.wait()
    background.wait()
    assert same(run.load(), state(1))
    background.save(state(2), 1, replace=True)
    background.wait()
    assert same(run.load(), state(2))


def test_callbacks_run_in_the_background_before_and_after_the_commit(run, background):
    calls: list[tuple[str, bool, bool]] = []
    heads: list[Head] = []

    def note(name: str) -> None:
        is_here = threading.current_thread() is threading.main_thread()
        calls.append((name, is_here, record_path(run, 1).exists()))

    def committed(head: Head) -> None:
        note("committed")
        heads.append(head)

    background.save(state(1), 1, before_commit=lambda: note("before"), committed=committed)
    background.wait()
    assert calls == [("before", False, False), ("committed", False, True)]
    assert heads == [run.checkpoint(1).head]


def test_whoever_waits_for_a_save_can_be_interrupted_and_is_told_how_long(run, background):
    gate = threading.Event()
    background.save(state(1), 1, before_commit=lambda: wait_for(gate))
    background.wait(0.05)
    assert not background.is_idle()
    old = signal.signal(signal.SIGALRM, lambda *_: gate.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        held = background.save(state(2), 2)  # there is one staging
    finally:
        signal.signal(signal.SIGALRM, old)
    assert gate.is_set()
    assert held.waited > 0
    assert record_path(run, 1).exists()
    background.wait(60)
    assert background.is_idle()
    assert same(run.load(), state(2))


def test_the_helper_has_nothing_of_this_process_but_a_socket_and_the_staging(run, background):
    background.save(state(1), 1)
    background.wait()
    number = helper(background)
    process, links = Path("/proc", str(number)), {}
    for fd in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # its thread for the manifest opens and closes some
            links[int(fd.name)] = os.readlink(fd)
    assert [links[fd] for fd in (0, 1, 2)] == ["/dev/null"] * 3
    passing = (run.store.url, "/proc/")  # the same thread finds out the kind of file system
    links = {fd: link for fd, link in links.items() if not any(each in link for each in passing)}
    kinds = {link.split(":")[0] for fd, link in links.items() if fd > 2}
    assert kinds == {"socket", "/memfd"}, links
    assert os.getsid(number) == number
    assert "libtorch" not in (process / "maps").read_text()
    assert "tests" not in (process / "cmdline").read_text()


@pytest.mark.parametrize("moment", ["starting", "running"])
def test_what_tells_a_job_to_stop_does_not_stop_the_helper(run, background, moment):
    background.start()
    if moment == "running":
        background.save(state(1), 1)
        background.wait()
    before = helper(background)
    for stop in STOPS:
        os.kill(before, stop)
    background.save(state(2), 2)
    background.wait()
    assert helper(background) == before
    assert same(run.load(), state(2))


def test_closing_ends_the_helper_and_the_thread_and_gives_the_memory_back(run):
    background, many = Background(run), {i: np.ones(1) for i in range(300)}
    large = {"weight": np.ones(3_000_000), "small": many}
    background.start()
    background.warm(plan_state(large))  # takes the memory that the save needs
    background.save(large, 1)
    background.wait()
    number, staging = helper(background), background._stagings.all[0]
    assert staging.size < 1.1 * 24_000_000
    file = os.fstat(staging.fileno()).st_ino
    assert mappings(file) == 1
    background.close()
    background.close()
    assert same(run.load(), large)
    assert not Path("/proc", str(number)).exists()
    assert background._thread is not None
    assert background._thread.join(0)
    gc.collect()
    assert mappings(file) == 0
    with pytest.raises(NotOpen):
        background.save(large, 2)


def test_close_does_not_wait_for_memory_that_is_being_warmed(run, seams):
    began, closing, sizes = threading.Event(), threading.Event(), []

    def madvise(real: Any, address: Any, size: Any, advice: Any) -> int:
        sizes.append(size.value)
        began.set()
        wait_for(closing)
        return 0

    seams.system(mapping._libc, madvise=madvise)
    background = Background(run)
    background.start()
    background.warm(plan_state({"weight": np.broadcast_to(np.uint8(0), (20 << 30,))}))
    wait_for(began)
    threading.Timer(0.2, closing.set).start()
    background.close()
    assert sum(sizes) < 20 << 30
    assert background._stagings.all[0].size == 0


@pytest.mark.long
def test_saves_do_not_make_the_process_grow(run, background):
    def taken() -> tuple[int, int, int]:
        gc.collect()
        staging = os.fstat(background._stagings.all[0].fileno())
        fds = len(os.listdir(f"/proc/{helper(background)}/fd"))
        return staging.st_blocks, mappings(staging.st_ino), fds

    close_manifests()  # of other tests: a thread that opens a file now is none of ours
    for step in range(1, 4):
        background.save(state(1), step)
    background.wait()
    before, fds = taken(), len(os.listdir("/proc/self/fd"))
    for step in range(4, 44):
        background.save(state(1), step)
    background.wait()
    assert taken() == before
    assert len(os.listdir("/proc/self/fd")) <= fds  # what other tests had open may be closed


def test_a_store_in_memory_is_saved_into_by_the_thread():
    with Store(MemoryBackend()).run("gpt") as run:
        background = Background(run)
        background.save(state(1), 1)
        background.close()
        assert background._helpers.current is None
    assert same(run.load(), state(1))


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false", ""])
def test_without_a_helper_the_thread_saves_and_warns_once(run, python, seams):
    seams.system(sys, executable=python)
    background = Background(run)

    def save() -> None:
        background.save(state(1), 1)
        background.wait()

    with pytest.warns(SlowSaves) as warned:
        save()
    assert len(warned) == 1
    background.save(state(2), 2)
    background.close()
    assert same(run.load(1), state(1))
    assert same(run.load(2), state(2))


def test_a_forked_child_can_neither_save_nor_harm(run, background):
    gate = threading.Event()
    background.save(state(1), 1, before_commit=lambda: wait_for(gate))
    helper(background)
    child = os.fork()
    if not child:
        background.close()
        try:
            background.save(state(2), 2)
        except NotOpen:
            os._exit(0 if background._helpers.current._channel._connection.closed else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.set()
    background.wait()
    background.save(state(2), 2)
    background.wait()
    assert same(run.load(), state(2))


def test_a_child_forked_while_the_helper_starts_has_no_end_of_its_line(run, seams):
    starting, before = threading.Event(), open_files("socket:")

    def slowly(popen: Any, *arguments: Any, **options: Any) -> Any:
        starting.set()
        threading.Event().wait(0.2)
        return popen(*arguments, **options)

    seams.system(subprocess, Popen=slowly)
    background = Background(run)
    background.start()
    wait_for(starting)
    child = os.fork()
    if not child:
        os._exit(0 if open_files("socket:") == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    background.close()

"""Saves in the background: what is saved, when what is called, and what the helper process is."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from standfast import Run, Store
from standfast.errors import BadLabel, NotOpen, RefusedState, SlowSaves, StepExists
from standfast.store.backends.memory import MemoryBackend
from standfast.store.index.manifest import close_manifests
from standfast.store.save.planning import plan_state
from standfast.store.schema.record import Head
from standfast.training.background.background import Background
from tests.files.staging.test_staging import mappings
from tests.kit.descriptors import open_files
from tests.kit.stores import record_path, same

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Store(tmp_path).run("gpt") as run:
        yield run


@pytest.fixture
def background(run: Run) -> Iterator[Background]:
    background = Background(run)
    yield background
    background.close()


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(300, 300, generator=generator)
    return {
        "model": {"weight": weight, "tied": weight, "row": weight[3], "none": torch.empty(0)},
        "optimizer": {"moment": np.full((40, 70), step, np.float32)[::2]},
        "step": step,
        "history": [1.5, float("inf"), None, "x"],
    }


def number(background: Background) -> int:
    """The number of the helper process."""
    assert background._helpers.current is not None
    return background._helpers.current.number


@pytest.mark.guarantee("G4")
def test_what_was_saved_is_loaded_bit_for_bit(run: Run, background: Background) -> None:
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
    assert loaded["tied"] is loaded["weight"] or (
        loaded["tied"].data_ptr() == loaded["weight"].data_ptr()
    )


def test_the_same_state_gives_the_same_record_as_a_synchronous_save(
    run: Run, background: Background
) -> None:
    background.save(state(1), 1)
    background.wait()
    head = run.checkpoint(1).head
    sync = run.save(2, state(1)).head
    assert sync.parent == head.place
    assert sync.sequence == head.sequence + 1
    for field in ("identity", "software", "tensors", "nbytes", "parts"):
        assert getattr(sync, field) == getattr(head, field)
    background.save(state(1), 3)  # and on with the number that the other has given
    background.wait()
    assert run.checkpoint(3).head.sequence == sync.sequence + 1


@pytest.mark.guarantee("G4")
def test_the_state_may_change_as_soon_as_save_returns(run: Run, background: Background) -> None:
    saved = state(1)
    for step in range(1, 6):
        background.save(saved, step)
        saved["model"]["weight"] += 1
        saved["optimizer"]["moment"] += 1
    background.wait()
    expected = state(1)
    for step in range(1, 6):
        assert same(run.load(step), expected)
        expected["model"]["weight"] += 1
        expected["optimizer"]["moment"] += 1


def test_states_of_other_shapes_and_sizes_follow_each_other(
    run: Run, background: Background
) -> None:
    states: list[Any] = [
        {"a": np.arange(10)},
        {"a": np.arange(10.0)},
        {"a": {"b": np.arange(2_000_000)}, "c": np.zeros((3, 0))},
        {"only": "plain values"},
        [torch.arange(5), (np.float32(3), b"bytes")],
        {"a": np.arange(10)},
    ]
    for step, each in enumerate(states):
        background.save(each, step)
    background.wait()
    for step, each in enumerate(states):
        assert same(run.load(step), each)


def test_what_the_store_has_is_not_written_again(run: Run, background: Background) -> None:
    large = {"frozen": np.random.default_rng(0).random(1_000_000), "step": np.zeros(1)}
    for step in (1, 2):
        large["step"][:] = step
        background.save(large, step)
    background.wait()
    folder = record_path(run, 1).parent
    sizes = sorted(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert sizes[0] < 100_000
    assert sizes[1] > 8_000_000
    assert same(run.load(2), large)


def test_the_caller_is_told_what_it_refuses_and_goes_on(run: Run, background: Background) -> None:
    with pytest.raises(BadLabel):
        background.save(state(1), -1)
    with pytest.raises(BadLabel):
        background.save(state(1), 1, epoch="first")  # type: ignore[arg-type]
    with pytest.raises(RefusedState):
        background.save(state(1), 1, metrics={"loss": "low"})
    with pytest.raises(RefusedState):
        background.save({"model": object()}, 1)
    background.save(state(1), 1)
    background.wait()
    assert same(run.load(), state(1))


def test_callbacks_run_in_the_background_before_and_after_the_commit(
    run: Run, background: Background
) -> None:
    calls: list[tuple[str, int, bool]] = []
    heads: list[Head] = []

    def note(name: str) -> None:
        calls.append((name, threading.get_ident(), record_path(run, 1).exists()))

    def committed(head: Head) -> None:
        note("committed")
        heads.append(head)

    background.save(state(1), 1, before_commit=lambda: note("before"), committed=committed)
    background.wait()
    assert [(name, exists) for name, _, exists in calls] == [("before", False), ("committed", True)]
    assert threading.get_ident() not in {thread for _, thread, _ in calls}
    assert heads == [run.checkpoint(1).head]


def test_a_save_that_comes_early_waits_for_the_one_before(run: Run, background: Background) -> None:
    gate = threading.Event()
    background.save(state(1), 1, before_commit=lambda: wait_for(gate))
    assert not background.is_idle()
    threading.Timer(0.3, gate.set).start()
    began = time.perf_counter()
    held = background.save(state(2), 2)
    assert gate.is_set()
    assert held.waited > 0
    assert held.waited + held.copied <= time.perf_counter() - began
    assert record_path(run, 1).exists()
    background.wait()
    assert background.is_idle()
    assert same(run.load(), state(2))


def wait_for(gate: threading.Event) -> None:
    assert gate.wait(60)


def test_wait_lets_signal_handlers_run(background: Background) -> None:
    gate = threading.Event()
    background.save(state(1), 1, before_commit=lambda: wait_for(gate))
    seen: list[bool] = []

    def handler(*_: object) -> None:
        seen.append(background.is_idle())
        gate.set()

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        background.wait()
    finally:
        signal.signal(signal.SIGALRM, old)
    assert seen == [False]


def test_wait_with_a_timeout_returns(background: Background) -> None:
    gate = threading.Event()
    background.save(state(1), 1, before_commit=lambda: wait_for(gate))
    background.wait(0.05)
    assert not background.is_idle()
    gate.set()
    background.wait(60)
    assert background.is_idle()


def test_the_helper_has_nothing_of_this_process_but_a_socket_and_the_staging(
    background: Background,
) -> None:
    background.save(state(1), 1)
    background.wait()
    process = Path("/proc", str(number(background)))
    links = {}
    for fd in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # its thread for the manifest opens and closes some
            links[int(fd.name)] = os.readlink(fd)
    assert [links[fd] for fd in (0, 1, 2)] == ["/dev/null"] * 3
    store = background._run.store.url
    passing = (store, "/proc/")  # the same thread looks up what kind of disk the store is on
    links = {fd: link for fd, link in links.items() if not any(each in link for each in passing)}
    kinds = {link.split(":")[0] for fd, link in links.items() if fd > 2}
    assert kinds == {"socket", "/memfd"}, links
    assert os.getsid(number(background)) == number(background)
    assert "libtorch" not in (process / "maps").read_text()
    assert "tests" not in (process / "cmdline").read_text()


@pytest.mark.parametrize("moment", ["starting", "running"])
def test_what_tells_a_job_to_stop_does_not_stop_the_helper(
    run: Run, background: Background, moment: str
) -> None:
    background.start()
    if moment == "running":
        background.save(state(1), 1)
        background.wait()
    while background._helpers.current is None:
        time.sleep(0.001)
    before = number(background)
    for stop in STOPS:
        os.kill(before, stop)
    background.save(state(2), 2)
    background.wait()
    assert number(background) == before
    assert same(run.load(), state(2))


def test_closing_ends_the_helper_and_the_thread_and_gives_the_memory_back(run: Run) -> None:
    background = Background(run)
    background.save(state(1), 1)
    helper = number_when_idle(background)
    file = os.fstat(background._stagings.all[0].fileno()).st_ino
    assert mappings(file) == 1
    background.close()
    background.close()
    assert same(run.load(), state(1))
    assert not Path("/proc", str(helper)).exists()
    assert background._thread is not None
    assert background._thread.join(0)
    gc.collect()
    assert mappings(file) == 0
    with pytest.raises(NotOpen):
        background.save(state(2), 2)


def number_when_idle(background: Background) -> int:
    background.wait()
    return number(background)


def test_close_does_not_wait_for_memory_that_is_being_warmed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, sizes = threading.Event(), []

    def populate(part: np.ndarray, advice: int) -> int:  # type: ignore[type-arg]
        sizes.append(part.nbytes)
        began.set()
        time.sleep(0.01)
        return 0

    monkeypatch.setattr("standfast.files.staging.staging.populate", populate)
    background = Background(run)
    background.start()
    background.warm(plan_state({"weight": np.broadcast_to(np.uint8(0), (20 << 30,))}))
    assert began.wait(60)
    background.close()
    assert sum(sizes) < 20 << 30
    assert background._stagings.all[0].size == 0


def test_warming_takes_the_memory_that_a_save_needs(run: Run, background: Background) -> None:
    many = {"weight": np.ones(3_000_000), "small": {i: np.ones(1) for i in range(300)}}
    background.start()
    background.warm(plan_state(many))
    while not background._stagings.all[0].size:
        time.sleep(0.01)
    size = background._stagings.all[0].size
    background.save(many, 1)
    background.wait()
    assert background._stagings.all[0].size == size < 1.1 * 24_000_000


@pytest.mark.long
def test_saves_do_not_make_the_process_grow(run: Run, background: Background) -> None:
    def taken() -> tuple[int, int, int]:
        gc.collect()
        return (
            os.fstat(background._stagings.all[0].fileno()).st_blocks,
            mappings(os.fstat(background._stagings.all[0].fileno()).st_ino),
            len(os.listdir(f"/proc/{number(background)}/fd")),
        )

    close_manifests()  # of other tests: a thread that opens a file now is none of ours
    step = 0
    for step in range(1, 4):
        background.save(state(1), step)
    background.wait()
    before, fds = taken(), len(os.listdir("/proc/self/fd"))
    for step in range(4, 44):
        background.save(state(1), step)
    background.wait()
    assert taken() == before
    assert len(os.listdir("/proc/self/fd")) <= fds  # what other tests had open may be closed


def test_a_store_in_memory_is_saved_into_by_the_thread() -> None:
    run = Store(MemoryBackend()).run("gpt")
    with run:
        background = Background(run)
        background.save(state(1), 1)
        background.close()
        assert background._helpers.current is None
    assert same(run.load(), state(1))


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false", ""])
def test_without_a_helper_the_thread_saves_and_says_so(
    run: Run, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", python)
    background = Background(run)

    def save_and_wait() -> None:
        background.save(state(1), 1)
        background.wait()

    with pytest.warns(SlowSaves, match="cannot be started") as warned:
        save_and_wait()
    assert len(warned) == 1
    background.save(state(2), 2)
    background.close()
    assert same(run.load(1), state(1))
    assert same(run.load(2), state(2))


def test_a_forked_child_can_neither_save_nor_harm(run: Run, background: Background) -> None:
    gate = threading.Event()
    background.save(state(1), 1, before_commit=lambda: wait_for(gate))
    while background._helpers.current is None:
        time.sleep(0.001)
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


def test_a_child_forked_while_the_helper_starts_has_no_end_of_its_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = threading.Event()

    class Slow(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            starting.set()
            time.sleep(0.2)
            super().__init__(*arguments, **options)

    before = open_files("socket:")
    monkeypatch.setattr("standfast.training.background.starting.subprocess.Popen", Slow)
    background = Background(run)
    background.start()
    starting.wait()
    child = os.fork()
    if not child:
        os._exit(0 if open_files("socket:") == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    background.close()


def test_a_step_that_is_there_is_refused_at_the_next_call_and_once(
    run: Run, background: Background
) -> None:
    background.save(state(1), 1)
    background.save(state(2), 1)
    with pytest.raises(StepExists, match="has a checkpoint of step 1 already"):
        background.wait()
    background.wait()
    background.save(state(2), 1, replace=True)
    background.wait()
    assert same(run.load(), state(2))

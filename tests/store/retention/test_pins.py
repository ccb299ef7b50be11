"""Pins: they hold while a process lives, and whoever looks at them gets in nobody's way."""

from __future__ import annotations

import os
from pathlib import Path

from standfast.store.backends.local import LocalBackend
from standfast.store.retention.pins import pin, pinned, pinned_steps

RUN = "0123456789abcdef01234567"


def test_a_pin_is_seen_until_it_is_released(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    with pinned(backend, RUN, 100):
        second = pin(backend, RUN, 100)
        assert second is not None
        assert pinned_steps(backend, RUN) == {100}
    assert pinned_steps(backend, RUN) == {100}
    second.release()
    assert pinned_steps(backend, RUN) == set()
    assert list((tmp_path / ".standfast" / "locks").iterdir()) == []


def test_a_child_that_was_forked_holds_none(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    lock = pin(backend, RUN, 1)
    assert lock is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if pinned_steps(backend, RUN) == {1} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pinned_steps(backend, RUN) == {1}, "the end of a child releases nothing"
    lock.release()


def test_those_who_look_do_not_keep_others_from_pinning(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    child = os.fork()  # another process, to which the locks are those of others
    if child == 0:
        while os.getppid() != 1 and not (tmp_path / "over").exists():
            pinned_steps(LocalBackend(tmp_path), RUN)
        os._exit(0)
    try:
        missed = 0
        for step in range(2000):
            lock = pin(backend, RUN, step)
            missed += lock is None
            if lock is not None:
                lock.release()
    finally:
        (tmp_path / "over").touch()
        os.waitpid(child, 0)
    assert missed == 0


def test_names_that_are_no_pins_are_none(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    odd = [backend.lock(f"{RUN}.pin.{text}", passing=True) for text in ("x.1", "9" * 20, "-1.0")]
    assert all(odd)
    assert pinned_steps(backend, RUN) == set()
    for lock in odd:
        assert lock is not None
        lock.release()

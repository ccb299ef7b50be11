"""Forks and SQLite: no fork happens while a thread is inside SQLite, or while a file is open in it.

A mutex that another thread holds when a process forks stays locked in the child for ever, and
SQLite has some that all connections share. A data loader that forks its workers while a thread
writes the manifest would hang in the first of them that closes or opens a database.

What SQLite remembers of the locks of its process is wrong in a child, which inherits none: one
that opened the same file again would write it beside its parent, unlocked, and break it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

_PATIENCE: Final = 10.0
"""How many seconds a fork waits at most: one that hangs would be worse than one that might."""

_inherited: list[sqlite3.Connection] = []
"""Connections of the process that this one was forked from: to close them is not for us."""


class Connected(Protocol):
    """Somebody with a connection, who opens another whenever there is none."""

    def close_file(self) -> None:
        """Close the connection, unless all that it knows is in memory."""

    def forget_parent(self) -> None:
        """In a forked process: leave alone what is the parent's."""


connected: weakref.WeakSet[Connected] = weakref.WeakSet()
"""All there are in this process."""


class _Gate:
    """Lets threads in, and a fork when nobody is inside."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._forks = 0
        self._own = threading.local()

    def enter(self) -> None:
        depth = getattr(self._own, "depth", 0)
        if not depth:
            with self._changed:
                self._changed.wait_for(lambda: not self._forks)
                self._inside += 1
        self._own.depth = depth + 1

    def leave(self) -> None:
        self._own.depth -= 1
        if not self._own.depth:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def step_out(self) -> int:
        """Be outside for a while; returns what to `step_in` with."""
        depth: int = getattr(self._own, "depth", 0)
        if depth:
            self._own.depth = 1
            self.leave()
        return depth

    def step_in(self, depth: int) -> None:
        """Be inside again as deep as before."""
        if depth:
            self.enter()
            self._own.depth = depth

    def before_fork(self) -> None:
        """Wait until nobody is inside but the caller, let nobody in, and have all files closed."""
        self._changed.acquire()
        depth = getattr(self._own, "depth", 0)
        mine = 1 if depth else 0
        self._own.depth = depth + 1  # the collector may close a database on this thread meanwhile
        self._forks += 1
        if self._changed.wait_for(lambda: self._inside <= mine, _PATIENCE) and not mine:
            for each in list(connected):
                each.close_file()

    def after_fork(self) -> None:
        """In the process that forked: go on."""
        self._own.depth -= 1
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()


_gate = _Gate()


@contextmanager
def inside_sqlite() -> Iterator[None]:
    """While this lasts, no other thread forks."""
    gate = _gate
    gate.enter()
    try:
        yield
    finally:
        gate.leave()


@contextmanager
def outside_sqlite() -> Iterator[None]:
    """While this lasts, who is inside is not: a fork need not wait for a server that is silent."""
    gate = _gate
    depth = gate.step_out()
    try:
        yield
    finally:
        gate.step_in(depth)


def keep_open(connection: sqlite3.Connection | None) -> None:
    """Never close a connection that was inherited: its file is another process's affair."""
    if connection is not None:
        _inherited.append(connection)


def _begin_in_child() -> None:
    _gate.begin()
    for each in list(connected):
        each.forget_parent()


os.register_at_fork(
    before=_gate.before_fork,
    after_in_parent=_gate.after_fork,
    after_in_child=_begin_in_child,
)

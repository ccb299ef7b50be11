"""Locks in an object store: leases, which their holders renew as long as they live.

A lock is an object. To take it is to create it, or to replace it, by its tag, when its holder has
released it (it is empty then) or is gone: nobody renewed it for the length of a lease, by the
clock of the server, or it was a process of this machine that has ended. A holder that could not
renew its lock in time has lost it, and knows it. Where a holder is frozen for longer than a lease
and goes on, the record is what protects: it is created once, whoever believes to hold a lock.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from standfast.errors import AlreadyExists, ChangedFile, FileError, MissingFile, printable
from standfast.files.threads import Thread
from standfast.store.remote.client import PROBES, Client, Meta, Tag

FOLDER: Final = ".standfast/locks"
_PASSING: Final = f"{FOLDER}/.passing"
_CLOCK: Final = f"{FOLDER}/.clock"
LEASE: Final = 30.0
"""How many seconds a lock is held that nobody renews."""
_RENEWALS: Final = 5
"""How often it is renewed in that time."""
_SLACK: Final = 2.0
"""How many seconds more: the clock of a server may show whole seconds only."""
_OLD: Final = 3600.0
_SHORTEST: Final = 0.02
_LONGEST: Final = 1.0
"""How many seconds pass between two attempts."""


class Note(msgspec.Struct, frozen=True):
    """What is in a lock: who holds it."""

    token: str
    """Which lease it is."""
    renewal: str
    """Another one each time that it is written: by this its tag is another, too."""
    host: str
    boot: str
    """Another one after each start of the machine, and in each container."""
    process: int
    started: str
    """When the process was started: its number may be another's by now."""
    lease: float

    @property
    def holder(self) -> str:
        """Who holds it, for people."""
        return printable(f"process {self.process} on {self.host or 'a machine'}")


class Lease:
    """A lock that is held; a thread renews it."""

    def __init__(
        self, locks: Locks, key: str, token: str, tag: Tag, begun: float, passing: bool
    ) -> None:
        self._locks = locks
        self._key = key
        self._token = token
        self._tag: Tag | None = tag
        self._passing = passing
        self._renewed = begun
        self._guard = threading.RLock()  # an object that is collected in here may release it
        self._process = os.getpid()

    def is_held(self) -> bool:
        """Whether it still keeps others out: if its last renewal is old, the server is asked."""
        if self._process != os.getpid():  # a thread that was not forked may have the guard
            return False
        with self._guard:
            if self._tag is None:
                return False
            if _clock() - self._renewed > self._locks.lease / _RENEWALS * 2:
                self._renew()
            return self._tag is not None and _clock() - self._renewed <= self._locks.lease

    def renew(self) -> bool:
        """Renew it; False if it is another's by now.

        After a time in which the server did not answer it is ours again, if nobody took it.
        """
        with self._guard:
            if self._tag is not None:
                self._renew()
            return self._tag is not None

    def _renew(self) -> None:
        assert self._tag is not None
        now = _clock()
        with suppress(FileError):  # the server does not answer
            self._tag = self._locks.renew(self._key, self._token, self._tag)
            self._renewed = now
        if self._tag is None:
            _tokens.discard(self._token)

    def release(self) -> None:
        """Let others have it. May be called several times."""
        if self._process != os.getpid():
            return
        with self._guard:
            tag, self._tag = self._tag, None
            if tag is None:
                return
            self._locks.drop(self)
            with suppress(FileError):  # then it ends with its lease
                self._locks.empty(self._key, tag, self._passing)
            _tokens.discard(self._token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Locks:
    """The locks of a store."""

    def __init__(self, client: Client, lease: float = LEASE) -> None:
        self._client = client
        self._renewing = client.hurried(lease / 3)
        """A request that is stuck must not cost a lock: there is time for another. And nobody
        waits long to be rid of one, which ends by itself."""
        self.lease = lease
        self._held: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._guard = threading.RLock()
        self._thread: Thread | None = None
        self._process = os.getpid()

    def take(self, name: str, wait: float = 0.0, *, passing: bool = False) -> Lease | None:
        """Take a lock; None if another has it for `wait` seconds more.

        If any time is given, one whose holder may be gone is waited for until its lease ends.
        """
        begun, pause = time.monotonic(), _SHORTEST
        seen: set[str] = set()
        while True:
            lease = self._try(name, passing)
            waited = time.monotonic() - begun
            if lease is not None or waited >= wait:
                if lease is not None or not wait or self._is_alive(_key(name, passing), seen):
                    return lease
                if waited >= wait + self.lease + 2 * _SLACK:
                    return None
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST)

    def _is_alive(self, key: str, seen: set[str]) -> bool:
        """Whether the holder of a lock lives: it renews it, or is a process of this machine."""
        note, meta = self._found(key) or (None, None)
        if note is None or meta is None:
            return False
        seen.add(meta.tag)
        return len(seen) > 1 or (_is_ours(note) and _lives(note))

    def _try(self, name: str, passing: bool) -> Lease | None:
        key, token = _key(name, passing), os.urandom(8).hex()
        _tokens.add(token)
        lease = None
        try:
            lease = self._taken(key, token, passing)
        finally:  # if its answer was lost, it may be there all the same: then it is nobody's
            if lease is None:
                _tokens.discard(token)
        return lease

    def _taken(self, key: str, token: str, passing: bool) -> Lease | None:
        begun = _clock()
        try:
            tag = self._write(key, token, None)
        except AlreadyExists:
            found = self._found(key)
            if found is None:  # deleted just now
                return None
            note, meta = found
            if note is not None and not self._is_over(note, meta):
                return None
            begun = _clock()
            try:
                tag = self._write(key, token, meta.tag)
            except (AlreadyExists, MissingFile):
                return None  # somebody was faster
        lease = Lease(self, key, token, tag, begun, passing)
        self._keep(lease)
        return lease

    def renew(self, key: str, token: str, tag: Tag) -> Tag | None:
        """Write a lock again that had this tag; its new one, or None if it is another's now."""
        for _ in range(2):
            try:
                return self._write(key, token, tag, self._renewing)
            except (AlreadyExists, MissingFile):
                # It may be ours all the same, written by a request whose answer never came.
                note, meta = self._found(key) or (None, None)
                if note is None or meta is None or note.token != token:
                    return None
                tag = meta.tag
        return None

    def _write(self, key: str, token: str, tag: Tag | None, client: Client | None = None) -> Tag:
        """Create a lock, or write it in the place of the one with this tag."""
        client = client or self._client
        text = msgspec.json.encode(_note(token, self.lease))
        return client.put(key, text, create=tag is None, match=tag)

    def empty(self, key: str, tag: Tag, passing: bool) -> None:
        """Leave a lock that is ours: as an empty object, or, if nobody else asks for it, none."""
        if passing:
            self._renewing.delete([key])
        else:
            with suppress(AlreadyExists, MissingFile):
                self._renewing.put(key, b"", match=tag)

    def locked(self, prefix: str) -> list[str]:
        """The names of the locks that are held, of those that begin so; what is over is deleted."""
        found, over = [], []
        now: float | None = None
        for key, meta in self._client.list(FOLDER)[0]:
            passing = key.startswith(f"{_PASSING}/")
            name = key.removeprefix(f"{_PASSING if passing else FOLDER}/")
            if meta.size and name.startswith(prefix) and not key.startswith(_CLOCK):
                now = self.now() if now is None else now
                if now - meta.time <= self.lease + _SLACK:
                    found.append(name)
                elif passing:  # of these nobody takes one that was another's
                    over.append(key)
        self._client.delete(over)
        return found

    def holder(self, name: str) -> str | None:
        """Who has a lock, for a message."""
        found = self._found(_key(name, passing=False))
        return found[0].holder if found and found[0] else None

    def _found(self, key: str) -> tuple[Note | None, Meta] | None:
        """Who has a lock, None if it was released, and its object; None if there is none."""
        meta = self._client.head(key)
        if meta is None:
            return None
        if not meta.size:
            return None, meta
        try:
            text = self._client.get(key, tag=meta.tag)
            return msgspec.json.decode(text, type=Note), meta
        except MissingFile:
            return None
        except ChangedFile:  # renewed this moment
            return self._found(key)
        except (msgspec.MsgspecError, ValueError):  # nobody's, until its time is over
            return Note("", "", "", "", 0, "", self.lease), meta

    def _is_over(self, note: Note, meta: Meta) -> bool:
        """Whether the holder of a lock is gone."""
        if _is_ours(note) and not _lives(note):
            return True
        return self.now() - meta.time > note.lease + _SLACK

    def now(self) -> float:
        """What the clock of the server says, in whole seconds."""
        key = f"{_CLOCK}/{os.urandom(8).hex()}"
        self._client.put(key, b"")
        try:
            meta = self._client.head(key)
            return meta.time if meta else 0.0
        finally:
            self._client.delete([key])

    def tidy(self) -> None:
        """Delete what processes that died have left of their questions to the server."""
        now = self.now()
        for folder in (_CLOCK, PROBES):
            objects, _ = self._client.list(folder)
            self._client.delete(key for key, meta in objects if now - meta.time > _OLD)

    # Renewing

    def _keep(self, lease: Lease) -> None:
        with self._guard:
            if self._process != os.getpid():
                self._held, self._thread, self._process = weakref.WeakSet(), None, os.getpid()
            self._held.add(lease)
            if self._thread is None:
                self._thread = Thread(_renew_all, weakref.ref(self))

    def drop(self, lease: Lease) -> None:
        """Renew it no more."""
        with self._guard:
            self._held.discard(lease)

    def renew_all(self) -> bool:
        """Renew all that are held; False if there are none, and the thread ends."""
        with self._guard:
            held = list(self._held)
            if not held:
                self._thread = None
                return False
        for lease in held:
            if not lease.renew():
                self.drop(lease)
        return True


def _renew_all(locks: weakref.ref[Locks]) -> None:
    while (each := locks()) is not None:
        pause = each.lease / _RENEWALS
        del each
        time.sleep(pause)
        each = locks()
        if each is None or not each.renew_all():
            return
        del each


def _clock() -> float:
    """Seconds that go on while the machine sleeps, where there are such."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _key(name: str, passing: bool) -> str:
    return f"{_PASSING if passing else FOLDER}/{name}"


_tokens: set[str] = set()
"""The leases that this process holds, or is about to."""


def _note(token: str, lease: float) -> Note:
    renewal, process = os.urandom(8).hex(), os.getpid()
    return Note(token, renewal, platform.node(), _boot(), process, _started(process), lease)


def _is_ours(note: Note) -> bool:
    """Whether a lock was taken on this machine, since it was started."""
    return bool(note.boot) and note.boot == _boot()


def _lives(note: Note) -> bool:
    """Whether the holder of a lock that was taken on this machine has not ended."""
    if note.process == os.getpid() and note.token not in _tokens:
        return False
    started = _started(note.process)
    return started == note.started or (not started and _is_hidden(note.process))


def _is_hidden(process: int) -> bool:
    """Whether there is such a process, and it is not ours to look at."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _boot() -> str:
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _started(process: int) -> str:
    """When a process was started, in ticks since the machine was; empty if there is none."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # killed, and nobody has noticed yet
    return ""

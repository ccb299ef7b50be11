"""Which folders have changed: an object store knows no folders, and to list all objects takes long.

Whoever changes something in a folder says so first: an object of its own, in a place that is
listed at once for all folders, is written before the change ("open") and again when there was no
change for a moment ("shut"). A folder whose objects are all shut has the version that their tags
make; as long as one is open it has none that can be trusted. So a crash at any point leaves a
folder that is looked at again, never one whose change goes unseen.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from standfast.errors import AlreadyExists, OutOfMemory, StandfastError
from standfast.files.threads import Thread
from standfast.store.backends.backend import UNTRUSTED, Version
from standfast.store.remote.client import Client, Meta

FOLDER: Final = ".standfast/versions"
_MOMENT: Final = 0.2
"""How many seconds without a change make an end."""
_PATIENCE: Final = 2.0
"""How many seconds a process takes at its end for telling others."""
_OPEN: Final = 32
"""The size of an object that is open; one that is shut has a byte more."""
_OLD: Final = 86400.0
"""What others left is forgotten after so many seconds: all that it announced is done or is not."""


@dataclass
class _Folder:
    client: Client
    """Of whoever changes it, or did so last: what they may do, they may also say."""
    changes: int = 0
    """How many are under way."""
    last: float = 0.0
    """When the last one ended."""
    doubtful: bool = False
    """Whether one failed, which the server may yet carry out: then nobody shall trust it."""


class _Announced:
    """What this process has said of the folders of a store, whoever in it has changed them.

    Each speaks through a client of their own: the keys of one that was made before may be wrong.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self.token = os.urandom(8).hex()
        self._guard = threading.Condition()
        self._open: dict[str, _Folder] = {}
        self._known: set[str] = set()
        """Folders that this process has put something into."""
        self._thread: Thread | None = None

    @contextmanager
    def change(self, client: Client, folder: str, new: bool = True) -> Iterator[None]:
        """A folder changes, from here to the end, and if it may be new those above it too."""
        if self._process != os.getpid():  # a forked child speaks for itself
            self._begin()
        is_known = folder in self._known or not new
        folders = [folder] if is_known else [*_above(folder), folder]
        with self._guard:
            entered = []
            try:
                for each in folders:
                    if each not in self._open:
                        self._write(client, each, is_open=True)
                        self._open[each] = _Folder(client)
                    self._open[each].client = client
                    self._open[each].changes += 1
                    entered.append(each)
            except BaseException:
                self._leave(entered)
                raise
            if new:
                self._known.update(folders)
        try:
            yield
        except AlreadyExists:
            raise
        except BaseException:
            with self._guard:
                for each in folders:
                    self._open[each].doubtful = True
            raise
        finally:
            with self._guard:
                self._leave(folders)

    def _leave(self, folders: Iterable[str]) -> None:
        for each in folders:
            self._open[each].changes -= 1
            self._open[each].last = time.monotonic()
        if self._thread is None and folders:
            with suppress(OutOfMemory):  # they stay open until the next change, or the end
                self._thread = Thread(self._shut_all)

    def drop(self, client: Client, folder: str) -> None:
        """A folder is gone: what was announced of it goes too, and those above it change."""
        for above in _above(folder)[-1:]:
            with self.change(client, above):
                pass
        with self._guard:
            state = self._open.get(folder)
            if state is None or not state.changes:  # else somebody is making it anew
                self._known.discard(folder)
                self._open.pop(folder, None)
                objects, _ = client.list(_place(folder))
                client.delete(key for key, _ in objects)

    def _write(self, client: Client, folder: str, is_open: bool) -> None:
        text = os.urandom(_OPEN // 2).hex() + ("" if is_open else "\n")
        client.put(f"{_place(folder)}/{self.token}", text.encode())

    def _shut_all(self) -> None:
        with self._guard:
            while self._open:
                self._guard.wait(_MOMENT)
                self._shut_quiet(_MOMENT)
            self._thread = None

    def _shut_quiet(self, moment: float) -> None:
        """Shut what has not changed for so many seconds; who holds the guard announces nothing."""
        now = time.monotonic()
        for folder, state in list(self._open.items()):
            if not state.changes and now - state.last >= moment:
                with suppress(StandfastError):  # then it stays open, and nobody trusts it
                    if not state.doubtful:
                        self._write(state.client, folder, is_open=False)
                del self._open[folder]

    def flush(self) -> None:
        """Shut all that does not change now."""
        if self._process == os.getpid():
            with self._guard:
                self._shut_quiet(0.0)
                self._guard.notify_all()

    def is_open(self) -> bool:
        """Whether something is announced that was not shut yet."""
        return self._process == os.getpid() and bool(self._open)


class Versions:
    """The versions of all folders, for one client: see `versions_of`."""

    def __init__(self, client: Client, announced: _Announced | None = None) -> None:
        self._client = client
        self._announced = announced or _Announced()

    def change(self, folder: str, new: bool = True) -> AbstractContextManager[None]:
        """A folder changes, from here to the end, and if it may be new those above it too."""
        return self._announced.change(self._client, folder, new)

    def drop(self, folder: str) -> None:
        """A folder is gone: what was announced of it goes too, and those above it change."""
        self._announced.drop(self._client, folder)

    def flush(self) -> None:
        """Shut all that does not change now."""
        self._announced.flush()

    def of(self, folder: str) -> Version:
        """The version of one folder, which is there."""
        objects, _ = self._client.list(_place(folder), deep=False)
        return _version(objects)

    def below(self, folder: str) -> Mapping[str, Version]:
        """The versions of the folders in a folder, as far as somebody has announced them."""
        found: dict[str, list[tuple[str, Meta]]] = {}
        above = _place(folder) + "/"
        for key, meta in self._client.list(_place(folder))[0]:
            name, _, token = key.removeprefix(above).partition("/")
            if token and "/" not in token:
                found.setdefault(name, []).append((key, meta))
        return {name: _version(objects) for name, objects in found.items()}

    def tidy(self, now: float) -> None:
        """Delete what others announced long ago; `now` is the time of the server."""
        objects, _ = self._client.list(FOLDER)
        old: dict[str, list[str]] = {}
        for key, meta in objects:
            folder, _, token = key.removeprefix(f"{FOLDER}/").rpartition("/")
            if now - meta.time > _OLD and token != self._announced.token:
                old.setdefault(folder, []).append(key)
        for folder, keys in old.items():
            # With an announcement of our own, so that no version comes back that was before.
            with self.change(folder, new=False):
                self._client.delete(keys)


def _version(objects: Iterable[tuple[str, Meta]]) -> Version:
    objects = sorted(objects)
    text = "".join(f"{key} {meta.tag}\n" for key, meta in objects)
    is_shut = objects and all(meta.size > _OPEN for _, meta in objects)
    return 0 if is_shut else UNTRUSTED, int.from_bytes(blake3(text.encode()).digest(6))


def _place(folder: str) -> str:
    return f"{FOLDER}/{folder}" if folder else FOLDER


def _above(folder: str) -> list[str]:
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:count]) for count in range(len(parts))]


_all: weakref.WeakValueDictionary[str, _Announced] = weakref.WeakValueDictionary()
_making = threading.Lock()


def versions_of(client: Client) -> Versions:
    """Those of a store: all who use it in this process speak with one voice."""
    with _making:
        announced = _all.get(client.url)
        if announced is None:
            announced = _all[client.url] = _Announced()
        return Versions(client, announced)


def _flush_all() -> None:
    """At the end of the process; a server that does not answer is not worth waiting for."""
    deadline = time.monotonic() + _PATIENCE
    for each in [each for each in _all.values() if each.is_open()]:
        with suppress(OutOfMemory):  # it is too late for threads
            Thread(each.flush).join(deadline - time.monotonic())


atexit.register(_flush_all)

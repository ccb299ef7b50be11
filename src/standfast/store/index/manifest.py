"""`manifest.yaml`: the runs of a store for people, and for programs that know layout V3. A view.

Nobody waits for it: after a save it is written by a thread, once a minute at most.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from standfast.errors import DamagedFile, LimitExceeded, MissingFile, OutOfMemory, StandfastError
from standfast.files.threads import Thread
from standfast.files.yaml_text import read_yaml
from standfast.store.backends.backend import Backend
from standfast.store.index.index import Index
from standfast.store.schema import names
from standfast.store.schema.run_file import now
from standfast.store.v3.foreign import OURS, is_foreign_store
from standfast.store.v3.yaml_writer import block

_REFRESHED = 60.0
"""How many seconds a manifest is left as it is while runs are being saved into."""
_PATIENCE = 10.0
"""How many seconds a server has for it at the end of a process."""
_LARGEST: Final = 4 << 20
"""Bytes of a manifest of another program that is read."""
_ADDED: Final = "# Added by another program"
_KEPT: Final = "manifest.weightslab.yaml"


def write_manifest(backend: Backend, index: Index) -> None:
    """Write it anew, in one rename. That it cannot be written is nobody's loss.

    A store that is gone does not come back by it, and one that is not ours keeps its own. What
    another program added to the experiments is kept.
    """
    if backend.version(names.MODELS) is None or is_foreign_store(backend):
        return
    with suppress(OSError):  # what cannot be read now is not replaced either
        added = _added(backend)
        backend.replace(names.MANIFEST, "".join(_lines(index, added)).encode())


def _added(backend: Backend) -> dict[Any, Any]:
    """The experiments in the manifest that another program, such as weightslab, made in the store.

    A manifest of another program's that cannot be read is kept beside the new one.
    """
    path = backend.path(names.MANIFEST)
    if path is None:  # such programs write into folders only
        return {}
    try:
        text = backend.read(names.MANIFEST, _LARGEST + 1)
        if text.startswith(OURS.encode()) and _ADDED.encode() not in text:
            return {}
        if len(text) > _LARGEST:
            raise LimitExceeded(f"{path}: it has over {_LARGEST:,} bytes")
        found = read_yaml(text, str(path))["experiments"].items()
        return {run: entry for run, entry in found if not _is_ours(entry)}
    except MissingFile:
        return {}
    except (DamagedFile, AttributeError, LookupError, TypeError):
        path.replace(path.with_name(_KEPT))
        return {}


def _is_ours(entry: Any) -> bool:
    """Whether an entry is from a record. Our times are in UTC; those of weightslab have no zone."""
    return isinstance(entry, dict) and str(entry.get("created")).endswith("Z")


class Manifest:
    """The manifest of a store, as one process keeps it up to date."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._begin()
        _manifests.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._written: float | None = None
        self._is_old = False
        """Whether something was saved since it was last written."""
        self._hurries = 0
        self._thread: Thread | None = None

    def mark(self) -> None:
        """Something was saved, of which `close` will tell, if nobody does before."""
        with self._changed:
            self._is_old = True

    @property
    def is_remote(self) -> bool:
        """Whether a server is asked to keep it."""
        return self._backend.width > 1

    @property
    def is_waiting(self) -> bool:
        """Whether it does not tell of all that was saved."""
        return self._is_old or self._thread is not None

    def refresh(self) -> None:
        """Something was saved: have it written by a thread, when it is time."""
        with self._changed:
            self._is_old = True
            if self._thread is None:
                with suppress(OutOfMemory):  # else it is written at the exit
                    self._thread = Thread(self._keep)

    def write(self, index: Index) -> None:
        """Write it now."""
        with self._writing:
            with self._changed:
                self._is_old = False
            try:
                index.refresh()
                write_manifest(self._backend, index)
            except BaseException:
                self.mark()
                raise
            finally:
                self._written = time.monotonic()

    def close(self) -> None:
        """Return once it tells of all that was saved. May be called several times."""
        with self._changed:
            self._hurries += 1
            self._changed.notify_all()
            thread = self._thread
        try:
            if thread is not None:
                thread.join()
            if self._is_old:
                self._write()
        finally:
            with self._changed:
                self._hurries -= 1

    def _keep(self) -> None:
        try:
            while self._is_due() and self._write():
                pass
        finally:
            with self._changed:
                self._thread = None

    def _is_due(self) -> bool:
        """Wait until it is time to write; False if nothing is left to be told."""
        with self._changed:
            while self._is_old and not self._hurries and (left := self._left()) > 0:
                self._changed.wait(left)
            if not self._is_old:
                self._thread = None  # here, so that whoever saves next starts another one
            return self._is_old

    def _left(self) -> float:
        return 0.0 if self._written is None else self._written + _REFRESHED - time.monotonic()

    def _write(self) -> bool:
        """Write it with an index of its own: that of the store is for those who save.

        False if that failed: it is a view, and the next save has it tried again.
        """
        index = Index(self._backend)
        try:
            self.write(index)
        except (StandfastError, MemoryError):
            return False
        finally:
            index.close()
        return True

    def forget_parent(self) -> None:
        """In a forked process: what the other one saved is its own affair."""
        self._begin()


_manifests: weakref.WeakSet[Manifest] = weakref.WeakSet()


def close_manifests() -> None:
    """Have all manifests written now that some thread would write later.

    A server has some seconds for it: a process shall not wait at its end for one that is silent.
    """
    for manifest in list(_manifests):
        if not manifest.is_remote:
            manifest.close()
        elif manifest.is_waiting:
            with suppress(OutOfMemory):  # it is too late for threads
                Thread(manifest.close).join(_PATIENCE)


def _forget_parent() -> None:
    for manifest in list(_manifests):
        manifest.forget_parent()


atexit.register(close_manifests)
os.register_at_fork(after_in_child=_forget_parent)


def _lines(index: Index, added: Mapping[Any, Any]) -> Iterator[str]:
    yield f"{OURS} from the records; it may be deleted at any time.\n"
    latest = next(index.newest(), None)
    yield f"latest_hash: {_text(latest.run) if latest else 'null'}\n"
    yield f"last_updated: {_text(now())}\n"
    runs = index.runs()
    yield "experiments:\n" if runs or added else "experiments: {}\n"
    for run, name, created, used, _, last_used in runs:
        made = created or used or now()
        yield f"  {_text(run)}:\n"
        if name is not None:
            yield f"    name: {_text(name)}\n"
        for i, part in enumerate(("hp", "model", "data")):
            yield f"    {part}_hash: {_text(run[8 * i : 8 * i + 8])}\n"
        yield f"    created: {_text(made)}\n"
        yield f"    last_used: {_text(last_used or made)}\n"
    if others := added.keys() - {each.run for each in runs}:
        yield f"  {_ADDED}, and kept as it was:\n"
        for run in sorted(others, key=str):
            yield from block(run, added[run], "  ")


def _text(value: str) -> str:
    """Text in YAML, in the one style that never means anything else."""
    return "'" + value.replace("'", "''") + "'"

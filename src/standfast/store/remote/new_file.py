"""A file on its way into an object store: uploaded front to back while it is written.

Blocks that come before their turn wait in memory. The upload is completed when the file is placed,
so that nobody sees it before; what is small is written at once then.
"""

from __future__ import annotations

import errno
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Final, Self

import numpy as np

from standfast.errors import AlreadyExists, StandfastError, WriteFailed
from standfast.files.ring import new_block
from standfast.files.threads import Thread
from standfast.store.remote.client import Client
from standfast.tensors.sources import Bytes

_PART: Final = 16 << 20
_MOST_PARTS: Final = 9_000
"""A server takes 10,000 of one object."""
_KEPT: Final = 16
"""How many blocks are kept for the next upload."""
_WAITING: Final = 2
"""How many blocks wait for the upload: who writes waits for it then."""

_LARGE: Final = 1 << 20
"""Fewer bytes are copied, together with their neighbours."""

Check = Callable[[], None]
"""Raises if the file cannot have its name."""


class _Discarded(Exception):
    """Ends an upload."""


class RemoteFile:
    """A file on its way into a RemoteBackend."""

    def __init__(
        self,
        client: Client,
        key: str,
        check: Check,
        change: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._client = client
        self._key = key
        self._check = check
        self._change = change
        self._part = _PART
        self._guard = threading.Condition()
        self._early: dict[int, Bytes] = {}
        self._held: Bytes | None = None
        """The last block in order: it may be cut."""
        self._end = 0
        self._small: list[Bytes] = []
        self._small_size = 0
        self._finished = False
        self._upload: _Upload | None = None

    def reserve(self, size: int) -> None:
        """Choose parts that are large enough for so much."""
        if self._upload is None:
            self._part = max(_PART, -(-size // _MOST_PARTS // (1 << 20)) * (1 << 20))

    def write(self, data: Bytes, offset: int) -> None:
        """Write a block; from any thread. It goes on its way once all before it have."""
        block = _copied(data)
        with self._guard:
            self._early[offset] = block
            while (block_now := self._early.pop(self._end, None)) is not None:
                self._hold(block_now)

    def block(self, size: int) -> Bytes:
        """Memory to fill and append, which nobody else uses before those bytes are on their way."""
        return _unused(size)

    def append(self, data: Bytes) -> None:
        """Write the next bytes, which stay as they are until the file is placed; from one thread.

        What is small is put together: to hand it over costs as much as a block.
        """
        if data.size >= _LARGE:
            self._append_small()
            with self._guard:
                self._hold(data)
            return
        self._small.append(data)
        self._small_size += data.size
        if self._small_size >= _LARGE:
            self._append_small()

    def _append_small(self) -> None:
        if self._small:
            with self._guard:
                self._hold(np.concatenate(self._small))
            self._small, self._small_size = [], 0

    def _hold(self, block: Bytes) -> None:
        """Take the next block, and let the one go that was held back."""
        self._pass_on()
        self._held = block
        self._end += block.size

    def _pass_on(self) -> None:
        """Upload the block that was held back."""
        if self._held is not None and self._held.size:
            if self._upload is None:
                self._upload = _Upload(self._client, self._key, self._part)
            self._upload.put(self._held)
        self._held = None

    def finish(self, size: int) -> None:
        """Cut the file to its size."""
        self._append_small()
        with self._guard:
            start = self._end - (0 if self._held is None else self._held.size)
            if self._early or not start <= size:
                raise WriteFailed(
                    errno.EINVAL, f"cannot write {self._key}: a part of it is missing"
                )
            if size < self._end:
                assert self._held is not None
                self._held = self._held[: size - start]
            elif size > self._end:
                self._pass_on()
                self._held = np.zeros(size - self._end, np.uint8)
            self._end = size
            if self._upload is not None:
                self._pass_on()
                self._upload.drain()
            self._finished = True

    def place(self) -> None:
        """Give the file its name."""
        if not self._finished:
            raise WriteFailed(errno.EINVAL, f"cannot place {self._key}: it is not finished")
        with self._change():
            self._check()
            if self._upload is not None:
                if self._client.head(self._key) is not None:
                    raise AlreadyExists(
                        errno.EEXIST,
                        f"{self._client.url}/{self._key} exists already, and must not be replaced",
                    )
                self._complete()
            else:
                data = b"" if self._held is None else self._held
                self._client.put(self._key, data, create=True)
        self._held = None

    def _complete(self) -> None:
        upload, self._upload = self._upload, None
        assert upload is not None
        try:
            upload.complete()
        except WriteFailed:
            # A server whose answer was lost is asked twice, and does not know the upload any more.
            found = self._client.head(self._key)
            if found is None or found.size != self._end:
                raise

    def discard(self) -> None:
        """Forget the file, if it was not placed."""
        upload, self._upload = self._upload, None
        self._held, self._early, self._small, self._finished = None, {}, [], False
        if upload is not None:
            upload.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()


class _Block:
    """Memory that is lent to one upload after the other: to touch it first takes long.

    Whatever is made of the array that is lent, a slice of a slice or a memoryview of one, holds
    that array, as NumPy and the buffer protocol have it. So nobody reads or fills the memory when
    the array is gone. References are not counted: a Python may keep some out of the count.
    """

    def __init__(self, size: int) -> None:
        self.size: Final = size
        self._memory = new_block(size)
        self._lent: weakref.ref[Bytes] | None = None

    def is_lent(self) -> bool:
        """Whether somebody holds what was lent last, or a part of it."""
        return self._lent is not None and self._lent() is not None

    def lend(self) -> Bytes:
        """The memory, as an array that nobody has had before."""
        array = np.frombuffer(self._memory, np.uint8)
        self._lent = weakref.ref(array)
        return array


_blocks: list[_Block] = []
"""Those that were made, as far as they are kept."""
_making = threading.Lock()


def _copied(data: Bytes) -> Bytes:
    """The bytes of a block, which its owner fills again, in memory of their own."""
    block = _unused(data.size)
    np.copyto(block, data)
    return block


def _unused(size: int) -> Bytes:
    """Memory of this size that nobody else uses."""
    with _making:
        free = (block for block in _blocks if block.size == size and not block.is_lent())
        block = next(free, None)
        if block is None:
            block = _Block(size)
            if len(_blocks) < _KEPT:
                _blocks.append(block)
        return block.lend()


class _Upload:
    """An upload in parts, by a thread that takes blocks as they come."""

    def __init__(self, client: Client, key: str, part: int) -> None:
        self._client = client
        self._key = key
        self._part = part
        self._blocks: queue.Queue[Bytes | _Discarded | None] = queue.Queue(_WAITING)
        self._error: BaseException | None = None
        self._thread = Thread(self._run)

    def put(self, block: Bytes | _Discarded | None) -> None:
        """Upload a block, when there is room for it; None is the end."""
        while self._error is None:
            try:
                self._blocks.put(block, timeout=0.1)
                return
            except queue.Full:
                continue
        self._raise()

    def drain(self) -> None:
        """Wait until all blocks are on their way."""
        while self._error is None and not self._blocks.empty():
            self._thread.join(0.002)
        self._raise()

    def complete(self) -> None:
        """Upload what is left, and let the object be there."""
        self.put(None)
        self._thread.join()
        self._raise()

    def abort(self) -> None:
        """Let the server forget the parts."""
        with suppress(StandfastError):  # it has failed: there is nothing to abort
            self.put(_Discarded())
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None and not isinstance(self._error, _Discarded):
            raise self._error

    def _run(self) -> None:
        try:
            self._client.upload(self._key, self._taken(), self._part)
        except BaseException as error:
            self._error = error

    def _taken(self) -> Iterator[Bytes]:
        while (block := self._blocks.get()) is not None:
            if isinstance(block, _Discarded):
                raise block
            yield block

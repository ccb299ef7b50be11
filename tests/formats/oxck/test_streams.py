"""Streams: pipes, sockets that stay open, and readers that give little."""

import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import FileError, TruncatedFile, UnreadableFile
from standfast.oxck import Checkpoint, CheckpointTensor, InvalidMagic, Io, UnsupportedVersion
from tests.formats.builders import saved
from tests.formats.oxck.builders import file_of, tensor

TENSORS = {
    "layer.0.weight": np.arange(300_000, dtype=np.float32).reshape(3, 100_000),
    "scalar": np.array(7, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "last": np.arange(5, dtype=np.float32),
}
METADATA = {"step": "3", "note": 'a "b"'}


def content(read: Any) -> dict[str, Any]:
    """All that was read, whatever read it."""
    if isinstance(read, Checkpoint):
        tensors = [(t.name, tuple(t.shape), t.data.tobytes()) for t in read.tensors]
        return {"metadata": read.metadata, "tensors": tensors}
    tensors = [(name, read[name].shape, read[name].tobytes()) for name in read]
    return {"metadata": read.metadata, "tensors": tensors}


EXPECTED = {
    "metadata": METADATA,
    "tensors": [(name, array.shape, array.tobytes()) for name, array in TENSORS.items()],
}

FILES = {
    "oxck": saved("oxck", TENSORS, METADATA),
    "oxck without extras": saved("oxck", TENSORS, METADATA, extras=False),
    **{name: saved(name, TENSORS, METADATA) for name in ("tenzor", "safetensors")},
}
READS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{f"open {name}": (name, standfast.open) for name in FILES},
    **{f"read_from {name}": (name, Checkpoint.read_from) for name in FILES if "oxck" in name},
}
every_read = pytest.mark.parametrize("read", READS)


class Stingy(io.RawIOBase):
    """Gives at most so many bytes at once, and counts what it gave."""

    def __init__(self, data: bytes, most: int) -> None:
        self._data = data
        self._most = most
        self.given = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert size > 0, "it was asked for all there is"
        piece = self._data[self.given : self.given + min(size, self._most)]
        self.given += len(piece)
        return piece


@every_read
def test_short_reads_are_put_together(read):
    file, use = READS[read]
    for most in (7, 4096, 1 << 30):
        stream = Stingy(FILES[file] + b"and more", most)
        assert content(use(stream)) == EXPECTED
        assert stream.given == len(FILES[file])


@every_read
def test_a_pipe_is_read(read):
    file, use = READS[read]
    source, target = os.pipe()

    def write() -> None:
        with open(target, "wb") as pipe:
            pipe.write(FILES[file])

    writer = threading.Thread(target=write)
    writer.start()
    with open(source, "rb", buffering=0) as pipe:
        assert content(use(pipe)) == EXPECTED
        assert pipe.read() == b""
    writer.join()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.settimeout(10)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("buffering", [0, -1], ids=["raw", "buffered"])
@every_read
def test_a_socket_that_stays_open_is_read_to_the_last_tensor(read, buffering, sockets):
    file, use = READS[read]
    ours, theirs = sockets
    # Had it waited for more, the time-out of the socket would say so.
    with ours.makefile("rb", buffering=buffering) as stream:
        for _ in range(2):
            sender = threading.Thread(target=theirs.sendall, args=(FILES[file],))
            sender.start()
            assert content(use(stream)) == EXPECTED
            sender.join()


def test_several_checkpoints_follow_each_other_in_one_stream():
    stream = io.BytesIO()
    for step in range(3):
        checkpoint = Checkpoint(digests=step == 1)
        checkpoint.set_metadata("step", str(step))
        checkpoint.add_tensor(CheckpointTensor("x", [step]))
        checkpoint.write_to(stream)
    stream.seek(0)
    read = [Checkpoint.read_from(stream) for _ in range(3)]
    assert [each.get_metadata("step") for each in read] == ["0", "1", "2"]
    assert [each.digests for each in read] == [False, True, False]
    assert stream.read() == b""


class Broken(io.RawIOBase):
    """Fails in the way it is told, after some bytes."""

    def __init__(self, data: bytes, then: Any) -> None:
        self._inner = io.BytesIO(data)
        self._then = then

    def read(self, size: int = -1) -> Any:
        piece = self._inner.read(size)
        if piece:
            return piece
        if isinstance(self._then, Exception):
            raise self._then
        return self._then


HALF = FILES["oxck without extras"][:1000]


@pytest.mark.parametrize(
    "then", [OSError(5, ""), ConnectionResetError(104, ""), ValueError("closed"), None, "text"]
)
def test_a_stream_that_fails_is_an_error_of_input(then):
    with pytest.raises(Io) as refused:
        Checkpoint.read_from(Broken(HALF, then))  # type: ignore[arg-type]
    assert isinstance(refused.value, FileError)
    assert refused.value.errno
    with pytest.raises(UnreadableFile):
        standfast.open(Broken(HALF, then))  # type: ignore[arg-type]


def test_a_stream_is_asked_for_bounded_pieces():
    asked: list[int] = []

    class Listening(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(-1 if size is None else size)
            return super().read(size)

    for use in (Checkpoint.read_from, standfast.open):
        data = file_of("{}", tensor("x", (2**40,), bytes(100), elements=2**40))
        with pytest.raises(TruncatedFile):
            use(Listening(data))
    assert 0 < max(asked) <= 16 << 20
    assert min(asked) > 0


@pytest.mark.parametrize(
    ("data", "error"), [(b"NOPE", InvalidMagic), (b"OXCK\2\0\0\0", UnsupportedVersion)]
)
def test_a_stream_of_something_else_is_known_by_its_first_bytes(data, error, sockets):
    ours, theirs = sockets
    theirs.sendall(data)
    with ours.makefile("rb", buffering=0) as stream, pytest.raises(error):
        Checkpoint.read_from(stream)  # type: ignore[arg-type]

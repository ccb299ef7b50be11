"""The line between the training process and the helper process."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from standfast.training.background.messages import Message

STOPS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""What a job is told to stop by: not the helper's business, its last checkpoint may be wanted."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class Hangup(Exception):
    """The other process is gone, or says what no helper says."""


class Channel:
    """One end of a pair of sockets; messages go whole or not at all."""

    def __init__(self, fd: int) -> None:
        self._connection = Connection(fd)

    def send(self, message: Message) -> None:
        """Send a message; raises Hangup if nobody will ever read it."""
        try:
            self._connection.send_bytes(_encode(message))
        except OSError as error:
            raise Hangup(str(error)) from error

    def receive(self) -> Message:
        """Wait for the next message; raises Hangup if there will be none."""
        try:
            message: Message = _decode(self._connection.recv_bytes())
        except (EOFError, OSError, msgspec.DecodeError) as error:
            raise Hangup(str(error)) from error
        return message

    def wait(self, timeout: float) -> bool:
        """Wait until `receive` has something to say; False if that took too many seconds."""
        try:
            return self._connection.poll(timeout)
        except OSError as error:
            raise Hangup(str(error)) from error

    def close(self) -> None:
        """Hang up. May be called several times."""
        self._connection.close()

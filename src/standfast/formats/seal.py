"""Digests as text, and the digest that covers everything in a file but its tensors.

The chunk digests of all tensors stand in the file as `blake3:16777216:` and base64. What
surrounds the tensors is covered by one digest, 64 hexadecimal digits, over all bytes outside of
the tensors, in their order, with `0` in the place of these digits themselves.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
from blake3 import blake3

from standfast.errors import BadField, IndexMismatch, TooNew, shortened
from standfast.files.digests import CHUNK, DIGEST, chunk_counts

KEY: Final = "standfast.digest"
CHUNKS_KEY: Final = "standfast.chunks"
ZEROS: Final = b"0" * (2 * DIGEST)

_TAG: Final = f"blake3:{CHUNK}:"


def chunk_count(sizes: Iterable[int]) -> int:
    """How many chunks tensors of these sizes have together."""
    return int(chunk_counts(np.fromiter(sizes, np.int64)).sum())


def chunks_text(digests: bytes) -> bytes:
    """The chunk digests as text."""
    return _TAG.encode() + binascii.b2a_base64(digests, newline=False)


def chunks_size(count: int) -> int:
    """How long the text of so many chunk digests is."""
    return len(_TAG) + -(-count * DIGEST // 3) * 4


def parse_chunks(text: Any, sizes: np.ndarray[Any, Any]) -> bytes:
    """The chunk digests of tensors of these sizes, out of their text."""
    if not isinstance(text, str) or not text.startswith(_TAG):
        if isinstance(text, str) and (other := re.match(r"[a-z0-9-]+:[0-9]+:", text)):
            raise TooNew(
                f"metadata key {CHUNKS_KEY}: digests of the kind {shortened(other[0])!r}, which "
                "this version of Standfast does not know: install a newer one"
            )
        raise BadField(f"metadata key {CHUNKS_KEY}: expected text that starts {_TAG!r}")
    try:
        digests = msgspec.convert(text[len(_TAG) :], type=bytes)
    except msgspec.ValidationError as error:
        raise BadField(f"metadata key {CHUNKS_KEY}: not base64 ({error})") from error
    count = int(chunk_counts(sizes).sum())
    if len(digests) != count * DIGEST:
        raise BadField(
            f"metadata key {CHUNKS_KEY}: {len(digests):,} bytes of digests for {count:,} chunks"
        )
    return digests


def sealed(
    part: bytes, at: int, before: Iterable[bytes] = (), after: Iterable[bytes] = ()
) -> bytes:
    """The part with the digest, over itself and what surrounds it, in its place at `at`."""
    digits = _digest(part, at, before, after)
    return b"".join((part[:at], digits, part[at + len(ZEROS) :]))


def check_seal(
    digits: Any, part: bytes, at: int, before: Iterable[bytes] = (), after: Iterable[bytes] = ()
) -> None:
    """Raise IndexMismatch unless these digits stand at `at` and are the right ones."""
    if not (
        isinstance(digits, str)
        and re.fullmatch("[0-9a-f]{64}", digits)
        and part[at : at + len(ZEROS)] == digits.encode()
        and digits.encode() == _digest(part, at, before, after)
    ):
        raise IndexMismatch(
            f"what surrounds the tensors does not match its own digest ({KEY}): it is damaged, or "
            "another program rewrote it; standfast.load(path, verify=False) reads it unchecked"
        )


def _digest(part: bytes, at: int, before: Iterable[bytes], after: Iterable[bytes]) -> bytes:
    hasher = blake3()
    whole = memoryview(part)
    for piece in (*before, whole[:at], ZEROS, whole[at + len(ZEROS) :], *after):
        hasher.update(bytes(piece))
    return hasher.hexdigest().encode()

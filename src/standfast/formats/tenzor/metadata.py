"""The metadata of a `.tenzor` file: a JSON object, of which some members are ours.

Ours stand first, so that the digest has a fixed place and the rest stays as it was given:

    {"standfast.digest":"…","standfast.chunks":"…","standfast.names":["conv1_weight",…],"epoch":5,…}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from standfast.errors import BadField, DamagedFile, LimitExceeded, RefusedMetadata
from standfast.formats.limits import MAX_NAME
from standfast.formats.metadata import OWN, check_needs, from_json, to_json
from standfast.formats.seal import (
    CHUNKS_KEY,
    KEY,
    ZEROS,
    check_seal,
    chunks_text,
    parse_chunks,
    sealed,
)

NAMES_KEY: Final = "standfast.names"

_START: Final = b'{"standfast.digest":"'
_CHUNKS: Final = b'","standfast.chunks":"'
_NAMES: Final = b'","standfast.names":'
DIGEST_AT: Final = 64 + len(_START)

# Writing


def user_members(metadata: Mapping[str, Any] | bytes) -> bytes:
    """The users' own members, without the braces around them.

    Metadata given as bytes has to be what the reader reads: JSON, or what the original writes.
    """
    if not isinstance(metadata, bytes):
        return to_json(metadata)[1:-1]
    text = metadata.strip()
    if not text:
        return b""
    try:
        members, _ = _parse_members(metadata)
    except DamagedFile as error:
        raise RefusedMetadata(f"metadata given as bytes: {error}") from error
    for key in members:
        if key.startswith(OWN):
            raise RefusedMetadata(
                f"metadata given as bytes, key {key!r}: keys that start with {OWN!r} are reserved"
            )
    return text[1:-1].strip()


def own_members(names: Sequence[str], digests: bytes) -> bytes:
    """Our members, with zeros where the digest belongs."""
    return b"".join(
        (_START[1:], ZEROS, _CHUNKS, chunks_text(digests), _NAMES, msgspec.json.encode(names))
    )


def own_size(names: Sequence[str], chunks: int) -> int:
    """How long our members are, given the length of the chunks' text."""
    fixed = len(_START) - 1 + len(ZEROS) + len(_CHUNKS) + len(_NAMES)
    return fixed + chunks + len(msgspec.json.encode(names))


def seal_head(head: bytes) -> bytes:
    """The head of a file with its digest in it."""
    return sealed(head, DIGEST_AT)


def checkpoint_metadata(
    *,
    epoch: int,
    global_step: int,
    best_val_loss: float,
    best_val_acc: float,
    best_epoch: int,
    learning_rate: float,
    model_name: str,
    timestamp: int,
) -> bytes:
    """The metadata of a training checkpoint, as text to be saved verbatim.

    Numbers are rounded to float32 and printed with six decimals, the learning rate with eight;
    what is not finite is null.
    """

    def decimals(value: float, count: int) -> str:
        with np.errstate(over="ignore"):
            single = float(np.float32(value))
        return f"{single:.{count}f}" if math.isfinite(single) else "null"

    return (
        f'{{"epoch":{int(epoch)},"global_step":{int(global_step)},'
        f'"best_val_loss":{decimals(best_val_loss, 6)},"best_val_acc":{decimals(best_val_acc, 6)},'
        f'"best_epoch":{int(best_epoch)},"learning_rate":{decimals(learning_rate, 8)},'
        f'"model_name":{json.dumps(model_name, ensure_ascii=False)},"timestamp":{int(timestamp)}}}'
    ).encode()


# Reading


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the metadata of a file holds."""

    user: dict[str, Any]
    names: list[str] | None
    digest: Any = None
    chunks: Any = None
    text: bytes | None = None
    """The users' part as it stands in the file, if it is proper JSON."""

    def check_digests(self, head: bytes, sizes: np.ndarray[Any, Any]) -> bytes | None:
        """The chunk digests, once the digest over the head was found right; None without any."""
        if self.digest is None and self.chunks is None:
            return None
        check_seal(self.digest, head, DIGEST_AT)
        return parse_chunks(self.chunks, sizes)


def parse_metadata(text: bytes) -> Metadata:
    """The metadata of a file, ours or of another writer."""
    if not text.strip():
        return Metadata({}, None, text=text)
    if text.startswith(_START) and (metadata := _parse_ours(text)):
        return metadata
    members, strict = _parse_members(text)
    ours = {key: members.pop(key) for key in list(members) if key.startswith(OWN)}
    check_needs(ours)
    names = ours.get(NAMES_KEY)
    if names is not None:
        _check_names(names)
    return Metadata(
        members,
        names,
        ours.get(KEY),
        ours.get(CHUNKS_KEY),
        text=text if strict and not ours else None,
    )


def _parse_members(text: bytes) -> tuple[dict[str, Any], bool]:
    """The members of an object, and whether it is proper JSON, as the original's may not be."""
    try:
        return from_json(text, "the metadata"), True
    except BadField:
        if (original := _parse_original(text)) is None:
            raise
        return original, False


def _parse_ours(text: bytes) -> Metadata | None:
    """What our writer wrote, quickly; None if only the general way can be sure."""
    digest_end = len(_START) + len(ZEROS)
    chunks_at = digest_end + len(_CHUNKS)
    chunks_end = text.find(b'"', chunks_at)
    names_at = chunks_end + len(_NAMES)
    if text[digest_end:chunks_at] != _CHUNKS or text[chunks_end:names_at] != _NAMES:
        return None
    # A closing quote and a bracket end the list, unless a name starts with a bracket.
    end = names_at + 2 if text[names_at:].startswith(b"[]") else text.find(b'"]', names_at) + 2
    try:
        names = msgspec.json.decode(memoryview(text)[names_at:end], type=list[str])
    except ValueError:
        return None
    if not text[:names_at].isascii():
        return None
    rest = text[end:]
    if not rest.startswith((b",", b"}")):
        return None
    users = b"{" + rest.removeprefix(b",")
    members, strict = _parse_members(users)
    ends_in_comma = rest.startswith(b",") and not members
    if ends_in_comma or any(key.startswith(OWN) for key in members):
        return None
    _check_names(names)
    digest, chunks = text[len(_START) : digest_end].decode(), text[chunks_at:chunks_end].decode()
    return Metadata(members, names, digest, chunks, text=users if strict else None)


def _check_names(names: Any) -> None:
    if not isinstance(names, list) or set(map(type, names)) - {str}:
        raise BadField(f"metadata key {NAMES_KEY}: expected a list of names")
    longest = max(names, key=len, default="")
    if len(longest) > MAX_NAME // 4 and any(len(name.encode()) > MAX_NAME for name in names):
        raise LimitExceeded(f"metadata key {NAMES_KEY}: a name of over {MAX_NAME:,} bytes")


_NUMBER: Final = r"(-?(?:\d{1,40}(?:\.\d{1,40})?|inf|nan))"
_ORIGINAL: Final = re.compile(
    rf'\{{"epoch":(\d{{1,20}}),"global_step":(\d{{1,20}}),"best_val_loss":{_NUMBER},'
    rf'"best_val_acc":{_NUMBER},"best_epoch":(\d{{1,20}}),"learning_rate":{_NUMBER},'
    r'"model_name":"(.*)","timestamp":(-?\d{1,20})\}',
    re.DOTALL | re.ASCII,
)


def _parse_original(text: bytes) -> dict[str, Any] | None:
    """What the first implementation writes: bare inf and nan, a name that is not escaped."""
    try:
        found = _ORIGINAL.fullmatch(text.decode())
    except UnicodeDecodeError:
        return None
    if not found:
        return None
    epoch, step, loss, accuracy, best_epoch, rate, name, timestamp = found.groups()
    return {
        "epoch": int(epoch),
        "global_step": int(step),
        "best_val_loss": float(loss),
        "best_val_acc": float(accuracy),
        "best_epoch": int(best_epoch),
        "learning_rate": float(rate),
        "model_name": name,
        "timestamp": int(timestamp),
    }

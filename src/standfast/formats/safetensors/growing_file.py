"""A safetensors file of which it is found out while it is written what will be in it.

Its header stands first and is written last: room is kept for the longest that it can become.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from standfast.errors import RefusedTensor
from standfast.files.digests import CHUNK, DIGEST
from standfast.formats.limits import MAX_RANK
from standfast.formats.safetensors.file import CODE_OF, MAX_HEADER, Header, strings_of
from standfast.formats.safetensors.header import Entry
from standfast.tensors import TensorSpec

_STRETCH: Final = 120
"""The longest entry of a stretch, without its name and without where it lies in the tensor."""


class Growing:
    """The header of such a file: first its room, then what was written, then its bytes."""

    def __init__(
        self, tensors: Sequence[tuple[str, TensorSpec, int]], metadata: Mapping[str, Any]
    ) -> None:
        """All tensors that may be in it, with their sizes; `metadata` at its longest."""
        end = sum(nbytes for _, _, nbytes in tensors)
        entries, chunks, stretches = {}, 0, 0
        for name, spec, nbytes in tensors:
            plain = storable(spec)
            entries[name] = Entry(CODE_OF[plain.dtype], plain.shape, (end, end))
            count = max(1, -(-nbytes // CHUNK))
            chunks += count
            if count > 1:  # every other chunk may be left out
                stretches += -(-count // 2) * (len(msgspec.json.encode(name)) + _STRETCH)
        self.room = Header(strings_of(metadata), entries, chunks).size + stretches
        self.room += -self.room % 4096
        if self.room > MAX_HEADER:
            raise RefusedTensor(
                f"the names and shapes of {len(tensors):,} tensors take {self.room:,} bytes, over "
                f"the {MAX_HEADER:,} that a safetensors header may have: cut the state into more "
                "top-level dicts"
            )
        self._entries: dict[str, Entry] = {}
        self._digests: list[bytes] = []
        self._end = 0

    @property
    def size(self) -> int:
        """The size of the file, as far as it was written."""
        return self.room + self._end

    def add(self, name: str, spec: TensorSpec, nbytes: int, digests: bytes) -> None:
        """A whole tensor was appended."""
        self._add(name, storable(spec), nbytes, digests)

    def add_stretch(self, name: str, start: int, stop: int, digests: bytes) -> None:
        """Some consecutive chunks of a tensor were appended."""
        plain = TensorSpec("uint8", (stop - start,))
        self._add(f"{name}[{start}:{stop}]", plain, stop - start, digests)

    def _add(self, name: str, spec: TensorSpec, nbytes: int, digests: bytes) -> None:
        start, self._end = self._end, self._end + nbytes
        count = 1
        unique = name
        while unique in self._entries:  # another tensor bears the name of a stretch
            count += 1
            unique = f"{name}~{count}"
        self._entries[unique] = Entry(CODE_OF[spec.dtype], spec.shape, (start, self._end))
        self._digests.append(digests)

    def head(self, metadata: Mapping[str, Any]) -> bytes:
        """The header, `room` bytes long."""
        digests = b"".join(self._digests)
        strings = strings_of(metadata)
        header = Header(strings, self._entries, len(digests) // DIGEST, self.room)
        return header.with_digests(digests)


def storable(spec: TensorSpec) -> TensorSpec:
    """The tensor as the format can hold it: bytes, with one dimension more, if by no other way."""
    if spec.dtype in CODE_OF:
        return spec
    if len(spec.shape) == MAX_RANK:
        return TensorSpec("uint8", (spec.nbytes,))
    return TensorSpec("uint8", (*spec.shape, spec.kind.numpy.itemsize))

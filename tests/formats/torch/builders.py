"""Builds pickles opcode by opcode, and `.pt` files around them, right ones and wrong ones."""

import json
import struct
import zlib
from functools import partial
from typing import Any

import numpy as np
from blake3 import blake3

from tests.formats import builders
from tests.formats.builders import chunks
from tests.formats.zip.builders import Piece, archive, crc_of

# Pickles


def pickle_of(*opcodes: bytes) -> bytes:
    return b"\x80\x02" + b"".join(opcodes) + b"."


def text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def texts(*values: str) -> bytes:
    return b"".join(map(text, values))


def name(path: str) -> bytes:
    """A global: a module, a dot, and what is in it."""
    module, _, attribute = path.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def integer(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(data) < 256:
        return b"\x8a" + bytes([len(data)]) + data
    return b"\x8b" + struct.pack("<i", len(data)) + data


def tuple_of(*opcodes: bytes) -> bytes:
    return b"(" + b"".join(opcodes) + b"t"


def list_of(*opcodes: bytes) -> bytes:
    return b"](" + b"".join(opcodes) + b"e"


def dict_of(*opcodes: bytes) -> bytes:
    return b"}(" + b"".join(opcodes) + b"u"


def call(function: str | bytes, *arguments: bytes) -> bytes:
    """A call of what has this name, or of what these opcodes put on the stack."""
    called = name(function) if isinstance(function, str) else function
    return called + tuple_of(*arguments) + b"R"


def put(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


def get(index: int) -> bytes:
    return b"j" + struct.pack("<I", index)


def storage(key: str = "0", count: bytes = b"K\x06", kind: str = "FloatStorage") -> bytes:
    """The storage of six floats, or of what is asked for."""
    return tuple_of(text("storage"), name(f"torch.{kind}"), texts(key, "cpu"), count) + b"Q"


HOOKS = name("collections.OrderedDict") + b")R"


def tensor(
    stored: bytes | None = None,
    offset: bytes = b"K\x00",
    size: bytes = b"K\x02K\x03\x86",
    steps: bytes = b"K\x03K\x01\x86",
) -> bytes:
    """A tensor of 2 × 3 floats, or of what is asked for."""
    fields = (storage() if stored is None else stored, offset, size, steps, b"\x89", HOOKS)
    return call("torch._utils._rebuild_tensor_v2", *fields)


MARKER = "touch ran-by-a-pickle"
"""What each attack would run: it leaves a file in the folder of the test."""
SYSTEM = call("os.system", text(MARKER))

# Files

SIX = np.arange(6, dtype="<f4").tobytes()
ONE_TENSOR = pickle_of(dict_of(text("w"), tensor()))
SEAL = b"standfast.digest:"


def pieces(**changes: bytes | None) -> list[Piece]:
    """The entries of a file of one tensor, `data/0` as `data`; None leaves one out."""
    own = {"pickle": ONE_TENSOR, "byteorder": b"little", "data": SIX, "version": b"3\n"}
    names = {"pickle": "data.pkl", "data": "data/0", "own": "standfast.json"}
    return [
        Piece(f"archive/{names.get(key, key)}".encode(), data)
        for key, data in {**own, **changes}.items()
        if data is not None
    ]


def file_of(*more: Piece, comment: bytes = b"", **changes: bytes | None) -> bytes:
    """A file of one tensor; entries that are given replace its own, or come after them."""
    return archive(*pieces(**changes), *more, comment=comment)


def tree_file(*opcodes: bytes) -> bytes:
    """A file whose tree these opcodes make."""
    return file_of(pickle=pickle_of(*opcodes))


def deflated(name: str, data: bytes, **lies: int) -> Piece:
    """A compressed entry."""
    deflater = zlib.compressobj(9, wbits=-15)
    packed = deflater.compress(data) + deflater.flush()
    fields = {"method": 8, "size": len(data), "crc": crc_of(data)} | lies
    return Piece(name.encode(), packed, local=fields, central=fields)


def own_entry(digests: Any = chunks(SIX), metadata: Any = {"step": 3}) -> bytes:  # noqa: B006, B008
    """Our entry; None leaves a member out."""
    members = {"standfast.chunks": digests, "metadata": metadata}
    return json.dumps({k: v for k, v in members.items() if v is not None}).encode()


def with_seal(file: bytes) -> bytes:
    """A file that ends in the digits of a seal, with the right ones."""
    at = file.index(SIX)
    return file[:-64] + blake3(file[:at] + file[at + len(SIX) :]).hexdigest().encode()


def sealed(own: bytes = own_entry(), seal: bytes = SEAL, **changes: bytes) -> bytes:
    """A file with our entry and a right seal, whatever the entry says."""
    return with_seal(file_of(**changes, own=own, comment=seal + b"0" * 64))


saved = partial(builders.saved, "torch", {"w": np.arange(6, dtype="<f4")}, {"step": 3})
"""The file that Standfast writes."""

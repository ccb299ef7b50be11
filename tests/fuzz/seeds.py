"""What the fuzzer starts from: the corpus of the tests, and legal files made at random."""

from __future__ import annotations

import json
import math
from random import Random

from tests.formats.builders import (
    chunks_text,
    entry,
    file_of,
    header_end,
    member,
    objects,
    reseal,
    saved_file,
    sealed_file,
    small_tensors,
)
from tests.formats.legal import DTYPE_BITS, LEGAL
from tests.formats.malformed import CASES

LARGEST = 4096
"""Larger seeds would slow the fuzzer down; what is special in them is tested elsewhere."""

LETTERS = ["a", "b", "weight", "dtype", "shape", "é", "😀", '"', "\\", "\n", "/", "\0", " ", "__"]
VALUES = ["1", "1.5", '"text"', "[1,[2]]", '{"x":null}', "true", "-3", "[]"]


def seeds() -> list[bytes]:
    """All files of the corpus that are small, and some that Holdfast wrote."""
    saved = saved_file(small_tensors(), {"step": 3, "name": "run", "nested": {"x": [1, None]}})
    files = [case.data for case in CASES] + [legal.data for legal in LEGAL]
    return [compact(saved), *(file for file in files if len(file) <= LARGEST)]


def compact(file: bytes) -> bytes:
    """The file without the padding of its header, in which most changes would be the same."""
    end = header_end(file)
    return reseal(file_of(file[8:end].rstrip(), file[end:]))


def random_file(random: Random) -> bytes:
    """A legal file: any dtypes and shapes, in any order, with or without digests."""
    names = list(dict.fromkeys(_name(random) for _ in range(random.randrange(6))))
    tensors = [_Tensor(random) for _ in names]
    end = 0
    in_file = random.sample(tensors, len(tensors))
    for tensor in in_file:
        tensor.offsets = f"[{end},{end + len(tensor.data)}]"
        end += len(tensor.data)
    data = b"".join(tensor.data for tensor in in_file)
    entries = [
        member(_quoted(random, name), entry(tensor.dtype, tensor.shape, tensor.offsets))
        for name, tensor in zip(names, tensors, strict=True)
    ]
    strings = _strings(random)
    if random.random() < 0.5:
        digests = json.dumps(chunks_text(*(tensor.data for tensor in tensors)))
        return sealed_file(member("holdfast.chunks", digests), *strings, entries=entries, data=data)
    if strings or random.random() < 0.5:
        metadata = member("__metadata__", objects(*strings))
        entries.insert(random.randrange(len(entries) + 1), metadata)
    return file_of(objects(*entries) + " " * random.randrange(9), data)


class _Tensor:
    """A tensor of any dtype and shape, as the text of its fields, and its bytes."""

    def __init__(self, random: Random) -> None:
        code, bits = random.choice(list(DTYPE_BITS.items()))
        shape = [random.choice((0, 1, 1, 2, 3, 8)) for _ in range(random.randrange(4))]
        if bits < 8:
            shape.append(8)
        self.dtype = f'"{code}"'
        self.shape = str(shape)
        self.data = random.randbytes(math.prod(shape) * bits // 8)
        self.offsets = ""


def _name(random: Random) -> str:
    return "".join(random.choices(LETTERS, k=random.randrange(1, 4)))


def _quoted(random: Random, text: str) -> str:
    """The text as it may stand between quotes."""
    return json.dumps(text, ensure_ascii=random.random() < 0.5)[1:-1]


def _strings(random: Random) -> list[str]:
    """Members of a metadata object, some of them typed."""
    keys = list(dict.fromkeys(_name(random) for _ in range(random.choice((0, 0, 1, 3)))))
    typed = [key for key in keys if random.random() < 0.5]
    values = {key: random.choice(VALUES) for key in keys}
    if typed:
        values["holdfast.json"] = json.dumps(typed)
    return [member(_quoted(random, key), json.dumps(value)) for key, value in values.items()]

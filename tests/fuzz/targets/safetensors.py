"""The safetensors format as a target, beside the reference library."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import safetensors

from standfast.errors import (
    BadField,
    BadHeader,
    DuplicateKey,
    IndexMismatch,
    LimitExceeded,
    StandfastError,
    TooNew,
)
from standfast.files.layout import Index
from standfast.formats.reader import Options
from standfast.formats.safetensors.file import CODE_OF
from tests.formats.builders import chunks
from tests.formats.safetensors.builders import (
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
from tests.formats.safetensors.malformed import ROWS
from tests.formats.safetensors.test_legal import DTYPE_BITS, LEGAL
from tests.fuzz.mutations.bytes import ANYWHERE, flip_bit, inside, set_numbers
from tests.fuzz.mutations.json_text import Members, json_mutations, of_json
from tests.fuzz.seeds import quoted, random_name, small
from tests.fuzz.target import Broken, Outcome, Target, require

STRICTER = (BadField, DuplicateKey, IndexMismatch, LimitExceeded, TooNew)
"""How we may refuse what the reference library opens; any other class would be our mistake.

It skips unknown fields whatever is in them, keeps the last of two equal keys, takes an array for
an entry and null for no metadata, has no limits to rank, dimensions and names, and cannot know
our own keys. A BadHeader too, but only for space before the first brace, which it skips.
"""

TEXTS = ["1", "1.5", '"text"', "[1,[2]]", '{"x":null}', "true", "-3", "[]"]


# Seeds


def seeds() -> list[bytes]:
    """All files of the corpus that are small, and some that Standfast wrote."""
    saved = saved_file(small_tensors(), {"step": 3, "name": "run", "nested": {"x": [1, None]}})
    return [
        _compact(saved),
        *small([case.data for case in ROWS]),
        *small([legal.data for legal in LEGAL]),
    ]


def _compact(file: bytes) -> bytes:
    """The file without the padding of its header, in which most changes would be the same."""
    end = header_end(file)
    return reseal(file_of(file[8:end].rstrip(), file[end:]))


def random_file(random: Random) -> bytes:
    """A legal file: any dtypes and shapes, in any order, with or without digests."""
    names = list(dict.fromkeys(random_name(random) for _ in range(random.randrange(6))))
    tensors = [_Tensor(random) for _ in names]
    end = 0
    in_file = random.sample(tensors, len(tensors))
    for tensor in in_file:
        tensor.offsets = f"[{end},{end + len(tensor.data)}]"
        end += len(tensor.data)
    data = b"".join(tensor.data for tensor in in_file)
    entries = [
        member(quoted(random, name), entry(tensor.dtype, tensor.shape, tensor.offsets))
        for name, tensor in zip(names, tensors, strict=True)
    ]
    strings = _strings(random)
    if random.random() < 0.5:
        digests = json.dumps(chunks(*(tensor.data for tensor in tensors)))
        return sealed_file(
            member("standfast.chunks", digests), *strings, entries=entries, data=data
        )
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


def _strings(random: Random) -> list[str]:
    """Members of a metadata object, some of them typed."""
    keys = list(dict.fromkeys(random_name(random) for _ in range(random.choice((0, 0, 1, 3)))))
    typed = [key for key in keys if random.random() < 0.5]
    values = {key: random.choice(TEXTS) for key in keys}
    if typed:
        values["standfast.json"] = json.dumps(typed)
    return [member(quoted(random, key), json.dumps(value)) for key, value in values.items()]


# Mutations


def _header(random: Random, file: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    """The text of the header."""
    end = header_end(file)
    return file[8:end], lambda text: file_of(text, file[end:])


def _flip_data_bit(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    end = header_end(file)
    return file[:end] + flip_bit(random, file[end:], others)


def _empty_a_tensor(random: Random, tree: Any) -> None:
    """Make a tensor empty where it begins; what follows it then lies behind a hole."""
    for field in _entry(random, tree):
        if field[0] == "shape":
            field[1] = [*field[1], 0] if isinstance(field[1], list) else [0]
        if field[0] == "data_offsets" and isinstance(field[1], list) and field[1]:
            field[1] = [field[1][0], field[1][0]]


def _reshape_a_tensor(random: Random, tree: Any) -> None:
    """Another shape of as many elements."""
    for field in _entry(random, tree):
        if field[0] == "shape" and isinstance(field[1], list):
            field[1] = random.choice(
                ([*field[1], 1], [1, *field[1]], field[1][::-1], [1] * 60 + field[1])
            )


def _entry(random: Random, tree: Any) -> list[Any]:
    """The fields of a tensor, or of the metadata."""
    members = tree if isinstance(tree, Members) else []
    return random.choice([value for _, value in members if isinstance(value, Members)] or [[]])


# Comparison with the reference library


def check(data: bytes, outcome: Outcome, options: Options) -> None:
    """No byte belongs to two tensors or to none; the library sees the same tensors."""
    theirs = _library(data)
    if isinstance(outcome, Index):
        _check_keys(data)
        _check_ranges(data, outcome)
        if isinstance(theirs, str):
            raise Broken(f"we open what the library refuses: {theirs}")
        _check_same(data, outcome, theirs)
    elif not isinstance(theirs, str):
        _check_stricter(data, type(outcome))


def _library(data: bytes) -> dict[str, Any] | str:
    """What the reference library finds in the file, or why it refuses it."""
    try:
        return dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        return str(error)


def _check_stricter(data: bytes, kind: type[StandfastError]) -> None:
    """That we may refuse what the library opens."""
    holds = data[8:9].isspace() if kind is BadHeader else kind in STRICTER
    require(holds, f"the library opens what is a {kind.__name__} to us")


def _check_keys(data: bytes) -> None:
    """No key stands twice, by a way that shares nothing with the reader's."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        require(len(set(keys)) == len(keys), "a key stands twice")

    json.loads(data[8 : header_end(data)], object_pairs_hook=unique)


def _check_ranges(data: bytes, index: Index) -> None:
    end = header_end(data)
    for start, size in sorted(zip(index.starts.tolist(), index.sizes.tolist(), strict=True)):
        require(start == end, "ranges overlap or leave a hole")
        end += size
    require(end == len(data), "ranges do not end with the file")


def _check_same(data: bytes, index: Index, theirs: dict[str, Any]) -> None:
    require(theirs.keys() == index.rows.keys(), "the library sees other names")
    for name, row in index.rows.items():
        view = theirs[name]
        start = int(index.starts[row])
        require(view["dtype"] == CODE_OF[index.dtypes[row]], "the library sees another dtype")
        require(tuple(view["shape"]) == index.shapes[row], "the library sees another shape")
        require(
            bytes(view["data"]) == data[start : start + int(index.sizes[row])],
            "the library sees other bytes",
        )


TARGET = Target(
    name="safetensors",
    suffix=".safetensors",
    seeds=seeds,
    random_file=random_file,
    mutations=(
        *ANYWHERE,
        _flip_data_bit,
        set_numbers(lambda file: [(0, 8)]),
        *json_mutations(_header),
        *(
            inside(_header, of_json(change))
            for change in (_empty_a_tensor, _reshape_a_tensor, _reshape_a_tensor)
        ),
    ),
    reseal=reseal,
    check=check,
)

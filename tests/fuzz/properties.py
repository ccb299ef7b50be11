"""What must hold for any input, whether it is opened or refused."""

import io
import json
import math
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from blake3 import blake3

import standfast
from standfast import errors
from standfast.files.digests import chunk_counts
from standfast.files.layout import Form, Index
from standfast.files.writer import write_stream
from standfast.formats import format_named, format_of_file
from standfast.formats.metadata import from_strings, to_strings
from standfast.formats.reader import Options
from standfast.formats.torch.values import Stub
from standfast.tensorfile.open import TensorFile
from standfast.tensorfile.portable import portable
from standfast.tensors import TensorSpec
from tests.formats.builders import Array
from tests.fuzz.target import Broken, Outcome, Target, require

LONGEST_MESSAGE = 4000
LARGEST_ARRAY = 1 << 20
"""A short file can hold a tensor of a petabyte, all of it one number; that is not compared."""

PLAIN = (str, bytes, bytearray, int, float, complex, type(None), np.generic, np.ndarray, np.dtype)


def read(data: bytes, path: str, options: Options) -> Outcome:
    """What the readers make of these bytes; any other exception is the fuzzer's catch."""

    def read_bytes(start: int, length: int) -> bytes:
        require(0 <= start <= start + length <= len(data), "a read outside of the file")
        return data[start : start + length]

    try:
        format = format_of_file(path, data[:1024], len(data))
        return format.read_index(read_bytes, len(data), options)
    except errors.StandfastError as error:
        return error


def _is_of(data: bytes, target: Target) -> bool:
    """Whether it is this target's reader that is asked: changes can make it another's."""
    format = format_of_file(f"file{target.suffix}", data[:1024], len(data))
    return target.name == format.NAME


def check_in_memory(data: bytes, target: Target, options: Options) -> Outcome:
    """Read the index of a file, check it if there is one, and compare with another reader."""
    outcome = read(data, f"file{target.suffix}", options)
    if isinstance(outcome, Index):
        _check_index(data, outcome, shares=outcome.format == "torch")
    else:
        check_message(str(outcome))
    if _is_of(data, target):
        target.check(data, outcome, options)
    return outcome


def check_message(message: str) -> None:
    require(len(message) < LONGEST_MESSAGE, "the message is too long")
    require(message.isprintable(), "the message holds characters that are not for terminals")


def _check_index(data: bytes, index: Index, *, shares: bool) -> None:
    count = len(index.rows)
    columns = (index.dtypes, index.shapes, index.starts, index.sizes)
    require(all(len(column) == count for column in columns), "columns differ in length")
    require(list(index.rows.values()) == list(range(count)), "rows are not in order")
    require(index.end == len(data), "the end is not that of the file")
    for name, row in index.rows.items():
        name.encode()
        _check_size(index.spec(row), index.forms.get(row), int(index.sizes[row]))
    end = 0
    for start, size in sorted(zip(index.starts.tolist(), index.sizes.tolist(), strict=True)):
        require(0 <= start <= start + size <= len(data), "a tensor lies outside of the file")
        require(shares or not size or start >= end, "tensors overlap")
        end = max(end, start + size)
    if index.digests is not None:
        chunks = int(chunk_counts(index.sizes).sum())
        require(len(index.digests) == 32 * chunks, "not one digest for each chunk")
    _check_metadata(index)


def _check_size(spec: TensorSpec, form: Form | None, size: int) -> None:
    """The bytes that a tensor takes are those that its elements need."""
    if form is not None and form.deflated is not None:
        holds = form.deflated.size == form.deflated.skip + spec.nbytes
    elif form is not None and form.strides is not None:
        steps = list(zip(spec.array_shape, form.strides, strict=True))
        reach = sum((n - 1) * step for n, step in steps) + spec.kind.numpy.itemsize
        holds = reach <= size and all(step >= 0 for _, step in steps)
    else:
        holds = size * 8 == math.prod(spec.shape) * spec.kind.bits
        holds |= spec.kind.packed and size == spec.nbytes
    require(holds, "a size is not shape × dtype")


def _check_metadata(index: Index) -> None:
    """What was read is plain, can be saved, and comes back the same."""
    todo: list[Any] = [index.metadata]
    while todo:
        value = todo.pop()
        if isinstance(value, dict | Mapping):
            require(all(isinstance(key, str) for key in value), "a key is no text")
            todo.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            require(type(value) is list or index.format == "torch", "no JSON among the metadata")
            todo.extend(value)
        else:
            require(isinstance(value, PLAIN), f"a {type(value).__name__} among the metadata")
    try:
        kept, _ = portable(
            index.metadata, format_named("safetensors"), cast=index.format == "torch", extras=True
        )
        strings = to_strings(kept)
    except errors.StandfastError as error:
        raise Broken(f"metadata was read that cannot be saved: {error}") from error
    for text in (*strings, *strings.values()):
        text.encode()
    require(index.format == "torch" or kept.keys() == index.metadata.keys(), "a key was lost")
    require(to_strings(from_strings(strings)) == strings, "metadata does not come back the same")


def check_array(array: Array, expected: Array | None, spec: TensorSpec) -> None:
    """One tensor as a user gets it."""
    require(array.flags.aligned, "an array is not aligned")
    if array.dtype.names is None:
        require(array.shape == spec.array_shape, "an array of another shape")
        require(array.dtype == spec.kind.numpy, "an array of another dtype")
    if expected is not None:
        require(array.tobytes() == expected.tobytes(), "an array of other bytes")


def check_opened(data: bytes, outcome: Outcome, target: Target, options: Options) -> None:
    """Open the bytes as a stream: it must come to the same, and all of it must work."""
    try:
        file = open_stream(data, options)
    except errors.StandfastError as error:
        check_message(str(error))
        _check_same_refusal(data, outcome, error)
        return
    with file:
        if isinstance(outcome, errors.TrailingBytes):
            # Reading stopped where the content ends, and so saw a file that is whole.
            data = data[: file._index.end]
            outcome = read(data, f"file{target.suffix}", options)
        require(isinstance(outcome, Index), f"the stream opens: {outcome}")
        assert isinstance(outcome, Index)
        require(list(file) == list(outcome.rows), "the stream has other names")
        damaged = damaged_tensors(data, outcome, options)
        broken = broken_tensors(data, outcome)
        with expecting(damaged, broken):
            arrays = file.arrays()
            for name, row in outcome.rows.items():
                check_array(arrays[name], expected_array(data, outcome, row), outcome.spec(row))
            check_tree(file.tree())
        if not damaged and not broken:
            _check_saved_again(file, arrays)


def open_stream(data: bytes, options: Options) -> TensorFile:
    return standfast.open(
        io.BytesIO(data), verify=options.verify, tensors_only=options.tensors_only
    )


def _check_same_refusal(data: bytes, outcome: Outcome, error: errors.StandfastError) -> None:
    if isinstance(error, errors.UnknownFormat):
        return  # there is no suffix to tell it by
    if len(data) < 10 and isinstance(error, errors.TruncatedFile):
        return
    require(not isinstance(outcome, Index), f"the stream is refused: {error}")
    # Whoever does not know where a file ends goes on, and may find something else.
    if not isinstance(outcome, errors.TruncatedFile | errors.TrailingBytes):
        require(type(error) is type(outcome), f"two refusals: {error}; and as a file: {outcome}")


@contextmanager
def expecting(
    damaged: tuple[str, ...], broken: list[str], *, names_all: bool = True
) -> Iterator[None]:
    """The block must raise a DigestMismatch of these tensors, or a DamagedFile for the broken."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.NotVerified)
            yield
    except errors.DigestMismatch as error:
        found, all_of_them = set(error.tensors), set(damaged)
        right = found == all_of_them if names_all else bool(found) and found <= all_of_them
        require(right or bool(broken), f"others are damaged: {error.tensors}")
    except errors.DamagedFile as error:
        require(bool(broken), f"nothing is broken: {error}")
    else:
        require(not damaged and not broken, "damage was not found")


def check_tree(tree: Any) -> None:
    """A tree holds nothing but plain containers, plain values and arrays."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            todo.extend(node.values())
        elif isinstance(node, list | tuple | set | frozenset):
            todo.extend(node)
        else:
            plain = isinstance(node, (*PLAIN, Stub, np.dtype))
            require(plain, f"a {type(node).__name__} in the tree")


def _check_saved_again(file: TensorFile, arrays: Mapping[str, Array]) -> None:
    """The content saved in the same format and read again is the same."""
    specs = {name: file.spec(name) for name in file}
    if sum(spec.nbytes for spec in specs.values()) > LARGEST_ARRAY:
        return
    kind = format_named(file.format)
    metadata, _ = portable(file.metadata, kind, cast=True, extras=True)
    try:
        layout = kind.layout(list(specs.items()), metadata, True)
    except (errors.BadName, errors.UnsupportedShape):
        return  # paths of a tree have any length, and empty tensors dimensions that none can use
    stream = io.BytesIO()
    write_stream(stream, layout, [file.source(name) for name in file])
    with standfast.open(io.BytesIO(stream.getvalue())) as again:
        require(again.has_digests and sorted(again) == sorted(file), "saved again, other names")
        for name, spec in specs.items():
            require(again.spec(name) == spec, "saved again, another spec")
            require(again[name].tobytes() == arrays[name].tobytes(), "saved again, other bytes")
        texts = [json.dumps(each, sort_keys=True) for each in (metadata, again.metadata)]
        require(texts[0] == texts[1], "saved again, other metadata")


def damaged_tensors(data: bytes, index: Index, options: Options) -> tuple[str, ...]:
    """The tensors whose bytes do not match their digests, in the order of the file."""
    if not options.verify:
        return ()
    names = list(index.rows)
    rows = sorted(range(len(names)), key=lambda row: (index.starts[row], index.sizes[row]))
    return tuple(names[row] for row in rows if _is_damaged(data, index, row))


def _is_damaged(data: bytes, index: Index, row: int) -> bool:
    stored = data[index.starts[row] :][: index.sizes[row]]
    if index.digests is not None:
        # Inputs are small, so that each tensor has one chunk.
        return blake3(stored).digest() != index.digests[32 * row : 32 * row + 32]
    if index.crcs is None or (row in index.forms and index.forms[row].deflated is not None):
        return False
    before, expected = index.crcs[row]
    return zlib.crc32(stored, before) != expected


def expected_array(data: bytes, index: Index, row: int) -> Array | None:
    """A tensor as it should be; None if its bytes cannot be inflated, or are far too many."""
    spec, form = index.spec(row), index.forms.get(row)
    stored = data[index.starts[row] :][: index.sizes[row]]
    if form is None:
        return np.frombuffer(stored, spec.kind.numpy).reshape(spec.array_shape)
    if form.record is not None:
        return np.frombuffer(stored, form.record)
    if spec.nbytes > LARGEST_ARRAY:
        return None
    if form.deflated is not None:
        inflated = inflate(stored, form.deflated.size, form.deflated.crc)
        if inflated is None:
            return None
        stored = inflated[form.deflated.skip :]
    dtype = spec.kind.numpy.newbyteorder(">" if form.big_endian else "<")
    if not stored:
        return np.empty(spec.array_shape, spec.kind.numpy)
    return np.ndarray(spec.array_shape, dtype, stored, 0, form.strides).astype(spec.kind.numpy)


def inflate(stored: bytes, size: int, crc: int) -> bytes | None:
    """The inflated bytes; None unless they are of this size and checksum."""
    inflater = zlib.decompressobj(-15)
    try:
        inflated = inflater.decompress(stored, size + 1)
    except zlib.error:
        return None
    whole = inflater.eof or (len(inflated) == size and _ends(inflater))
    sound = len(inflated) == size and zlib.crc32(inflated) == crc and not inflater.unused_data
    return inflated if whole and sound else None


def _ends(inflater: Any) -> bool:
    """Whether nothing but the end follows; zlib looks for it only when asked for more."""
    try:
        return not inflater.decompress(inflater.unconsumed_tail, 1) and bool(inflater.eof)
    except zlib.error:
        return False


def broken_tensors(data: bytes, index: Index) -> list[str]:
    """The compressed tensors that cannot be inflated to what the file says of them."""
    return [
        name
        for name, row in index.rows.items()
        if row in index.forms and index.forms[row].deflated is not None
        if index.spec(row).nbytes <= LARGEST_ARRAY and expected_array(data, index, row) is None
    ]

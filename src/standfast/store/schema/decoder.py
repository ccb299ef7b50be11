"""A record out of a file: every line checked, and all of them against each other."""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from blake3 import blake3

from standfast.errors import (
    BadField,
    BadRange,
    DamagedFile,
    DuplicateKey,
    IndexMismatch,
    LimitExceeded,
    RefusedState,
    TooNew,
    TruncatedFile,
    printable,
    shortened,
)
from standfast.files.digests import CHUNK, DIGEST
from standfast.formats.limits import MAX_RANK, MAX_SIZE
from standfast.store.backends.backend import Reads
from standfast.store.schema import names
from standfast.store.schema.boxes import box_nbytes, check_boxes, cut_by
from standfast.store.schema.record import END, FORMAT, MAX_HEAD, TAG, Head, Place, Record, encode
from standfast.store.schema.seal import check_needs, check_sealed
from standfast.store.schema.seal import decode as decode_sealed
from standfast.store.tree import tree
from standfast.store.tree.aliases import View, check_view
from standfast.tensors import DTYPES, TensorSpec
from standfast.tensors.shards import Box


class _Numbered(msgspec.Struct, forbid_unknown_fields=True):
    values: list[str]
    rows: list[int]

    def all(self) -> list[str]:
        values = self.values
        if self.rows and not 0 <= min(self.rows) <= max(self.rows) < len(values):
            raise BadField(f"a row is none of the {len(values)} values")
        return [values[row] for row in self.rows]


class _Specs(msgspec.Struct, forbid_unknown_fields=True):
    dtypes: _Numbered
    shapes: list[tuple[int, ...]]


class _Extents(msgspec.Struct, forbid_unknown_fields=True):
    counts: list[int]
    files: list[int]
    starts: list[int]
    sizes: list[int]


_COLUMNS: Final[dict[str, Any]] = {
    "names": dict[str, list[str]],
    "kinds": dict[str, _Numbered],
    "specs": dict[str, _Specs],
    "extents": dict[str, _Extents],
    "digests": dict[str, str],
    "views": dict[str, list[tuple[int, int, int, tuple[int, ...]]]],
    "boxes": dict[str, list[tuple[int, list[Box]]]],
}
_OPTIONAL: Final = {"boxes"}
_NAME: Final = re.compile(rb'"name":"([^"]*)"')
FIRST: Final = 8192
"""Most heads are shorter; a longer one is read again."""


def decode_head(line: bytes, run: str, step: int) -> Head:
    """The head of the checkpoint that the record's file name speaks of.

    It means the same whatever the rest of the record needs. Raises TooNew or a DamagedFile.
    """
    try:
        head = decode_sealed(line, FORMAT, Head)
    except (BadField, TooNew) as error:
        raise type(error)(f"the head: {error}") from error
    if (head.run, head.step) != (run, step):
        raise BadField(
            f"the head: it is that of step {head.step!s:.40} of run {head.run!r:.40}, not of step "
            f"{step} of run {run}"
        )
    try:
        _check_head(head)
    except BadField as error:  # a number in it may have thousands of digits
        raise BadField(shortened(str(error))) from error
    return head


def _check_head(head: Head) -> None:
    numbers = (head.tensors, head.nbytes)
    if min(numbers) < 0 or max(*numbers, abs(head.epoch or 0)) >= 1 << 62:
        raise BadField("the head: a number is out of its range")
    check_place(head.place, "the head")
    if head.parent:
        check_place(head.parent, "the head: field parent")
    first = 0
    for part in head.parts:
        if part.first != first or part.count < 0:
            raise BadField(f"the head: field parts: {part.first} where {first} was expected")
        first += part.count
    labels = [part.label for part in head.parts]
    if not all(map(names.is_label, labels)) or len(set(labels)) != len(labels):
        raise BadField("the head: field parts: a label is not valid, or is a duplicate")
    if first != head.tensors:
        raise BadField(f"the head: its parts have {first} tensors, not {head.tensors}")
    for file in head.files:
        named = names.parse(file.name, head.run)
        if named is None or named.kind != "data":
            raise BadField(f"the head: {file.name!r:.100} is no name of a data file")
        if not 0 <= file.used <= file.held <= file.size < 1 << 62:
            raise BadField(f"the head: {file.name}: {file.used:,} of {file.held:,} bytes are used")
    if len({file.name for file in head.files}) != len(head.files):
        raise BadField("the head: field files: a duplicate name")


def check_place(place: Place, where: str) -> None:
    """Raise BadField unless a place could be that of a checkpoint."""
    if not (0 <= place.step < names.MAX_STEP and 0 < place.sequence < names.MAX_SEQUENCE):
        raise BadField(f"{where}: step or sequence is out of its range")
    if not names.is_token(place.token):
        raise BadField(f"{where}: field token: {place.token!r:.40}")


def decode(data: bytes, run: str, step: int) -> Record:
    """The record that the file name speaks of; raises TooNew or a DamagedFile."""
    end = data.find(b"\n", 0, MAX_HEAD)
    if end < 0:
        raise TruncatedFile(f"it ends after {len(data):,} bytes, within the head")
    head = decode_head(data[:end], run, step)
    check_needs(head.needs)  # before all else, which may be another way in a newer version
    if not data.endswith(b'"}\n'):
        raise TruncatedFile(f"it ends after {len(data):,} bytes, and not as a record does")
    body = memoryview(data)[: data.rindex(b"\n", 0, -1) + 1]
    if data[len(body) :] != END + blake3(body).hexdigest().encode() + b'"}\n':
        raise IndexMismatch("it does not match its own digest (the last line)")
    lines = data.split(b"\n")
    columns: dict[str, Any] = {}
    others: dict[str, bytes] = {}
    for line in lines[2:-2]:
        name, values = _column(line)
        if name in columns or name in others:
            raise DuplicateKey(f"line {name!r:.80}: a second one of this name")
        if name in _COLUMNS:
            columns[name] = values
        else:
            others[name] = line
    if missing := _COLUMNS.keys() - _OPTIONAL - columns.keys():
        raise BadField(f"it has no line {min(missing)}")
    if columns.get("boxes") == []:
        raise BadField("line boxes: a record in which no tensor is in boxes has no such line")
    return _checked(head, lines[1], others, **columns)


def _column(line: bytes) -> tuple[str, Any]:
    """The name of a column and its values."""
    start = printable(line[2:80].partition(b'"')[0].decode("latin-1"))
    try:
        column: Any = msgspec.json.decode(line, type=_COLUMNS.get(start, Any))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadField(f"line {start}: {printable(shortened(str(error)))}") from error
    if not isinstance(column, dict) or len(column) != 1:
        raise BadField(f"line {start}: expected an object with one key")
    if msgspec.json.encode(column) != line:
        raise BadField(f"line {start}: a duplicate key, or not in its shortest form")
    ((name, values),) = column.items()
    return name, values


def _checked(
    head: Head,
    tree: bytes,
    others: dict[str, bytes],
    names: list[str],
    kinds: _Numbered,
    specs: _Specs,
    extents: _Extents,
    digests: str,
    views: list[tuple[int, int, int, tuple[int, ...]]],
    boxes: Sequence[tuple[int, list[Box]]] = (),
) -> Record:
    """The record, once all its columns fit together."""
    dtypes = specs.dtypes.all()
    lengths: dict[str, Sequence[Any]] = {
        "names": names,
        "kinds": kinds.rows,
        "dtypes": dtypes,
        "shapes": specs.shapes,
        "counts": extents.counts,
    }
    for name, column in lengths.items():
        if len(column) != head.tensors:
            raise BadField(f"column {name}: {len(column):,} rows for {head.tensors:,} tensors")
    if len(set(names)) != len(names):
        raise BadField("column names: two tensors have one name")
    try:
        record = Record(
            head=head,
            tree=tree,
            names=names,
            kinds=kinds.all(),
            specs=_checked_specs(dtypes, specs.shapes, names),
            counts=np.array(extents.counts, np.int64),
            files=np.array(extents.files, np.int64),
            starts=np.array(extents.starts, np.int64),
            sizes=np.array(extents.sizes, np.int64),
            digests=_decoded_digests(digests),
            views={tensor: View(base, at, strides) for tensor, base, at, strides in views},
            boxes=dict(boxes),
            others=others,
        )
    except OverflowError as error:
        raise BadField(f"column extents: {error}") from error
    _check_views(record, len(views))
    _check_boxes(record, len(boxes))
    _check_extents(record)
    chunks = int(record.first_chunks[-1])
    if len(record.digests) != chunks * DIGEST:
        raise BadField(
            f"column digests: {len(record.digests):,} bytes of digests for {chunks:,} chunks"
        )
    return record


def _checked_specs(
    dtypes: list[str], shapes: list[tuple[int, ...]], names: list[str]
) -> list[TensorSpec]:
    unknown = set(dtypes) - set(DTYPES)
    if unknown:
        raise BadField(f"column specs: no dtype {min(unknown)!r:.80}")
    for name, shape in zip(names, shapes, strict=True):
        if len(shape) > MAX_RANK or (shape and min(shape) < 0):
            raise BadField(f"tensor {name!r:.100}: no shape {shape!r:.100}")
        if math.prod(filter(None, shape)) * 16 > MAX_SIZE:
            raise LimitExceeded(f"tensor {name!r:.100}: no array can have {shape!r:.100}")
    return [TensorSpec(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]


def _decoded_digests(text: str) -> bytes:
    if not text.startswith(TAG):
        raise BadField(f"column digests: expected text that starts {TAG!r}")
    try:
        return binascii.a2b_base64(text[len(TAG) :], strict_mode=True)
    except ValueError as error:
        raise BadField(f"column digests: no base64 ({error})") from error


def _check_views(record: Record, count: int) -> None:
    if len(record.views) != count:
        raise BadField("column views: a duplicate tensor")
    for tensor, view in record.views.items():
        if not (0 <= tensor < len(record.names) and 0 <= view.base < len(record.names)):
            number = shortened(str(max(tensor, view.base)))
            raise BadField(f"column views: there is no tensor {number}")
        if view.base in record.views:
            raise BadField(f"column views: the base {view.base} is a view itself")
        spec, base = record.specs[tensor], record.specs[view.base]
        check_view(spec, view.offset, view.strides, base.nbytes)


def _check_boxes(record: Record, count: int) -> None:
    if len(record.boxes) != count:
        raise BadField("column boxes: a duplicate tensor")
    for tensor, boxes in record.boxes.items():
        if not 0 <= tensor < len(record.names):
            raise BadField(f"column boxes: there is no tensor {shortened(str(tensor))}")
        if tensor in record.views:
            raise BadField(f"column boxes: tensor {record.names[tensor]!r:.100} is a view")
        if len(boxes) > record.counts[tensor]:
            raise BadField(f"tensor {record.names[tensor]!r:.100}: a box has no extent")
        try:
            check_boxes(record.specs[tensor], boxes)
        except (BadField, LimitExceeded) as error:
            raise type(error)(f"tensor {record.names[tensor]!r:.100}: {error}") from error


def _check_extents(record: Record) -> None:
    counts, files, starts, sizes = record.counts, record.files, record.starts, record.sizes
    total = int(counts.sum()) if counts.size else 0
    if counts.size and not 0 <= counts.min() <= counts.max() <= len(files):
        raise BadField("column extents: a count is out of its range")
    if not len(files) == len(starts) == len(sizes) == total:
        raise BadField(f"column extents: {len(files):,} extents, but the counts make {total:,}")
    if np.any(record.counts[list(record.views)]):
        raise BadField("column extents: a view has extents")
    if total:
        if files.min() < 0 or files.max() >= len(record.head.files):
            raise BadField("column extents: there is no such file")
        ends = np.array([file.size for file in record.head.files], np.int64)[files]
        if starts.min() < 0 or sizes.min() < 1 or np.any(starts > ends - sizes):
            raise BadRange("column extents: an extent does not lie inside its file")
        if sum(sizes.tolist()) >= MAX_SIZE:  # in 64 bits, such a sum may pass for a small one
            raise LimitExceeded("column extents: they are longer than anything can be")
    sums = np.concatenate(([0], np.cumsum(sizes)))[record.first_extents]
    if np.any(np.diff(sums) != record.nbytes):
        wrong = record.names[int(np.flatnonzero(np.diff(sums) != record.nbytes)[0])]
        raise BadField(f"tensor {wrong!r:.100}: its extents do not add up to its size")
    inner = np.ones(total, bool)
    inner[record.first_extents[1:][record.counts > 0] - 1] = False
    for tensor, boxes in record.boxes.items():
        inner[_ends_of_boxes(record, tensor, boxes)] = False
    if np.any(sizes[inner] % CHUNK):
        raise BadRange("column extents: an extent ends within a chunk")


def _ends_of_boxes(record: Record, tensor: int, boxes: Sequence[Box]) -> list[int]:
    """The last extent of each box of a tensor, whose extents must be cut where its boxes are."""
    first, end = int(record.first_extents[tensor]), int(record.first_extents[tensor + 1])
    sizes, extents = box_nbytes(record.specs[tensor], boxes), record.sizes[first:end].tolist()
    ends = []
    for size, mine in zip(sizes, cut_by(sizes, extents), strict=True):
        if sum(extents[number] for number in mine) != size:
            raise BadField(f"tensor {record.names[tensor]!r:.100}: an extent goes beyond its box")
        ends.append(first + mine[-1])
    return ends


def encode_checked(record: Record) -> bytes:
    """The whole record, which has been read back: one that no reader takes is not committed.

    Raises RefusedState.
    """
    text = encode(record)
    try:
        decode(text, record.head.run, record.head.step)
        tree.decode(record.tree, len(record.names))
    except DamagedFile as error:
        raise RefusedState(f"the checkpoint could not be loaded again: {error}") from error
    return text


# Heads alone


def read_head(backend: Reads, run: str, step: int) -> Head:
    """The head of a record, as it is in the store; raises MissingFile, TooNew or a DamagedFile."""
    return decode_head(read_head_line(backend, run, step), run, step)


def names_in_head(backend: Reads, run: str, step: int) -> set[str]:
    """The data files that a record refers to, and maybe more; raises what `read_head` does.

    It takes a fraction of the time, for those who ask all records of a run.
    """
    line = read_head_line(backend, run, step)
    check_sealed(line, FORMAT)
    return {name.decode("ascii", "replace") for name in _NAME.findall(line)}


def read_head_line(backend: Reads, run: str, step: int) -> bytes:
    """The first line of a record."""
    name = names.record_file(run, step)
    for limit in (FIRST, MAX_HEAD):
        line, end, _ = backend.read(name, limit).partition(b"\n")
        if end:
            break
    return line

"""A record out of a file: every line checked, and all of them against each other."""

from __future__ import annotations

import binascii
import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from blake3 import blake3

from standfast.errors import (
    BadField,
    BadRange,
    IndexMismatch,
    LimitExceeded,
    TruncatedFile,
    printable,
    shortened,
)
from standfast.files.digests import CHUNK, DIGEST
from standfast.formats.limits import MAX_RANK, MAX_SIZE
from standfast.store.schema import names
from standfast.store.schema.boxes import box_nbytes, check_boxes, cut_by
from standfast.store.schema.record import END, FORMAT, TAG, Head, Record
from standfast.store.schema.seal import unseal
from standfast.store.tree.aliases import View, check_view
from standfast.tensors import DTYPES, TensorSpec
from standfast.tensors.shards import Box

_LINES: Final = 9
"""Of a record without boxes; one that has some has a line more."""


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


def decode_head(line: bytes, run: str, step: int) -> Head:
    """The head of the checkpoint that the record's file name speaks of."""
    try:
        head = msgspec.convert(unseal(line, FORMAT), Head)
    except msgspec.ValidationError as error:
        raise BadField(f"the head: {printable(shortened(str(error)))}") from error
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
    numbers = (head.sequence - 1, head.tensors, head.nbytes, head.step)
    if min(numbers) < 0 or max(*numbers, abs(head.epoch or 0)) >= 1 << 62:
        raise BadField("the head: a number is out of its range")
    first = 0
    for part in head.parts:
        if part.first != first or part.count < 0:
            raise BadField(f"the head: field parts: {part.first} where {first} was expected")
        first += part.count
    labels = [part.label for part in head.parts]
    if not all(map(names.is_label, labels)) or len(set(labels)) != len(labels):
        raise BadField("the head: field parts: a label is none, or stands twice")
    if head.parent and not all(
        0 <= number < names.MAX_STEP for number in (head.parent.step, head.parent.sequence)
    ):
        raise BadField("the head: field parent: a number is out of its range")
    if first != head.tensors:
        raise BadField(f"the head: its parts have {first} tensors, not {head.tensors}")
    for file in head.files:
        named = names.parse(file.name, head.run)
        if named is None or named.kind != "data":
            raise BadField(f"the head: {file.name!r:.100} is no name of a data file")
        if not 0 <= file.used <= file.held <= file.size < 1 << 62:
            raise BadField(f"the head: {file.name}: {file.used:,} of {file.held:,} bytes are used")
    if len({file.name for file in head.files}) != len(head.files):
        raise BadField("the head: a data file stands twice")


def decode(data: bytes, run: str, step: int) -> Record:
    """The record that the file name speaks of; raises a DamagedFile that says what is wrong."""
    if not data.endswith(b'"}\n') or len(data) < 256:
        raise TruncatedFile(f"it ends after {len(data):,} bytes, and not as a record does")
    body = memoryview(data)[: data.rindex(b"\n", 0, -1) + 1]
    if data[len(body) :] != END + blake3(body).hexdigest().encode() + b'"}\n':
        raise IndexMismatch("it does not match its own digest (the last line)")
    lines = data.split(b"\n")
    if len(lines) not in (_LINES + 1, _LINES + 2):
        raise BadField(f"it has {len(lines) - 1} lines, not {_LINES} or {_LINES + 1}")
    head = decode_head(lines[0], run, step)
    columns = {name: _column(name, line) for name, line in zip(_COLUMNS, lines[2:-2], strict=False)}
    if columns.get("boxes") == []:
        raise BadField("line boxes: a record in which no tensor is in boxes has no such line")
    return _checked(head, lines[1], **columns)


def _column(name: str, line: bytes) -> Any:
    try:
        column: dict[str, Any] = msgspec.json.decode(line, type=_COLUMNS[name])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadField(f"line {name}: {printable(shortened(str(error)))}") from error
    if list(column) != [name]:
        raise BadField(f"line {name}: expected one key, {name!r}")
    if msgspec.json.encode(column) != line:
        raise BadField(f"line {name}: a key stands twice, or there is more in it than needed")
    return column[name]


def _checked(
    head: Head,
    tree: bytes,
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
        raise BadField("column views: a tensor stands twice")
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
        raise BadField("column boxes: a tensor stands twice")
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

"""A checkpoint as one whole torch file: planned, then written like any other data file.

Its tree is that of the record. The tensors that are no views are its storages, in the order of
their numbers, so that the record's extents can say where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from standfast.files.digests import DIGEST, chunk_counts
from standfast.files.layout import Late, Sums
from standfast.files.writer import write_layout
from standfast.formats.seal import ZEROS
from standfast.formats.torch.tree_file import Window, tree_layout
from standfast.formats.torch.tree_writer import TreeTensor
from standfast.formats.torch.values import StoredTensor
from standfast.store.backends.backend import Backend
from standfast.store.save.planning import LOOSE, Plan, PlannedTensor
from standfast.store.save.writing import Written
from standfast.store.schema import names
from standfast.store.schema.extents import Extent
from standfast.store.schema.record import DataFile
from standfast.store.tree import tree
from standfast.store.v3.torch_names import SUFFIX
from standfast.tensors import Source, TensorSpec
from standfast.tensors.sources import Bytes


class WholeFile:
    """A planned state as one torch file."""

    def __init__(self, plan: Plan, run: str, step: int, token: str) -> None:
        """Raises RefusedState, with the path, for what torch would not read."""
        self._run = run
        self._name = names.data_file(run, step, token, LOOSE, SUFFIX)
        self._numbers = [n for n, tensor in enumerate(plan.tensors) if tensor.view is None]
        self._sources = list(_sources(plan))
        storage_of = {number: storage for storage, number in enumerate(self._numbers)}
        tensors: list[TreeTensor] = []

        def tensor(number: int) -> TreeTensor:
            tensors.append(_tree_tensor(plan, number, storage_of))
            return tensors[-1]

        state = tree.build(tree.decode(plan.tree, len(plan.tensors)), tensor)
        metadata = {"checkpoint": f"{run}@{step}"}
        # Tensors are views of one memory only if they overlap, so that they span all of it.
        sizes = [plan.tensors[n].nbytes for n in self._numbers]
        self._layout = tree_layout(state, tensors, sizes, metadata)

    @property
    def size(self) -> int:
        """The size of the file."""
        return self._layout.layout.size

    def write(self, backend: Backend, stack: ExitStack) -> Written:
        """Write it; it has no name yet, and is discarded with the stack unless it is placed."""
        name = self._name
        new = stack.enter_context(backend.new(f"{names.run_folder(self._run)}/{name}"))
        layout, starts, windows = self._layout
        end = _End(layout.body[-1])
        layout = replace(layout, body=[*layout.body[:-1], Late(end.late.size, end.make)])
        beside = [_WindowSource(self._sources[each.storage], each) for each in windows]
        digests = write_layout(new, layout, self._sources, beside)
        sizes = [source.spec.nbytes for source in self._sources]
        written = Written()
        counts = chunk_counts(np.array(sizes, np.int64)).tolist()
        at = 0
        for number, start, size, count in zip(self._numbers, starts, sizes, counts, strict=True):
            written.extents[number] = [Extent(name, start, size)] if size else []
            written.digests[number] = digests[at * DIGEST : (at + count) * DIGEST]
            at += count
        held = sum(sizes)
        written.new.append((DataFile(name, layout.size, end.seal, held, held), new))
        return written


class _End:
    """The end of the file, of which the seal is remembered."""

    def __init__(self, late: Any) -> None:
        self.late: Late = late
        self.seal = ""

    def make(self, sums: Sums) -> bytes:
        made = self.late.make(sums)
        self.seal = made[-len(ZEROS) :].decode()
        return made


class _WindowSource:
    """A stretch of another source."""

    def __init__(self, source: Source, window: Window) -> None:
        self.spec = TensorSpec("uint8", (window.size,))
        self.sequential = source.sequential
        self._source = source
        self._start = window.start

    def contiguous(self) -> Bytes | None:
        data = self._source.contiguous()
        return None if data is None else data[self._start : self._start + self.spec.nbytes]

    def copy_to(self, out: Bytes, start: int) -> None:
        self._source.copy_to(out, self._start + start)


def _sources(plan: Plan) -> Iterator[Source]:
    for tensor in plan.tensors:
        if tensor.view is None:
            assert tensor.source is not None
            yield tensor.source


def _tree_tensor(plan: Plan, number: int, storage_of: dict[int, int]) -> TreeTensor:
    """A tensor as the file has it: where it lies in which storage, and what it wants to be."""
    tensor = plan.tensors[number]
    base, offset, strides = number, 0, _c_strides(tensor)
    if tensor.view is not None:
        base, offset, strides = tensor.view.base, tensor.view.offset, tensor.view.strides
    stored = StoredTensor(
        str(storage_of[base]),
        plan.tensors[base].nbytes,
        tensor.spec.dtype,
        offset,
        tensor.spec.shape,
        strides,
    )
    return TreeTensor(
        stored,
        wants_gradient=tensor.kind in ("torch:grad", "torch:Parameter"),
        is_parameter=tensor.kind.startswith("torch:Parameter"),
    )


def _c_strides(tensor: PlannedTensor) -> tuple[int, ...]:
    strides, step = [], tensor.spec.kind.numpy.itemsize
    for length in reversed(tensor.spec.array_shape):
        strides.append(step)
        step *= max(1, length)
    return tuple(reversed(strides))

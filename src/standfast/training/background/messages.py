"""What the training process and the helper process say to each other.

training process                      helper process
                                      Ready, once it runs
Map                               →
                                      … maps the stagings, ahead of the first job
Job: a plan, without its bytes    →
                                      … writes the data files
                                  ←   Commit: the record
Committed, or Failure             →
                                  ←   Done, or Failure
Write: a job of one of many ranks →
                                      … writes the data files
                                  ←   Written: its share, or Failure
Retain                            →
                                      … deletes what the run does not keep
                                  ←   Retained, or Failure
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from standfast import errors
from standfast.errors import DigestMismatch, SaveFailed, StandfastError
from standfast.store.save.planning import Plan, PlannedFile, PlannedTensor
from standfast.store.save.saving import Wanted
from standfast.store.save.shares import Share
from standfast.store.schema.record import Head, Part, Place
from standfast.store.tree.aliases import View
from standfast.tensors import Source, TensorSpec


class Tensor(Struct, array_like=True, frozen=True):
    """A planned tensor."""

    name: str
    entry: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    stored: bool
    """Whether it is in a staging."""
    view: View | None


class File(Struct, array_like=True, frozen=True):
    """A planned file."""

    label: str
    prefix: str
    tensors: list[int]
    shared: dict[str, str]


class Shape(Struct, tag=True, frozen=True):
    """A plan without its tree: the same for all saves of a state whose tensors stay the same."""

    tensors: list[Tensor]
    parts: list[Part]
    files: list[File]


class Ready(Struct, tag=True, frozen=True):
    """The helper runs."""


class Map(Struct, tag=True, frozen=True):
    """There is memory that a job will need; no answer is expected."""


class Job(Struct, tag=True, frozen=True):
    """A checkpoint to be assembled of what is in a staging."""

    staging: int
    """Which of them."""
    summed: list[list[int]]
    """What was summed up before it was copied: see `files.staging.layout.changed`."""
    shape: Shape | None
    """None if it is that of the last job."""
    tree: bytes
    wanted: Wanted
    identity: dict[str, str | None]
    origin: Place | None
    software: dict[str, str]
    token: str
    after: int
    claim: int


class Write(Struct, tag=True, frozen=True):
    """A rank's share of a checkpoint, to be written of what is in a staging."""

    job: Job
    rank: int
    written: list[int]
    """The tensors that this rank writes; the others are compared with what another one has."""


class Written(Struct, tag=True, frozen=True):
    """It is on the disk."""

    share: Share


class Commit(Struct, tag=True, frozen=True):
    """All but the record is on the disk: please commit it."""

    head: Head
    record: bytes
    replace: bool


class Committed(Struct, tag=True, frozen=True):
    """It is committed."""


class Done(Struct, tag=True, frozen=True):
    """The job is done, and the staging free."""

    head: Head


class Retain(Struct, tag=True, frozen=True):
    """Please delete what is not kept."""


class Retained(Struct, tag=True, frozen=True):
    """That is done."""

    problems: list[str]


class Failure(Struct, tag=True, frozen=True):
    """An error, on its way to the other process."""

    kind: str
    number: int | None
    text: str


Message = (
    Ready | Map | Job | Write | Written | Commit | Committed | Done | Retain | Retained | Failure
)


def shape_of(plan: Plan) -> Shape:
    """The plan without its tree and its bytes."""
    return Shape(
        [
            Tensor(
                tensor.name,
                tensor.entry,
                tensor.kind,
                tensor.spec.dtype,
                tensor.spec.shape,
                tensor.nbytes,
                tensor.source is not None,
                tensor.view,
            )
            for tensor in plan.tensors
        ],
        plan.parts,
        [
            File(file.label, file.prefix, list(file.tensors), dict(file.shared))
            for file in plan.files
        ],
    )


def specs_of(shape: Shape) -> list[TensorSpec]:
    """The specs of what is in the staging, in its order."""
    return [TensorSpec(each.dtype, each.shape) for each in shape.tensors if each.stored]


def plan_of(shape: Shape, tree: bytes, sources: Sequence[Source]) -> Plan:
    """The plan, with the sources of what is in the staging, in its order."""
    rest = iter(sources)
    tensors = [
        PlannedTensor(
            each.name,
            each.entry,
            each.kind,
            TensorSpec(each.dtype, each.shape),
            each.nbytes,
            next(rest) if each.stored else None,
            each.view,
        )
        for each in shape.tensors
    ]
    files = [
        PlannedFile(each.label, each.prefix, each.tensors, each.shared) for each in shape.files
    ]
    return Plan(tree, tensors, shape.parts, files)


def failure_of(error: BaseException) -> Failure:
    """An error as a message."""
    number, text = None, str(error)
    if isinstance(error, OSError):
        number, text = error.errno, error.strerror or text
    return Failure(type(error).__name__, number, text)


def error_of(failure: Failure) -> StandfastError:
    """The error again, of its own class if that is one of ours."""
    kind: Any = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, StandfastError)):
        return SaveFailed(
            f"the helper process could not write the checkpoint: {failure.kind}: {failure.text}"
        )
    if issubclass(kind, DigestMismatch):
        return DigestMismatch(failure.text, ())
    if issubclass(kind, OSError) and failure.number is not None:
        return kind(failure.number, failure.text)
    return kind(failure.text)

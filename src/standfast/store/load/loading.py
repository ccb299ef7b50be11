"""A checkpoint becomes a state, or fills a given tree, on the host and on devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from standfast.errors import BadOption, StateMismatch
from standfast.store.load.boxed import Boxed
from standfast.store.load.filling import Filling, LoadReport, move
from standfast.store.load.making import placed_tensors_in, references, tensors_in
from standfast.store.load.placing import Placing, homes_of
from standfast.store.schema import names
from standfast.store.tree import tree
from standfast.store.tree.per_rank import ALONE, Rank, own_of
from standfast.tensors import fill
from standfast.tensors.cast import cast_array, cast_spec, castable_dtype
from standfast.tensors.frameworks import device_of, shards_of

if TYPE_CHECKING:
    from standfast.store.checkpoint import Checkpoint

Rename = Mapping[str, str] | None


class Options(NamedTuple):
    """How a checkpoint is loaded: see `Run.load`."""

    verify: bool = True
    mapped: bool | None = None
    device: Any = None
    cast: Any = None
    part: str | None = None
    ranks: Rank = ALONE
    """Which of how many ranks loads it."""

    @property
    def is_plain(self) -> bool:
        """Whether all of it comes to the host as it was saved."""
        return self.device is None and self.cast is None and self.part is None

    @property
    def dtype(self) -> str | None:
        """What floating-point tensors become, if anything; raises BadOption."""
        return None if self.cast is None else castable_dtype(self.cast)


def load_state(checkpoint: Checkpoint, options: Options, rename: Rename = None) -> Any:
    """The state, or a part of it, with some of its nodes under other paths."""
    record, (verify, mapped, *_) = checkpoint.record, options
    saved = own_of(saved_tree(checkpoint, options.part), options.ranks)
    if rename:
        saved = move(saved, rename)
    if options.is_plain and options.ranks == ALONE:
        with checkpoint.data(verify=verify, mapped=mapped) as data:
            return tree.build(saved, tensors_in(record, data))
    cast = options.dtype
    numbers = [number for _, number in references(saved)]
    homes = homes_of(record, numbers, options.device)
    with checkpoint.data(tensors=numbers, verify=verify, mapped=mapped) as data:
        return tree.build(saved, placed_tensors_in(record, data, numbers, homes, cast))


def report_of(checkpoint: Checkpoint, options: Options, rename: Rename) -> LoadReport:
    """What `load_state` has loaded."""
    loaded = list(checkpoint.tensors)
    if options.part is not None:
        saved = saved_tree(checkpoint, options.part)
        loaded = [checkpoint.record.names[number] for _, number in references(saved)]
    return LoadReport(loaded=loaded, renamed=dict(rename or {}))


def load_into(
    checkpoint: Checkpoint, into: Any, options: Options, strict: bool, rename: Rename
) -> tuple[Any, LoadReport]:
    """A given tree, filled in place.

    All is verified before the first tensor is filled; only what goes to devices, or is shared out
    over ranks, is verified on its way, and no damaged chunk gets there.
    """
    if options.device is not None:
        raise BadOption(
            f"device={options.device!r}: the tensors given in `into` are filled where they lie"
        )
    record, cast = checkpoint.record, options.dtype
    saved = own_of(saved_tree(checkpoint, options.part), options.ranks)
    filling = Filling(into, saved, lambda tensor: record.specs[tensor], rename, cast)
    if strict:
        filling.check()
    placing, on_host = Placing(record, cast), []
    boxed = Boxed(record, cast)
    for given, tensor in filling.tensors:
        if (shards := shards_of(given)) is not None:
            boxed.add(shards, tensor)
        elif device := device_of(given):
            placing.fill(device, given, tensor)
        else:
            on_host.append(tensor)

    def put(given: Any, tensor: int) -> None:
        if shards_of(given) is None and device_of(given) is None:
            spec = record.specs[tensor]
            fill(given, cast_array(data.array(tensor), spec, cast), cast_spec(spec, cast))

    numbers = [tensor for _, tensor in filling.tensors]
    with checkpoint.data(tensors=numbers, verify=options.verify) as data:
        if options.verify:
            # Of tensors that are shared out, no more than this rank has of them.
            is_partly = (strict and not rename) or bool(boxed)
            data.check_pieces(on_host if is_partly else None)
        boxed.place(placing)
        placing.run(data)
        boxed.fill(data)
        return filling.fill(put), filling.report


def saved_tree(checkpoint: Checkpoint, part: str | None) -> Any:
    """The tree, with references for its tensors, or one part of it; raises StateMismatch."""
    record = checkpoint.record
    saved = tree.decode(record.tree, len(record.names))
    if part is None:
        return saved
    parts = {names.key_text(key): key for key in saved} if isinstance(saved, dict) else {}
    if part not in parts:
        there = ", ".join(map(repr, parts)) or "none"
        raise StateMismatch(f"{checkpoint.ref} has no part {part!r:.80}; its parts are {there}")
    return saved[parts[part]]

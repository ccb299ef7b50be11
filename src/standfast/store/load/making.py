"""The tensors of a state: made on the host or on devices, or those of a program, filled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from standfast.store.load.boxed import Boxed
from standfast.store.load.casting import cast_arrays, place_of
from standfast.store.load.filling import spec_of
from standfast.store.load.placing import Placing, can_leave_host
from standfast.store.load.reading import Data
from standfast.store.schema.record import Record
from standfast.store.tree import tree
from standfast.store.tree.tree import Path, Ref
from standfast.tensors import TensorSpec, framework, tensor_of, why_not_fillable
from standfast.tensors.cast import cast_spec
from standfast.tensors.devices import Device
from standfast.tensors.frameworks import device_of, shards_of

Making = Callable[[int], Any]
"""Gives the tensor of a number."""


def tensors_in(record: Record, data: Data) -> Making:
    """The tensor of each number, made once: those that were one object before are one again."""
    arrays = data.arrays()
    return _once(record, lambda n: tensor_of(arrays[n], record.specs[n], record.kinds[n]))


def placed_tensors_in(
    record: Record,
    data: Data,
    tensors: Iterable[int],
    homes: Mapping[int, Device],
    cast: str | None = None,
    placing: Placing | None = None,
) -> Making:
    """The same of these tensors, cast; some are made on a device. What is placed besides, is."""
    placing = placing or Placing(record, cast)
    on_host = [tensor for tensor in tensors if tensor not in homes]
    arrays = cast_arrays(record, data.arrays(tensors=on_host), on_host, cast)
    on_device: dict[int, Any] = {}
    for device in dict.fromkeys(homes.values()):
        on_device |= placing.make(device, [n for n, home in homes.items() if home is device])
    placing.run(data)

    def make(number: int) -> Any:
        kind = record.kinds[number]
        if number in on_device:
            return framework(kind.partition(":")[0]).as_kind(on_device[number], kind)
        return tensor_of(arrays[number], cast_spec(record.specs[number], cast), kind)

    return _once(record, make, homes)


def _once(record: Record, make: Making, homes: Mapping[int, Device] | None = None) -> Making:
    made: dict[Any, Any] = {}

    def tensor(number: int) -> Any:
        home = homes.get(number) if homes else None
        place = place_of(record, number) if record.views else number
        key = record.specs[number], record.kinds[number], place, home
        if key not in made:
            made[key] = make(number)
        return made[key]

    return tensor


def state_with(
    record: Record,
    saved: Any,
    data: Data,
    own: Callable[[Path], Any],
    home: Callable[[Path], Device | None],
    blank: Callable[[Path, TensorSpec], Any] = lambda path, spec: None,
) -> Any:
    """The state, in which the tensors that the caller has on devices, or shared out, are filled.

    `own` gives what it has at a path, if anything, `home` says where to make what it has not, and
    `blank` makes what it would have shared out.
    """
    placing = Placing(record)
    boxed = Boxed(record)
    found: list[Any] = []
    homes: dict[int, Device] = {}
    for path, number in references(saved):
        mine = own(path)
        if mine is None:
            mine = blank(path, record.specs[number])
        shards = shards_of(mine)
        if shards is not None and shards.spec == record.specs[number]:
            boxed.add(shards, number)
            found.append(mine)
            continue
        device = _fillable_on(mine, record.specs[number])
        found.append(mine if device else None)
        if device:
            placing.fill(device, mine, number)
        elif mine is None and can_leave_host(record.kinds[number]) and (new := home(path)):
            homes[number] = new
    numbers = [n for (_, n), mine in zip(references(saved), found, strict=True) if mine is None]
    boxed.place(placing)
    tensor = placed_tensors_in(record, data, numbers, homes, placing=placing)
    boxed.fill(data)
    answers = iter(found)

    def leaf(number: int) -> Any:
        mine = next(answers)
        return tensor(number) if mine is None else mine

    return tree.build(saved, leaf)


def _fillable_on(leaf: Any, spec: TensorSpec) -> Device | None:
    """The device of a tensor that can take the place of what was saved."""
    device = device_of(leaf)
    return device if device and spec_of(leaf) == spec and not why_not_fillable(leaf) else None


def references(saved: Any, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """The tensors of a decoded tree with their paths, in the order in which `build` asks."""
    if isinstance(saved, Ref):
        yield path, saved.tensor
    elif isinstance(saved, dict):
        attributes = vars(saved).items() if type(saved) is OrderedDict else ()
        for key, member in (*saved.items(), *attributes):
            yield from references(member, (*path, key))
    elif isinstance(saved, list | tuple):
        for position, member in enumerate(saved):
            yield from references(member, (*path, position))

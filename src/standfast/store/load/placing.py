"""Which bytes of a checkpoint go to which tensor on which device.

A tensor that takes all bytes of a stored one, in their order, is streamed into. All others get
theirs on the device, from one that was streamed into or from a temporary one: views, tensors that
are not in C order, and those that share memory in another way than was saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from standfast.errors import StandfastError
from standfast.store.load.casting import form_of, grouped, place_of
from standfast.store.load.landing import RAW, Landing, divided, landing_of, seen_in
from standfast.store.load.reading import Arrival, Data
from standfast.store.schema.record import Record
from standfast.tensors import fill
from standfast.tensors.cast import cast_array, cast_spec
from standfast.tensors.devices import Device
from standfast.tensors.frameworks import copy_on_device, framework, plain

_TEMPORARY: Final = 128 << 20
"""Temporary tensors take no more of a device at once, but for a single one that is larger."""
_OF_THE_HOST: Final = frozenset({"numpy", "packed"})
"""The kinds of tensors that no framework has."""


def homes_of(record: Record, tensors: Iterable[int], device: Any) -> dict[int, Device]:
    """The device of this name for each tensor that can lie there; raises BadOption."""
    name = plain(device) or device
    found: dict[str, Device | None] = {}
    homes: dict[int, Device] = {}
    for tensor in tensors if name is not None else ():
        kind = record.kinds[tensor]
        if kind not in found:
            adapter = framework(kind.partition(":")[0]) if can_leave_host(kind) else None
            found[kind] = adapter.device(name) if adapter else None
        if home := found[kind]:
            homes[tensor] = home
    return homes


def can_leave_host(kind: str) -> bool:
    """Whether tensors of a kind are those of a framework, which may have devices."""
    return kind not in _OF_THE_HOST


class Placing:
    """What of a checkpoint goes to devices: given tensors are filled, others are made there."""

    def __init__(self, record: Record, cast: str | None = None) -> None:
        self._record = record
        self._cast = cast
        self._arrivals: dict[Device, list[Arrival]] = {}
        self._landings: dict[Device, list[Landing]] = {}
        self._filled: dict[str, None] = {}
        """The names of the devices that given tensors lie on."""

    def fill(self, device: Device, target: Any, tensor: int) -> None:
        """Have a given tensor filled with a saved one; it has the dtype that the cast gives."""
        self._land(device, target, tensor)
        self._filled[device.name] = None

    def fill_box(self, device: Device, target: Any, tensor: int, box: int, dtype: str) -> None:
        """Have a tensor in C order filled with one of the boxes that a saved one lies in."""
        arrival = Arrival(tensor, target, dtype, box)
        self._arrivals.setdefault(device, []).append(arrival)
        self._filled[device.name] = None

    def make(self, device: Device, tensors: Iterable[int]) -> dict[int, Any]:
        """New tensors, by number; those that were tied are again, unless a cast parts them.

        They hold anything until `run`.
        """
        made: dict[int, Any] = {}
        for stored, members in grouped(self._record, tensors).items():
            form = form_of(self._record, stored, members, self._cast)
            if form is None:
                made |= {tensor: self._apart(device, tensor) for tensor in members}
                continue
            base = device.empty(form.after)
            dtype = form.before.dtype if form.is_cast else RAW
            self._arrivals.setdefault(device, []).append(Arrival(stored, base, dtype))
            for tensor in members:
                before, place = self._record.specs[tensor], place_of(self._record, tensor)
                after = cast_spec(before, self._cast)
                made[tensor] = base if tensor == stored else seen_in(base, place, before, after)
        return made

    def _apart(self, device: Device, tensor: int) -> Any:
        """A new tensor that shares memory with no other."""
        target = device.empty(cast_spec(self._record.specs[tensor], self._cast))
        self._land(device, target, tensor)
        return target

    def _land(self, device: Device, target: Any, tensor: int) -> None:
        landing = landing_of(self._record, target, tensor, self._cast)
        self._landings.setdefault(device, []).append(landing)

    def run(self, data: Data) -> None:
        """Bring all bytes to where they belong; whatever is raised tells of given tensors too."""
        try:
            for device in {**self._arrivals, **self._landings}:
                self._run_on(device, data)
        except StandfastError as error:
            if self._filled:
                _add(
                    error,
                    f"; the given tensors on {', '.join(self._filled)} may hold bytes of it "
                    "already: fill them from another checkpoint before they are used",
                )
            raise

    def _run_on(self, device: Device, data: Data) -> None:
        direct, others = divided(self._landings.get(device, []))
        first: dict[int, Landing] = {}
        for landing in direct:
            first.setdefault(landing.place.base, landing)
        arrivals = [landing.arrival() for landing in first.values()]
        data.stream(device, [*self._arrivals.get(device, []), *arrivals])
        tied = [landing for landing in direct if landing is not first[landing.place.base]]
        for batch in self._batches([*tied, *others], first):
            self._copy(device, data, batch, first)

    def _batches(
        self, landings: Iterable[Landing], first: Mapping[int, Landing]
    ) -> Iterator[list[Landing]]:
        """In their order, as many at a time as temporary tensors may take of the device."""
        batch: list[Landing] = []
        stored: set[int] = set()
        size = 0
        for landing in landings:
            if landing.place.base not in stored and _source(landing, first) is None:
                if batch and size + landing.stored.nbytes > _TEMPORARY:
                    yield batch
                    batch, stored, size = [], set(), 0
                stored.add(landing.place.base)
                size += landing.stored.nbytes
            batch.append(landing)
        if batch:
            yield batch

    def _copy(
        self, device: Device, data: Data, batch: Sequence[Landing], first: Mapping[int, Landing]
    ) -> None:
        """Fill tensors from those that were streamed into, or from temporary ones."""
        temporary = {
            landing.place.base: device.empty(landing.stored)
            for landing in batch
            if landing.is_regular and _source(landing, first) is None
        }
        data.stream(device, [Arrival(n, target, RAW) for n, target in temporary.items()])
        for landing in batch:
            whole = _source(landing, first)
            if not landing.is_regular:  # no device has such strides
                array = cast_array(data.array(landing.tensor), landing.before, self._cast)
                fill(landing.target, array, landing.after)
            elif whole is not None:
                copy_on_device(landing.target, landing.seen_in(whole, is_cast=True))
            else:
                raw = temporary[landing.place.base]
                copy_on_device(landing.target, landing.seen_in(raw, is_cast=False))


def _add(error: StandfastError, text: str) -> None:
    """Let the message of an error go on."""
    if isinstance(error, OSError):
        error.strerror = f"{error.strerror}{text}"
    else:
        error.args = (f"{error}{text}",)


def _source(landing: Landing, first: Mapping[int, Landing]) -> Any | None:
    """The target that was streamed into and has the bytes of this one too, if there is one."""
    whole = first.get(landing.place.base)
    return whole.target if whole is not None and landing.can_be_seen_in(whole) else None

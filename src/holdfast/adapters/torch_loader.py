"""A torch DataLoader that continues at the exact next batch, with the same random augmentation."""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from holdfast.errors import RefusedState, StateMismatch, shortened

_VERSION: Final = 1
"""Of the way from (seed, epoch, batch) to orders and random states: another one is refused."""

_ITS_OWN: Final = {"batch_sampler", "generator", "in_order"}
_FOR_WORKERS: Final = "timeout multiprocessing_context prefetch_factor persistent_workers".split()


class ResumableLoader:
    """A DataLoader over a map-style dataset that resumes in the middle of an epoch, bit for bit.

    `for batch in loader` hands out the rest of the current epoch; the next `for` is the next epoch.
    After a `break`, too, the next `for` begins the next epoch: only a restored position is
    continued. The order of the samples, and all that python's `random`, `numpy.random` and torch's
    CPU generator give inside the dataset and `collate_fn`, follow from (seed, epoch, batch) alone:
    not from `num_workers`, which may change from one resume to the next. The random states of the
    program itself are neither drawn from nor changed.
    `options` are torch's own, such as pin_memory and persistent_workers; those that are for workers
    alone count for nothing where there are none.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        num_workers: int = 0,
        drop_last: bool = False,
        sampler: Sampler[Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        _refuse_arguments(dataset, sampler, shuffle, batch_size, options)
        self.dataset = dataset
        self.batch_size = operator.index(batch_size)
        self._order = _Order(
            length=len(dataset if sampler is None else sampler),  # type: ignore[arg-type]
            batch_size=self.batch_size,
            seed=operator.index(seed),
            shuffle=bool(shuffle),
            drop_last=bool(drop_last),
            sampler=sampler,
        )
        self._loader: DataLoader[Any] = DataLoader(
            _SeededBatches(dataset, collate_fn or default_collate, self._order.seed),
            batch_size=None,  # to torch, one of our batches is one sample
            sampler=self._order,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            **{name: options[name] for name in options if num_workers or name not in _FOR_WORKERS},
        )
        self._restored = False
        self._turn = object()

    @property
    def epoch(self) -> int:
        """The number, from 0, of the epoch in progress, or of the next one: so many are over."""
        return self._order.epoch

    @property
    def batch(self) -> int:
        """How many batches of the epoch were handed out; those prefetched do not count."""
        return self._order.batch

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch is in progress: from its first batch until its iterator has ended."""
        return self.batch > 0

    def __len__(self) -> int:
        """The number of batches of a whole epoch."""
        return len(self._order)

    def __iter__(self) -> Iterator[Any]:
        """The rest of a restored epoch, else a whole one; which, is decided at its first batch.

        One iterator at a time: after a newer one, or a restore, an older one raises StateMismatch.
        """
        if self.in_epoch and not self._restored:
            self._move(self.epoch + 1, 0)
        return self._one_epoch()

    def forever(self) -> Iterator[Any]:
        """All batches to come, over all epochs, each from wherever the loader then stands.

        It may be made before the state is restored, and follows a restore at any time.
        """
        while len(self):
            yield from self._rest_of_epoch()

    def state_dict(self) -> dict[str, Any]:
        """The position, by the batches handed out, and all that the order of samples depends on."""
        return {"epoch": self.epoch, "batch": self.batch, **self._order.fixed()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` says; a loader over other data, or built otherwise, is refused."""
        _refuse_another(state, self._order.fixed(), len(self))
        self._move(state["epoch"], state["batch"])
        self._restored = True

    def _move(self, epoch: int, batch: int) -> None:
        self._order.epoch, self._order.batch = epoch, batch
        self._turn = object()  # iterators that run elsewhere see that it is theirs no longer

    def _one_epoch(self) -> Iterator[Any]:
        if not (yield from self._rest_of_epoch()):
            raise StateMismatch(
                "the loader was restored, or another iterator over it begun, since this one gave "
                "its last batch: take batches from the newest iterator only, or from forever()"
            )

    def _rest_of_epoch(self) -> Generator[Any, None, bool]:
        """Hand out batches up to the end of the epoch; False as soon as anything moved the loader.

        It runs from the first `next` on, and owns torch's iterator: workers end when it does.
        """
        turn = self._turn = object()
        self._restored = False
        to_come = range(self.batch, len(self))
        batches = self._begun() if to_come else iter(())
        for _ in to_come:
            yield self._hand_out(batches)  # in no variable, which would keep it until the next
            if self._turn is not turn:
                return False
        self._move(self.epoch + 1, 0)
        return True

    def _begun(self) -> Iterator[Any]:
        # Torch draws a seed for its workers, which must not come from the global generator.
        generator = torch.Generator(device=torch.get_default_device())
        generator.manual_seed(int.from_bytes(_digest(self._order.seed, self.epoch, "workers")[:8]))
        self._loader.generator = generator
        return iter(self._loader)

    def _hand_out(self, batches: Iterator[Any]) -> Any:
        batch = next(batches)
        self._order.batch += 1
        return batch


@dataclass
class _Order:
    """Where the loader stands; and, as torch's sampler, the batches that come from there on."""

    length: int
    batch_size: int
    seed: int
    shuffle: bool
    drop_last: bool
    sampler: Sampler[Any] | None
    epoch: int = 0
    batch: int = 0

    def __len__(self) -> int:
        whole, rest = divmod(self.length, self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[tuple[int, int, list[Any]]]:
        epoch, samples = self.epoch, self._samples()
        for number in range(self.batch, len(self)):
            indices = samples[number * self.batch_size : (number + 1) * self.batch_size]
            yield epoch, number, indices.tolist() if self.shuffle else list(indices)

    def fixed(self) -> dict[str, Any]:
        """All that must be the same for a position to mean the same."""
        return {
            "version": _VERSION,
            "seed": self.seed,
            "length": self.length,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "sampler": None if self.sampler is None else type(self.sampler).__qualname__,
        }

    def _samples(self) -> Any:
        if self.sampler is not None:
            self.sampler.set_epoch(self.epoch)  # type: ignore[attr-defined]
            return list(self.sampler)
        if not self.shuffle:
            return range(self.length)
        # NumPy promises that RandomState never changes, which neither torch.randperm nor NumPy's
        # newer Generator has behind it: an order must survive an upgrade between two resumes.
        seed = np.frombuffer(_digest(self.seed, self.epoch, "order"), "<u4")
        return np.random.RandomState(seed).permutation(self.length)


@dataclass(frozen=True)
class _SeededBatches(Dataset[Any]):
    """Whole batches, each fetched and collated under the random states that its number gives."""

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any]
    seed: int

    def __getitem__(self, key: tuple[int, int, list[Any]]) -> Any:
        epoch, number, indices = key
        with _random_states_of(_digest(self.seed, epoch, number)):
            fetch_all = getattr(self.dataset, "__getitems__", None)  # as torch's own fetcher does
            samples = fetch_all(indices) if fetch_all else [self.dataset[i] for i in indices]
            return self.collate(samples)


@contextmanager
def _random_states_of(digest: bytes) -> Iterator[None]:
    """Python's, NumPy's and torch's global random states from a digest; put back at the end."""
    before = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    try:
        random.seed(int.from_bytes(digest[:16], "little"))
        np.random.seed(np.frombuffer(digest[16:32], "<u4"))
        # torch.manual_seed would seed the accelerators too, on which the training draws.
        torch.default_generator.manual_seed(int.from_bytes(digest[32:40], "little"))
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def _digest(seed: int, epoch: int, part: int | str) -> bytes:
    return hashlib.sha512(f"holdfast.ResumableLoader {seed:x} {epoch:x} {part}".encode()).digest()


def _as_it_is(batch: Any) -> Any:
    return batch  # by name, so that it can be sent to a spawned worker


def _refuse_arguments(
    dataset: Any, sampler: Any, shuffle: bool, batch_size: int, options: Mapping[str, Any]
) -> None:
    if own := _ITS_OWN & options.keys():
        raise RefusedState(
            f"a ResumableLoader takes no {', '.join(sorted(own))}: its order follows from "
            "batch_size, shuffle and seed, or from a sampler; with a batch_sampler use torchdata's "
            "StatefulDataLoader, which a Checkpointer accepts too"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise RefusedState(
            f"a {type(dataset).__qualname__} cannot be continued without reading it again from its "
            "start: expected a map-style dataset, with __getitem__ and __len__; for an iterable "
            "one use torchdata's StatefulDataLoader, which a Checkpointer accepts too"
        )
    if sampler is not None and (shuffle or not callable(getattr(sampler, "set_epoch", None))):
        raise RefusedState(
            f"the order of a {type(sampler).__qualname__} cannot be had again after a restart: "
            "expected one with set_epoch, whose order follows from the epoch, such as "
            "DistributedSampler, and no shuffle beside it; or shuffle=True and a seed alone"
        )
    if batch_size is None or operator.index(batch_size) < 1:
        raise RefusedState(f"batch_size is {batch_size}: expected a whole number from 1")


def _refuse_another(state: Mapping[str, Any], fixed: Mapping[str, Any], most: int) -> None:
    """Refuse what was not saved by a loader with the same `fixed` fields and `most` batches."""
    fields = ("epoch", "batch", *fixed)
    if not isinstance(state, Mapping) or set(state) != set(fields):
        found = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateMismatch(
            f"a loader's state has the fields {', '.join(fields)}; found {shortened(found)}: "
            "is it the state of another object?"
        )
    different = [
        f"{name} {_shown(state[name])} instead of {_shown(value)}"
        for name, value in fixed.items()
        if type(state[name]) is not type(value) or state[name] != value
    ]
    if different:
        raise StateMismatch(
            f"the state is of a loader with {', '.join(different)}: its position means nothing "
            "here; build the loader as it was, or begin a new run"
        )
    epoch, batch = state["epoch"], state["batch"]
    if type(epoch) is not int or type(batch) is not int or epoch < 0 or not 0 <= batch <= most:
        raise StateMismatch(
            f"a loader's state says epoch {_shown(epoch)}, batch {_shown(batch)}: expected whole "
            f"numbers from 0, and of an epoch's batches at most {most:,}"
        )


def _shown(value: Any) -> str:
    # Python refuses to write thousands of decimal digits.
    huge = type(value) is int and value.bit_length() > 64
    return shortened(hex(value) if huge else repr(value))

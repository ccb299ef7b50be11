"""A torch DataLoader that continues at the exact next batch, with the same random augmentation."""

from __future__ import annotations

import hashlib
import operator
import random
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from standfast.errors import BadOption, RefusedState, StateMismatch
from standfast.torch.loader_states import batches_in, counted, position_in, shown

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

    Of several ranks each gets its part of every batch, `batch_size` samples; all hand out equally
    many batches. The position is in samples over all ranks, and the same on each: it may be
    restored on another number of ranks, and with another batch_size. `ranks` is (rank, size), or
    anything with a rank and a size, such as a communicator or a process group; None asks
    torch.distributed, or mpi4py; (0, 1) is alone.

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
        ranks: Any = None,
        **options: Any,
    ) -> None:
        _refuse_arguments(dataset, sampler, shuffle, batch_size, options)
        rank, size = _rank_and_size(ranks, sampler)
        self.dataset = dataset
        self.batch_size = operator.index(batch_size)
        self._order = _Order(
            length=len(dataset if sampler is None else sampler),  # type: ignore[arg-type]
            batch_size=self.batch_size,
            seed=operator.index(seed),
            shuffle=bool(shuffle),
            drop_last=bool(drop_last),
            sampler=sampler,
            rank=rank,
            ranks=size,
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
        """How many batches of the epoch were handed out; those prefetched do not count.

        More exactly, how many of `len(loader)` are not to come any more: where the number of ranks
        or the batch size has changed within the epoch, those before were of another size.
        """
        return len(self) - self._order.to_come()

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch is in progress: from its first batch until its iterator has ended."""
        return self._order.position > 0

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
        """The position, by the batches handed out, and all that the order of samples depends on.

        `batch_size` is that of all ranks together, and 1 where the position lies between two such
        batches. The state is equal on all ranks that have handed out equally many.
        """
        return {"epoch": self.epoch, **self._order.counted(), **self._order.fixed()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` says; a loader over other data, or of another order, is refused.

        It may have been saved by another number of ranks, and with another batch_size.
        """
        self._move(*position_in(state, self._order.fixed()))
        self._restored = True

    def _move(self, epoch: int, position: int) -> None:
        self._order.epoch, self._order.position = epoch, position
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
        to_come = self._order.to_come()
        batches = self._begun() if to_come else iter(())
        for _ in range(to_come):
            yield self._hand_out(batches)  # in no variable, which would keep it until the next
            if self._turn is not turn:
                return False
        self._move(self.epoch + 1, 0)
        return True

    def _begun(self) -> Iterator[Any]:
        # Torch draws a seed for its workers, which must not come from the global generator.
        generator = torch.Generator(device=torch.get_default_device())
        part = "workers" if self._order.ranks == 1 else f"workers {self._order.rank}"
        generator.manual_seed(int.from_bytes(_digest(self._order.seed, self.epoch, part)[:8]))
        self._loader.generator = generator
        return iter(self._loader)

    def _hand_out(self, batches: Iterator[Any]) -> Any:
        batch = next(batches)
        self._order.advance()
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
    rank: int
    ranks: int
    epoch: int = 0
    position: int = 0
    """How many samples of the epoch were handed out, over all ranks."""

    @property
    def together(self) -> int:
        """How many samples all ranks have in a batch."""
        return self.batch_size * self.ranks

    def __len__(self) -> int:
        return batches_in(self.length, self.together, self.drop_last)

    def to_come(self) -> int:
        """How many batches are left of the epoch."""
        return batches_in(self.length - self.position, self.together, self.drop_last)

    def advance(self) -> None:
        """A batch was handed out."""
        self.position = min(self.position + self.together, self.length)

    def __iter__(self) -> Iterator[tuple[int, int | str, list[Any]]]:
        epoch, position, samples = self.epoch, self.position, self._samples()
        for number in range(self.to_come()):
            part, places = self._mine(position + number * self.together)
            indices = samples[places].tolist() if self.shuffle else [samples[p] for p in places]
            yield epoch, part, indices

    def _mine(self, position: int) -> tuple[int | str, list[int]]:
        """What seeds this rank's part of the batch at a position, and the places of its samples.

        All ranks get equally many. Where the last batch has not enough for that, the epoch's first
        samples follow its last ones, fewer than there are ranks.
        """
        count = -(-min(self.together, self.length - position) // self.ranks)
        first = position + self.rank * count
        alone = self.ranks == 1 and first % self.batch_size == 0
        part = first // self.batch_size if alone else f"sample {first}"
        return part, [place % self.length for place in range(first, first + count)]

    def counted(self) -> dict[str, int]:
        """The position, as the state has it."""
        return counted(self.position, self.together, self.length, self.drop_last)

    def fixed(self) -> dict[str, Any]:
        """All that must be the same for a position to mean the same."""
        return {
            "version": _VERSION,
            "seed": self.seed,
            "length": self.length,
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
    """Whole batches, each fetched and collated under random states of its own."""

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any]
    seed: int

    def __getitem__(self, key: tuple[int, int | str, list[Any]]) -> Any:
        epoch, part, indices = key
        with _random_states_of(_digest(self.seed, epoch, part)):
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
    return hashlib.sha512(f"standfast.ResumableLoader {seed:x} {epoch:x} {part}".encode()).digest()


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


def _rank_and_size(ranks: Any, sampler: Any) -> tuple[int, int]:
    """Which of how many ranks this one is."""
    if ranks is None:
        return (0, 1) if sampler is not None else _ranks_of_program()  # a sampler has its own part
    try:
        rank, size = ranks if isinstance(ranks, tuple | list) else (ranks.rank, ranks.size)
        # Those of torch's process groups are methods.
        rank, size = (operator.index(n() if callable(n) else n) for n in (rank, size))
    except (AttributeError, TypeError, ValueError) as error:
        raise BadOption(
            f"ranks is {shown(ranks)}: expected a pair (rank, size), a communicator, a process "
            "group, or None"
        ) from error
    if not 0 <= rank < size:
        raise BadOption(f"there is no rank {rank} of {size}: expected one from 0 to below the size")
    if sampler is not None and size > 1:
        raise RefusedState(
            f"a {type(sampler).__qualname__} has chosen this rank's samples, and ranks would "
            "choose among them again: give only one of the two; without a sampler, a run can be "
            "resumed on another number of ranks"
        )
    return rank, size


def _ranks_of_program() -> tuple[int, int]:
    """Those of torch.distributed, or of MPI, if one of them was started with several."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()
        if size > 1:
            return distributed.get_rank(), size
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
    return 0, 1

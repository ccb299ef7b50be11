"""A loader that resumes at the exact next batch, whatever the number of workers."""

import itertools
import json
import multiprocessing
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)

from standfast.errors import BadOption, RefusedState, StateMismatch
from standfast.parallel import SingleRank
from standfast.torch.loader import ResumableLoader
from tests.kit.cases import kept

# Torch warns of more workers than there are cores, which is nothing to these tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Augmented(Dataset[torch.Tensor]):
    """Each sample draws from all three global generators."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.fetched.append(index)
        drawn = [random.gauss(0, 1), np.random.normal(), torch.randn((), dtype=torch.float64)]
        return torch.tensor([index, *drawn], dtype=torch.float64)


class Plain(Dataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Failing(Plain):
    def __getitem__(self, index: int) -> int:
        random.random()
        if index == 4:
            raise LookupError("sample 4 is broken")
        return index


class Drawn(Dataset[Any]):
    """Each sample is its index, and a number from each of the three global generators."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        numbers = np.random.randint(1 << 30), int(torch.randint(1 << 30, ()))
        return np.array([index, random.getrandbits(30), *numbers])


class ByBatch(Plain):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.tensor([index, len(indices)]) for index in indices]


class Seeds(Plain):
    def __getitem__(self, index: int) -> int:
        return get_worker_info().seed  # type: ignore[union-attr]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def with_noise(samples: list[torch.Tensor]) -> torch.Tensor:
    drawn = [random.random(), np.random.random(), torch.rand((), dtype=torch.float64)]
    return torch.cat([torch.stack(samples), torch.tensor([[0, *drawn]], dtype=torch.float64)])


def _augmented(length: int = 11, batch_size: int = 3, **options: Any) -> ResumableLoader:
    options = {"shuffle": True, "seed": 7, "collate_fn": with_noise, **options}
    return ResumableLoader(Augmented(length), batch_size, **options)


def _plain(length: int = 10, batch_size: int = 2, **options: Any) -> ResumableLoader:
    return ResumableLoader(Plain(length), batch_size, **options)


def _bytes(batches: Any) -> list[bytes]:
    return [batch.numpy().tobytes() for batch in batches]


def _lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def _global_states() -> list[bytes]:
    numpy_state = np.random.get_state(legacy=False)
    return [
        repr(random.getstate()).encode(),
        repr((numpy_state, numpy_state["state"]["key"].tobytes())).encode(),
        torch.get_rng_state().numpy().tobytes(),
    ]


def _workers() -> list[Any]:
    return multiprocessing.active_children()


@pytest.mark.parametrize("workers", kept([1, 2, 3], 2))
def test_the_number_of_workers_changes_no_byte(workers):
    alone, helped = _augmented(), _augmented(num_workers=workers)
    for _ in range(2):
        assert _bytes(helped) == _bytes(alone)
    assert _workers() == []


@pytest.mark.long
def test_spawned_workers_give_the_same_batches():
    spawned = _augmented(num_workers=1, multiprocessing_context="spawn")
    assert _bytes(spawned) == _bytes(_augmented())


@settings(max_examples=20, deadline=None)
@given(
    length=st.integers(0, 20),
    batch_size=st.integers(1, 6),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    stop=st.integers(0, 30),
    workers=st.tuples(st.sampled_from([0, 0, 0, 2]), st.sampled_from([0, 0, 0, 1])),
)
def test_batches_before_and_after_a_stop_are_those_of_a_run_without(
    length, batch_size, drop_last, shuffle, stop, workers
):
    options = {"drop_last": drop_last, "shuffle": shuffle}
    whole = _augmented(length, batch_size, **options)
    expected = [*_bytes(whole), *_bytes(whole)]
    stop = min(stop, len(expected))

    first = _augmented(length, batch_size, num_workers=workers[0], **options)
    before = _bytes(itertools.islice(first.forever(), stop))
    second = _augmented(length, batch_size, num_workers=workers[1], **options)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    after = _bytes(itertools.islice(second.forever(), len(expected) - stop))

    assert before + after == expected


@pytest.mark.parametrize(("stop", "workers"), [(0, 0), (1, 0), (4, 0), (3, 2)])
def test_a_for_loop_yields_the_rest_of_a_restored_epoch(stop, workers):
    whole = _augmented()
    expected = [_bytes(whole), _bytes(whole)]
    first, second = _augmented(num_workers=workers), _augmented()
    before = _bytes(itertools.islice(first, stop))
    second.load_state_dict(first.state_dict())
    assert before + _bytes(second) == expected[0]
    assert _bytes(second) == expected[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_random_states_are_left_alone(workers):
    np.random.normal()  # so that NumPy keeps a second value for the next call
    before = _global_states()
    loader = _augmented(num_workers=workers, persistent_workers=True)
    assert len(_bytes(loader)) + len(_bytes(loader)) == 8
    next(loader.forever())
    with pytest.raises(LookupError):
        list(ResumableLoader(Failing(6), 2))
    assert _global_states() == before


def test_what_the_training_draws_changes_no_batch():
    expected, drawn = _bytes(_augmented()), []
    for batch in _augmented():
        drawn.append(batch.numpy().tobytes())
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(3)
    assert drawn == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_the_position_counts_what_was_handed_out(workers):
    loader = _plain(num_workers=workers, prefetch_factor=4)
    told = [(loader.state_dict()["epoch"], loader.state_dict()["batch"]) for _ in loader]
    assert told == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]
    assert (loader.epoch, loader.batch) == (1, 0)


def test_the_state_is_small_and_plain():
    loader = _plain(seed=5, shuffle=True)
    next(iter(loader))
    assert loader.state_dict() == {
        "epoch": 0,
        "batch": 1,
        "version": 1,
        "seed": 5,
        "length": 10,
        "batch_size": 2,
        "shuffle": True,
        "drop_last": False,
        "sampler": None,
    }


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_are_fetched_together_where_the_dataset_can(workers):
    loader = ResumableLoader(ByBatch(5), 3, num_workers=workers)
    assert _lists(loader) == [[[0, 3], [1, 3], [2, 3]], [[3, 2], [4, 2]]]


def test_options_for_workers_are_ignored_without_workers_and_unknown_ones_refused():
    options = {"prefetch_factor": 2, "persistent_workers": True, "timeout": 5}
    assert len(list(_plain(num_workers=0, multiprocessing_context="spawn", **options))) == 5
    with pytest.raises(TypeError, match="prefetch"):
        _plain(prefetch=2)


def test_skipped_samples_are_not_loaded():
    loader = _augmented(1000, 10)
    loader.load_state_dict({**loader.state_dict(), "batch": 99})
    assert len(list(loader)) == 1
    assert len(loader.dataset.fetched) == 10  # type: ignore[attr-defined]


def test_an_epoch_goes_on_until_its_iterator_has_ended():
    loader = _plain(4, 2)
    assert not loader.in_epoch
    batches = iter(loader)
    assert not loader.in_epoch
    assert [loader.in_epoch for _ in range(2) if next(batches) is not None] == [True, True]
    assert (loader.epoch, loader.batch, len(loader)) == (0, 2, 2)
    assert next(batches, None) is None
    assert (loader.epoch, loader.batch, loader.in_epoch) == (1, 0, False)


def test_a_position_after_the_last_batch_has_an_empty_rest():
    first, second = _plain(), _plain(num_workers=1)
    state = [first.state_dict() for _ in first][-1]
    second.load_state_dict(state)
    assert (second.in_epoch, second.batch) == (True, len(second))
    assert list(second) == []
    assert (second.epoch, second.in_epoch) == (1, False)
    assert len(list(second)) == 5


def test_after_a_break_the_next_for_begins_the_next_epoch():
    whole, loader = _plain(shuffle=True), _plain(shuffle=True)
    epochs = [_lists(whole), _lists(whole)]
    for _ in loader:
        break
    assert (loader.epoch, loader.batch, loader.in_epoch) == (0, 1, True)
    assert _lists(loader) == epochs[1]
    assert loader.epoch == 2
    loader = _plain()  # but one that was restored continues once
    loader.load_state_dict({**loader.state_dict(), "batch": 3})
    assert next(iter(loader)).tolist() == [6, 7]
    next(iter(loader))
    assert (loader.epoch, loader.batch) == (1, 1)


def test_only_the_newest_iterator_goes_on_and_follows_a_restore():
    loader = _plain()
    batches, later = iter(loader), iter(loader)
    next(batches)
    loader.load_state_dict({**loader.state_dict(), "batch": 3})
    with pytest.raises(StateMismatch):
        next(batches)
    assert _lists(later) == [[6, 7], [8, 9]]
    with pytest.raises(StateMismatch):
        list(zip(loader, loader, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_forever_goes_over_all_epochs_and_follows_a_restore_at_any_time(workers):
    whole = _plain(shuffle=True)
    expected = [*_lists(whole), *_lists(whole), *_lists(whole)]
    loader = _plain(shuffle=True, num_workers=workers, persistent_workers=True)
    batches = loader.forever()
    assert _lists(itertools.islice(batches, 11)) == expected[:11]
    assert (loader.epoch, loader.batch) == (2, 1)
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 4})
    assert _lists(itertools.islice(batches, 2)) == expected[4:6]
    assert (loader.epoch, loader.batch) == (1, 1)
    assert next(loader.forever()).tolist() == expected[6]
    assert list(_plain(0).forever()) == []


def test_each_epoch_has_every_sample_in_an_order_of_its_own():
    loader = _plain(50, 50, shuffle=True)
    epochs = [next(loader.forever()).tolist() for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(50))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    other_seed = next(iter(_plain(50, 50, shuffle=True, seed=1))).tolist()
    assert other_seed != epochs[0]


def test_orders_and_random_states_stay_as_they_are_from_release_to_release():
    loader = ResumableLoader(Drawn(10), 10, shuffle=True, seed=7)
    loader.load_state_dict({**loader.state_dict(), "epoch": 2})
    (batch,) = loader
    assert batch[:, 0].tolist() == [4, 7, 2, 6, 9, 8, 0, 5, 3, 1]
    assert batch[0, 1:].tolist() == [1057068871, 746332339, 290458684]


@pytest.mark.parametrize("drop_last", [False, True])
def test_without_randomness_it_gives_what_torch_gives(drop_last):
    dataset = [{"x": torch.full((2,), i), "y": str(i)} for i in range(7)]
    theirs = DataLoader(dataset, 3, drop_last=drop_last)  # type: ignore[arg-type]
    ours = ResumableLoader(dataset, 3, drop_last=drop_last)  # type: ignore[arg-type]
    assert len(ours) == len(theirs) == (2 if drop_last else 3)
    assert repr(list(ours)) == repr(list(theirs))


def test_persistent_workers_stay_and_follow_order_breaks_and_restores():
    whole, loader = _augmented(), _augmented(num_workers=2, persistent_workers=True)
    expected = [_bytes(whole) for _ in range(4)]
    assert _bytes(loader) == expected[0]
    pids = {worker.pid for worker in _workers()}
    assert _bytes(itertools.islice(loader, 2)) == expected[1][:2]
    assert _bytes(loader) == expected[2]
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "batch": 2})
    assert _bytes(loader) == expected[1][2:]
    assert {worker.pid for worker in _workers()} == pids
    del loader
    assert _workers() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_the_dataset_comes_through_and_counts_no_batch(workers):
    loader = ResumableLoader(Failing(8), 2, num_workers=workers)
    with pytest.raises(LookupError, match="4") as caught:
        list(loader)
    assert (loader.epoch, loader.batch) == (0, 2)
    # Torch's iterator hangs on the traceback, and takes seconds to end its workers in a collection.
    caught.value.__traceback__ = None
    del caught
    assert _workers() == []


def test_the_seeds_of_workers_follow_from_seed_and_epoch():
    first, second = (ResumableLoader(Seeds(2), 1, num_workers=2, seed=4) for _ in range(2))
    epochs = [_lists(first), _lists(first)]
    assert len({seed for (seed,) in itertools.chain(*epochs)}) == 4
    second.load_state_dict({**second.state_dict(), "epoch": 1})
    assert _lists(second) == epochs[1]


def test_a_sampler_that_follows_from_the_epoch_resumes_too():
    def sharded() -> ResumableLoader:
        dataset = Augmented(20)
        sampler = DistributedSampler(dataset, num_replicas=2, rank=1, shuffle=True, seed=3)
        return ResumableLoader(dataset, 4, sampler=sampler, collate_fn=with_noise)

    whole, first, second = sharded(), sharded(), sharded()
    expected = [*_bytes(whole), *_bytes(whole)]
    assert len(whole) == 3
    before = _bytes(itertools.islice(first.forever(), 4))
    second.load_state_dict(first.state_dict())
    assert before + _bytes(second) == expected
    epochs = [torch.cat([batch[:-1, 0] for batch in whole]).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1]
    with pytest.raises(StateMismatch, match="DistributedSampler"):
        ResumableLoader(Plain(10), 4).load_state_dict(first.state_dict())


OTHERS: list[tuple[str, Any]] = [
    *(("seed", 1), ("seed", False), ("seed", 1 << 50_000), ("seed", np.zeros(3))),
    *(("length", 11), ("shuffle", True), ("drop_last", True), ("sampler", "Mine"), ("version", 2)),
    *(("epoch", -1), ("epoch", -1 << 50_000), ("epoch", 1.0)),
    *(("batch", 6), ("batch", -1), ("batch", True)),
    *(("batch_size", 0), ("batch_size", -2), ("batch_size", 2.0)),
]


@pytest.mark.parametrize(("field", "value"), OTHERS, ids=range(len(OTHERS)))
def test_the_state_of_another_loader_is_refused(field, value):
    loader = _plain()
    with pytest.raises(StateMismatch, match=field):
        loader.load_state_dict({**loader.state_dict(), field: value})
    assert (loader.epoch, loader.batch) == (0, 0)


@pytest.mark.parametrize("state", [{}, {"epoch": 0, "batch": 1}, None, [1], {1: 2}])
def test_what_is_no_state_of_a_loader_is_refused(state):
    with pytest.raises(StateMismatch, match="batch_size"):
        _plain().load_state_dict(state)


BATCHES = BatchSampler(SequentialSampler(range(10)), 2, False)
CHOSEN: DistributedSampler[Any] = DistributedSampler(Plain(4), num_replicas=1, rank=0)
REFUSED: dict[str, Callable[[], Any]] = {
    "Stream": lambda: ResumableLoader(Stream()),
    "set": lambda: ResumableLoader({1, 2}),  # type: ignore[arg-type]
    "RandomSampler": lambda: _plain(sampler=RandomSampler(range(10))),
    "shuffle": lambda: _plain(sampler=CHOSEN, shuffle=True),
    "batch_sampler": lambda: _plain(batch_sampler=BATCHES),
    "generator": lambda: _plain(generator=torch.Generator()),
    "batch_size is 0": lambda: _plain(batch_size=0),
    "batch_size is None": lambda: _plain(batch_size=None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_resume_is_refused(name):
    with pytest.raises(RefusedState, match=name):
        REFUSED[name]()


# On several ranks: a position means the same on any number of them


def _loaders(length: int, size: int, batch_size: int, **options: Any) -> list[ResumableLoader]:
    """One loader for each rank."""
    options = {"shuffle": True, "seed": 3, **options}
    return [
        ResumableLoader(Drawn(length), batch_size, ranks=(rank, size), **options)
        for rank in range(size)
    ]


def _samples(batch: torch.Tensor) -> list[int]:
    return batch[:, 0].tolist()


def _steps(loaders: Sequence[ResumableLoader]) -> Iterator[list[torch.Tensor]]:
    """The batches of all ranks, step by step, to the end of the epoch; what must hold is checked.

    All ranks have a batch at each step, equally large ones, and the same state after it.
    """
    for batches in zip(*loaders, strict=True):
        assert len({len(batch) for batch in batches}) == 1
        states = [loader.state_dict() for loader in loaders]
        assert states == [states[0]] * len(loaders)
        yield list(batches)


def _together(batches: Sequence[torch.Tensor]) -> list[int]:
    return list(itertools.chain(*map(_samples, batches)))


def _at(position: int) -> dict[str, int]:
    """The fields of a state that say a position."""
    return {"batch": position, "batch_size": 1}


def _position(state: dict[str, Any]) -> int:
    return int(min(state["batch"] * state["batch_size"], state["length"]))


def _order(length: int, epoch: int = 0, **options: Any) -> list[int]:
    """The samples of an epoch, in the order in which a process alone has them."""
    (alone,) = _loaders(length, 1, 1, **options)
    alone.load_state_dict({**alone.state_dict(), "epoch": epoch})
    return [sample for batch in alone for sample in _samples(batch)]


@pytest.mark.parametrize("length", [128, 133, 159])
def test_the_same_global_batches_come_on_any_number_of_ranks(length):
    order = _order(length)
    for size, batch_size in [(1, 32), (2, 16), (4, 8), (8, 4), (32, 1)]:
        batches = [_together(step) for step in _steps(_loaders(length, size, batch_size))]
        whole = [order[at : at + 32] for at in range(0, length, 32)]
        padding = -len(whole[-1]) % size
        assert batches == [*whole[:-1], whole[-1] + order[:padding]]


@pytest.mark.parametrize(
    ("length", "size", "batch_size", "expected"),
    [
        (14, 2, 3, [[[0, 1, 2], [6, 7, 8], [12]], [[3, 4, 5], [9, 10, 11], [13]]]),
        (10, 4, 2, [[[0, 1], [8]], [[2, 3], [9]], [[4, 5], [0]], [[6, 7], [1]]]),
        (2, 5, 3, [[[0]], [[1]], [[0]], [[1]], [[0]]]),
        (0, 3, 2, [[], [], []]),
    ],
)
def test_each_rank_has_its_part_of_each_batch_and_the_first_samples_fill_up_the_last(
    length, size, batch_size, expected
):
    loaders = _loaders(length, size, batch_size, shuffle=False)
    assert [[_samples(batch) for batch in loader] for loader in loaders] == expected


PARTS = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 4))
"""So many ranks, of such a batch size, have so many steps."""


@given(length=st.integers(1, 60), parts=st.lists(PARTS, max_size=5), drop_last=st.booleans())
@example(length=50, parts=[(4, 3, 1), (2, 5, 1), (3, 2, 2)], drop_last=False)
@example(length=50, parts=[(4, 3, 1), (2, 5, 1), (3, 2, 2)], drop_last=True)
@settings(max_examples=40, deadline=None)
def test_a_run_on_changing_numbers_of_ranks_has_each_sample_once(length, parts, drop_last):
    order = _order(length, epoch=2)
    state = {**_loaders(length, 1, 1, drop_last=drop_last)[0].state_dict(), "epoch": 2}
    had: list[int] = []
    last = 1
    for size, batch_size, steps in [*parts, (3, 2, 1000)]:
        loaders = _loaders(length, size, batch_size, drop_last=drop_last)
        for loader in loaders:
            loader.load_state_dict(json.loads(json.dumps(state)))
        to_come = len(loaders[0]) - loaders[0].batch
        assert [loader.in_epoch for loader in loaders] == [len(had) > 0] * size
        taken = 0
        for step in itertools.islice(_steps(loaders), steps):
            taken, last = taken + 1, size
            had += _together(step)
            state = loaders[0].state_dict()
            assert len(loaders[0]) - loaders[0].batch == to_come - taken
            assert _position(state) == min(len(had), length)
        if taken < steps:
            assert taken == to_come
            break
    if drop_last:
        assert had == order[: len(had)]
        assert len(order) - len(had) < size * batch_size
    else:
        assert had == order + (order * last)[: len(had) - length]
        assert len(had) - length < last
    assert [(loader.epoch, loader.batch, loader.in_epoch) for loader in loaders] == [
        (3, 0, False)
    ] * size


def test_forever_goes_over_epochs_on_another_number_of_ranks():
    four = _loaders(12, 4, 1)
    for loader in four:
        next(loader.forever())
    two = _loaders(12, 2, 2)
    for loader in two:
        loader.load_state_dict(four[1].state_dict())
    steps = zip(*(loader.forever() for loader in two), strict=True)
    had = [sample for step in itertools.islice(steps, 5) for sample in _together(step)]
    assert had == _order(12)[4:] + _order(12, epoch=1)
    assert [(loader.epoch, loader.batch) for loader in two] == [(1, 3)] * 2


def test_batches_are_counted_in_those_of_the_loader_that_counts():
    (loader,) = _loaders(20, 1, 8)
    loader.load_state_dict({**loader.state_dict(), **_at(3)})
    assert (len(loader), loader.batch, loader.in_epoch) == (3, 0, True)
    assert [(loader.batch, _position(loader.state_dict())) for _ in loader] == [
        (1, 11),
        (2, 19),
        (3, 20),
    ]
    assert (loader.epoch, loader.batch, loader.in_epoch) == (1, 0, False)


def test_alone_is_alone_however_it_is_said():
    expected = [batch.tolist() for batch in ResumableLoader(Drawn(11), 3, True)]
    for ranks in [(0, 1), [0, 1], SingleRank(), SimpleNamespace(rank=0, size=1)]:
        loader = ResumableLoader(Drawn(11), 3, True, ranks=ranks)
        assert _lists(loader) == expected


def test_what_each_rank_draws_is_its_own_and_stays_so_from_release_to_release():
    first, second = (list(loader) for loader in _loaders(10, 2, 3, seed=7))
    assert _samples(first[0]) + _samples(second[0]) == [6, 9, 3, 7, 5, 8]
    assert second[0][0].tolist() == [7, 567548473, 644047933, 491403394]  # by "sample 3"
    assert second[1][0].tolist() == [0, 400985921, 440925335, 635439757]  # by "sample 8"
    drawn = [tuple(batch[0, 1:].tolist()) for loader in _loaders(64, 4, 4) for batch in loader]
    assert len(set(itertools.chain(*drawn))) == 48


def test_the_same_batch_size_draws_the_same_on_any_number_of_ranks_above_one():
    two, three = (
        [batch.tolist() for step in _steps(_loaders(40, size, 5)) for batch in step]
        for size in (2, 3)
    )
    assert two[:6] == three[:6]  # the rest is split otherwise


def test_alone_between_its_own_batches_it_draws_as_one_of_several_ranks():
    (alone,), (first, _) = _loaders(40, 1, 4), _loaders(40, 2, 4)
    for samples, equal in [(8, False), (6, True)]:
        for loader in (alone, first):
            loader.load_state_dict({**loader.state_dict(), **_at(samples)})
        ours, theirs = next(iter(alone)), next(iter(first))
        assert _samples(ours) == _samples(theirs)
        assert torch.equal(ours, theirs) is equal


def test_workers_change_no_byte_on_a_rank():
    plain, helped = (
        _loaders(23, 3, 2, num_workers=count, persistent_workers=True)[1] for count in (0, 2)
    )
    expected = [_lists(plain) for _ in range(2)]
    assert [_lists(helped) for _ in range(2)] == expected
    helped.load_state_dict({**helped.state_dict(), "epoch": 1, **_at(6)})
    assert _lists(helped) == expected[1][1:]


OLD = {"epoch": 1, "batch": 2, "version": 1, "seed": 3, "length": 23, "batch_size": 4} | {
    "shuffle": True,
    "drop_last": False,
    "sampler": None,
}
"""A state that was saved before loaders knew of ranks."""
"""A state that was saved before loaders knew of ranks."""


def test_an_old_state_continues_to_the_byte_and_on_several_ranks():
    (whole,), (loader,) = _loaders(23, 1, 4), _loaders(23, 1, 4)
    whole.load_state_dict({**whole.state_dict(), "epoch": 1})
    loader.load_state_dict(OLD)
    assert loader.state_dict() == OLD
    assert _lists(loader) == _lists(whole)[2:]
    loaders = _loaders(23, 3, 2)
    for each in loaders:
        each.load_state_dict(OLD)
    had = [sample for step in _steps(loaders) for sample in _together(step)]
    assert had == _order(23, epoch=1)[8:]


@pytest.mark.parametrize(
    ("batch", "samples", "said"),
    [(0, 0, (0, 6)), (3, 12, (2, 6)), (5, 20, (20, 1)), (6, 23, (4, 6))],
)
def test_a_state_says_its_position_in_batches_of_all_ranks_if_it_can(batch, samples, said):
    for loader in _loaders(23, 3, 2):
        loader.load_state_dict({**OLD, "batch": batch})
        state = loader.state_dict()
        assert (state["batch"], state["batch_size"]) == said
        assert _position(state) == samples
        assert {**state, "batch": batch, "batch_size": 4} == OLD | {"batch": batch}


def test_dropped_samples_are_no_batch():
    (loader,) = _loaders(23, 1, 4, drop_last=True)
    state = loader.state_dict()
    with pytest.raises(StateMismatch, match="6"):
        loader.load_state_dict({**state, "batch": 6})
    loader.load_state_dict({**state, "batch": 5})
    assert loader.batch == len(loader) == 5
    loader.load_state_dict({**state, **_at(23)})  # by a loader of another batch size
    assert loader.state_dict() == {**state, **_at(23)}
    assert (list(loader), loader.epoch) == ([], 1)


@pytest.mark.parametrize("ranks", [(2, 2), (-1, 2), (0, 0), (0, 1, 2), (0.0, 2), 4, "01"])
def test_ranks_that_cannot_be_are_refused(ranks):
    with pytest.raises(BadOption):
        ResumableLoader(Drawn(4), ranks=ranks)


def test_a_sampler_and_ranks_together_are_refused():
    sampler: DistributedSampler[Any] = DistributedSampler(Drawn(8), num_replicas=2, rank=1)
    with pytest.raises(RefusedState, match="DistributedSampler"):
        ResumableLoader(Drawn(8), sampler=sampler, ranks=(1, 2))
    assert len(ResumableLoader(Drawn(8), sampler=sampler, ranks=(0, 1))) == 4


@pytest.fixture
def distributed() -> Iterator[None]:
    """This process as rank 1 of 4 of torch.distributed; the others do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("distributed")
def test_the_ranks_of_torch_are_found():
    expected = _lists(_loaders(23, 4, 2)[1])
    group = torch.distributed.group.WORLD
    assert _lists(_loader(None)) == expected
    assert _lists(_loader(group)) == expected
    assert len(_loader((0, 1))) == 12
    sampler: DistributedSampler[Any] = DistributedSampler(Drawn(23))
    assert len(ResumableLoader(Drawn(23), 2, sampler=sampler)) == 3


def _loader(ranks: Any) -> ResumableLoader:
    return ResumableLoader(Drawn(23), 2, True, seed=3, ranks=ranks)


@pytest.mark.parametrize(
    ("begun", "ended", "size"), [(True, False, 3), (False, False, 1), (True, True, 1)]
)
def test_the_ranks_of_mpi_are_found(monkeypatch, begun, ended, size):
    world = SimpleNamespace(rank=2, size=3)
    mpi = SimpleNamespace(
        COMM_WORLD=world, Is_initialized=lambda: begun, Is_finalized=lambda: ended
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
    expected = _lists(_loaders(23, size, 2)[-1])
    assert _lists(_loader(None)) == expected
    assert _lists(_loader(world)) == [batch.tolist() for batch in _loaders(23, 3, 2)[2]]

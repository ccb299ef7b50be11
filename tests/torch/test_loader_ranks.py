"""A loader on several ranks: its position means the same on any number of them."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, DistributedSampler

from standfast.errors import BadOption, RefusedState, StateMismatch
from standfast.parallel import SingleRank
from standfast.torch.loader import ResumableLoader

# Torch warns of more workers than there are cores, which is nothing to these tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Drawn(Dataset[Any]):
    """Each sample is its index, and a number from each of the three global generators."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        numbers = np.random.randint(1 << 30), int(torch.randint(1 << 30, ()))
        return np.array([index, random.getrandbits(30), *numbers])


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
def test_the_same_global_batches_come_on_any_number_of_ranks(length: int) -> None:
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
    length: int, size: int, batch_size: int, expected: list[list[list[int]]]
) -> None:
    loaders = _loaders(length, size, batch_size, shuffle=False)
    assert [[_samples(batch) for batch in loader] for loader in loaders] == expected


PARTS = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 4))
"""So many ranks, of such a batch size, have so many steps."""


@given(length=st.integers(1, 60), parts=st.lists(PARTS, max_size=5), drop_last=st.booleans())
@example(length=50, parts=[(4, 3, 1), (2, 5, 1), (3, 2, 2)], drop_last=False)
@example(length=50, parts=[(4, 3, 1), (2, 5, 1), (3, 2, 2)], drop_last=True)
@settings(max_examples=40, deadline=None)
def test_a_run_on_changing_numbers_of_ranks_has_each_sample_once(
    length: int, parts: list[tuple[int, int, int]], drop_last: bool
) -> None:
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


def test_forever_goes_over_epochs_on_another_number_of_ranks() -> None:
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


def test_batches_are_counted_in_those_of_the_loader_that_counts() -> None:
    (loader,) = _loaders(20, 1, 8)
    loader.load_state_dict({**loader.state_dict(), **_at(3)})
    assert (len(loader), loader.batch, loader.in_epoch) == (3, 0, True)
    assert [(loader.batch, _position(loader.state_dict())) for _ in loader] == [
        (1, 11),
        (2, 19),
        (3, 20),
    ]
    assert (loader.epoch, loader.batch, loader.in_epoch) == (1, 0, False)


def test_alone_is_alone_however_it_is_said() -> None:
    expected = [batch.tolist() for batch in ResumableLoader(Drawn(11), 3, True)]
    for ranks in [(0, 1), [0, 1], SingleRank(), SimpleNamespace(rank=0, size=1)]:
        loader = ResumableLoader(Drawn(11), 3, True, ranks=ranks)
        assert [batch.tolist() for batch in loader] == expected


def test_what_each_rank_draws_is_its_own_and_stays_so_from_release_to_release() -> None:
    first, second = (list(loader) for loader in _loaders(10, 2, 3, seed=7))
    assert _samples(first[0]) + _samples(second[0]) == [6, 9, 3, 7, 5, 8]
    assert second[0][0].tolist() == [7, 567548473, 644047933, 491403394]  # by "sample 3"
    assert second[1][0].tolist() == [0, 400985921, 440925335, 635439757]  # by "sample 8"
    drawn = [tuple(batch[0, 1:].tolist()) for loader in _loaders(64, 4, 4) for batch in loader]
    assert len(set(itertools.chain(*drawn))) == 48


def test_the_same_batch_size_draws_the_same_on_any_number_of_ranks_above_one() -> None:
    two, three = (
        [batch.tolist() for step in _steps(_loaders(40, size, 5)) for batch in step]
        for size in (2, 3)
    )
    assert two[:6] == three[:6]  # the rest is split otherwise


def test_alone_between_its_own_batches_it_draws_as_one_of_several_ranks() -> None:
    (alone,), (first, _) = _loaders(40, 1, 4), _loaders(40, 2, 4)
    for samples, equal in [(8, False), (6, True)]:
        for loader in (alone, first):
            loader.load_state_dict({**loader.state_dict(), **_at(samples)})
        ours, theirs = next(iter(alone)), next(iter(first))
        assert _samples(ours) == _samples(theirs)
        assert torch.equal(ours, theirs) is equal


def test_workers_change_no_byte_on_a_rank() -> None:
    plain, helped = (
        _loaders(23, 3, 2, num_workers=count, persistent_workers=True)[1] for count in (0, 2)
    )
    expected = [[batch.tolist() for batch in plain] for _ in range(2)]
    assert [[batch.tolist() for batch in helped] for _ in range(2)] == expected
    helped.load_state_dict({**helped.state_dict(), "epoch": 1, **_at(6)})
    assert [batch.tolist() for batch in helped] == expected[1][1:]


OLD = {"epoch": 1, "batch": 2, "version": 1, "seed": 3, "length": 23, "batch_size": 4} | {
    "shuffle": True,
    "drop_last": False,
    "sampler": None,
}
"""A state that was saved before loaders knew of ranks."""
"""A state that was saved before loaders knew of ranks."""


def test_an_old_state_continues_to_the_byte_and_on_several_ranks() -> None:
    (whole,), (loader,) = _loaders(23, 1, 4), _loaders(23, 1, 4)
    whole.load_state_dict({**whole.state_dict(), "epoch": 1})
    loader.load_state_dict(OLD)
    assert loader.state_dict() == OLD
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in whole][2:]
    loaders = _loaders(23, 3, 2)
    for each in loaders:
        each.load_state_dict(OLD)
    had = [sample for step in _steps(loaders) for sample in _together(step)]
    assert had == _order(23, epoch=1)[8:]


@pytest.mark.parametrize(
    ("batch", "samples", "said"),
    [(0, 0, (0, 6)), (3, 12, (2, 6)), (5, 20, (20, 1)), (6, 23, (4, 6))],
)
def test_a_state_says_its_position_in_batches_of_all_ranks_if_it_can(
    batch: int, samples: int, said: tuple[int, int]
) -> None:
    for loader in _loaders(23, 3, 2):
        loader.load_state_dict({**OLD, "batch": batch})
        state = loader.state_dict()
        assert (state["batch"], state["batch_size"]) == said
        assert _position(state) == samples
        assert {**state, "batch": batch, "batch_size": 4} == OLD | {"batch": batch}


def test_dropped_samples_are_no_batch() -> None:
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
def test_ranks_that_cannot_be_are_refused(ranks: Any) -> None:
    with pytest.raises(BadOption):
        ResumableLoader(Drawn(4), ranks=ranks)


def test_a_sampler_and_ranks_together_are_refused() -> None:
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
def test_the_ranks_of_torch_are_found() -> None:
    expected = [batch.tolist() for batch in _loaders(23, 4, 2)[1]]
    group = torch.distributed.group.WORLD
    assert [batch.tolist() for batch in _loader(None)] == expected
    assert [batch.tolist() for batch in _loader(group)] == expected
    assert len(_loader((0, 1))) == 12
    sampler: DistributedSampler[Any] = DistributedSampler(Drawn(23))
    assert len(ResumableLoader(Drawn(23), 2, sampler=sampler)) == 3


def _loader(ranks: Any) -> ResumableLoader:
    return ResumableLoader(Drawn(23), 2, True, seed=3, ranks=ranks)


@pytest.mark.parametrize(
    ("begun", "ended", "size"), [(True, False, 3), (False, False, 1), (True, True, 1)]
)
def test_the_ranks_of_mpi_are_found(
    monkeypatch: pytest.MonkeyPatch, begun: bool, ended: bool, size: int
) -> None:
    world = SimpleNamespace(rank=2, size=3)
    mpi = SimpleNamespace(
        COMM_WORLD=world, Is_initialized=lambda: begun, Is_finalized=lambda: ended
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
    expected = [batch.tolist() for batch in _loaders(23, size, 2)[-1]]
    assert [batch.tolist() for batch in _loader(None)] == expected
    assert [batch.tolist() for batch in _loader(world)] == [
        batch.tolist() for batch in _loaders(23, 3, 2)[2]
    ]

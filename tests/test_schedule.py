"""When a checkpoint is due."""

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain, count, cycle, repeat
from typing import Any

import numpy as np
import pytest

from standfast.errors import BadSchedule
from standfast.schedule import Schedule, cadence


def test_a_schedule_is_due_every_interval_from_its_start():
    schedule = Schedule(10, start=5)
    assert [step for step in range(-20, 40) if schedule.should_checkpoint(step)] == [5, 15, 25, 35]
    assert [step for step in range(21) if Schedule(10).should_checkpoint(step)] == [0, 10, 20]
    schedule = Schedule(np.int64(10), np.uint8(5))  # type: ignore[arg-type]
    assert schedule == Schedule(10, 5)
    assert type(schedule.interval) is int
    assert schedule.should_checkpoint(np.int64(15)) is True  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("every", "due"),
    [
        (5, [5, 10, 15, 20]),
        (np.int32(10), [10, 20]),
        (Schedule(10, start=0), [0, 10, 20]),
        (Schedule(0), []),
        (Schedule(1, enabled=False), []),
        (None, []),
    ],
    ids=str,
)
def test_by_steps_nothing_but_the_step_counts(every, due):
    every = cadence(every)
    every.begin(10.0)
    assert [step for step in range(21) if every.is_due(step, 1e9 * step)] == due
    every.saved(2, 11.0, 0.5)
    assert [step for step in range(21) if every.is_due(step, 11.0)] == due


def test_a_cadence_says_whether_the_steps_alone_decide():
    steps = {every: cadence(every).by_steps for every in (100, Schedule(5), "1s", "1%")}
    assert [*steps.values()] == [True, True, False, False]


@pytest.mark.parametrize(
    "fields", [(-1,), (1.0,), ("10",), (None,), (True,), (10, 0.5), (10, False)], ids=repr
)
def test_a_schedule_refuses_what_is_no_number_of_steps(fields):
    with pytest.raises(BadSchedule):
        Schedule(*fields)


SECONDS = {
    "10min": 600.0,
    "90s": 90.0,
    "1.5h": 5400.0,
    "2d": 172800.0,
    "1h30min": 5400.0,
    "1h 30min": 5400.0,
    "500ms": 0.5,
    " 10 min ": 600.0,
}


@pytest.mark.parametrize("text", SECONDS)
def test_by_the_clock_it_is_due_when_the_time_has_passed_since_the_beginning(text):
    every, interval = cadence(text), SECONDS[text]
    every.begin(1000.0)
    assert not every.is_due(1, 1000.0 + interval * 0.999)
    assert every.is_due(2, 1000.0 + interval)


def test_by_the_clock_each_save_starts_the_time_anew():
    every = cadence(timedelta(minutes=1))
    assert not every.is_due(0, 5000.0), "the first question begins it if nothing else did"
    assert every.is_due(1, 5060.0)
    every.saved(1, 5061.0, 1.0)
    assert not every.is_due(2, 5120.9)
    assert every.is_due(3, 5121.0)


def test_by_budget_the_first_is_due_at_once_and_the_next_when_it_is_paid():
    every = cadence("1%")
    every.begin(0.0)
    assert every.is_due(1, 0.0)
    for step in range(1, 10):
        every.saved(step, float(step), 1.0)
    assert not every.is_due(10, 108.9)
    assert every.is_due(10, 109.0)
    every.saved(10, 10.0, 0.0)
    assert not every.is_due(11, 70.0), "a free save is not followed by another at once"
    first = cadence("1%")
    first.saved(1, 0.0, 40.0)  # which sets things up
    assert not first.is_due(2, 1499.0)
    assert first.is_due(3, 1500.0)


def _noisy() -> Iterator[float]:
    prices = random.Random(7)
    while True:
        yield prices.lognormvariate(-1, 1.5)


PRICES: dict[str, Callable[[], Iterator[float]]] = {
    "steady": lambda: repeat(0.5),
    "noisy": _noisy,
    "now and then dear": lambda: cycle([0.0, 0.0, 0.0, 5.0]),
    "growing": lambda: (0.1 * 1.02**n for n in count()),
    "after setting up": lambda: chain([20.0], repeat(0.5)),
}


@pytest.mark.parametrize("prices", PRICES)
@pytest.mark.parametrize("percent", [0.5, 3.0, 20.0])
def test_by_budget_a_long_run_keeps_its_share_and_uses_it(prices, percent):
    every, price = cadence(f"{percent}%"), PRICES[prices]()
    now, held, paid, saves = 0.0, 0.0, 0.0, 0
    every.begin(now)
    for step in range(1, 50_001):
        now += 0.3
        if every.is_due(step, now):
            paid, held = held, held + next(price)
            now += held - paid
            every.saved(step, now, held - paid)
            saves += 1
    assert saves > 10
    # The last save is paid for by time that had yet to come.
    assert paid / now <= percent / 100
    if (prices, percent) == ("steady", 3.0):
        assert held / now > 0.028


REFUSED: list[Any] = [
    *(0, -1, True, False, 10.0, float("nan"), b"10min", [], 1j),
    *("", "100", "10", "min", "10 minutes", "-10min", "1e3s", "10min!", "nan", "nans", "inf%"),
    *("0s", "0.0min", "0%", "0.0 %", "101%", "-3%", "3 % %", "%", "1h  30min", "٣s"),
    *("9" * 400 + "d", "9" * 400 + "%", "999999999999999d", "1ms" * 10_000 + "x"),
    *("\x1b[31m", "x" * 10_000, timedelta(0), timedelta(seconds=-1)),
]


@pytest.mark.parametrize("every", REFUSED, ids=lambda every: ascii(every)[:20])
def test_what_says_no_time_to_save_at_is_refused(every):
    with pytest.raises(BadSchedule) as caught:
        cadence(every)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 600


WORDS: dict[str, Any] = {
    "every 100 steps": 100,
    "every step": 1,
    "every 10 steps from step 5 on": Schedule(10, start=5),
    "every 7 steps": Schedule(7),
    "never": None,
    "every 10 min": "10min",
    "every 1 h 30 min": "1.5h",
    "every 1 d 500 ms": timedelta(days=1, milliseconds=500),
    "every 250 µs": "0.25ms",
    "3 % of the time": "3%",
    "0.5 % of the time": "0.5 %",
}


@pytest.mark.parametrize("words", WORDS)
def test_a_cadence_says_in_words_when_it_saves(words):
    assert str(cadence(WORDS[words])) == words

"""When to save: by steps, by the clock, or by a share of the time.

cadence(100)                             every 100 steps
cadence(Schedule(100, start=1000))       … from step 1000 on
cadence("10min")                         every 10 minutes, as datetime.timedelta(minutes=10)
cadence("3%")                            as often as costs 3 % of the time at most
cadence(None)                            never by itself
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

from standfast.errors import BadSchedule, printable, shortened

_UNITS: Final = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "min": timedelta(minutes=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|min|m|s|h|d) ?")
_DURATION: Final = re.compile(f"(?:{_AMOUNT.pattern})+")
_SHARE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%")

_ACCEPTED: Final = (
    "a number of steps (100), a Schedule, a time ('10min', '90s', '1h30min' or a timedelta), "
    "a share of the time ('3%'), or None for never"
)


@dataclass(frozen=True)
class Schedule:
    """Every `interval` steps, from step `start` on; never, if the interval is 0.

    >>> Schedule(100, start=50).should_checkpoint(250)
    True
    """

    interval: int
    start: int = 0
    enabled: bool = True

    def __post_init__(self) -> None:
        # NumPy's integers become Python's: the fields are compared, printed and saved.
        object.__setattr__(self, "interval", _integer(self.interval, "the interval"))
        object.__setattr__(self, "start", _integer(self.start, "the start"))
        if self.interval < 0:
            raise BadSchedule(
                f"the interval of a schedule is 0 (never) or more steps, not {self.interval}"
            )

    def should_checkpoint(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        if not self.enabled or not self.interval or step < self.start:
            return False
        return bool((step - self.start) % self.interval == 0)

    def __str__(self) -> str:
        if not self.enabled or not self.interval:
            return "never"
        steps = "every step" if self.interval == 1 else f"every {self.interval} steps"
        regular = self.start in (0, self.interval)
        return steps if regular else f"{steps} from step {self.start} on"


class Cadence(Protocol):
    """Says when a checkpoint is due; `now` is any clock in seconds that never goes back."""

    @property
    def by_steps(self) -> bool:
        """Whether the step alone decides, so that every run of a program saves at the same ones."""
        ...

    def begin(self, now: float) -> None:
        """The loop starts now."""
        ...

    def is_due(self, step: int, now: float) -> bool:
        """Whether a checkpoint is due after this step, which has ended now."""
        ...

    def saved(self, step: int, now: float, held: float) -> None:
        """A save, due or not, held the loop up for `held` seconds, until now."""
        ...


def cadence(every: Any) -> Cadence:
    """When to save, as a user says it; raises BadSchedule, which shows what is accepted."""
    if every is None:
        return _Never()
    if isinstance(every, Schedule):
        return _BySteps(every)
    if isinstance(every, timedelta):
        return _ByClock(_positive(every, every))
    if isinstance(every, str):
        return _from_text(every)
    try:
        interval = _integer(every, "the number of steps")
    except BadSchedule as error:
        raise _refused(every) from error
    if interval <= 0:
        raise BadSchedule(f"every={interval} says no time to save at: give {_ACCEPTED}")
    return _BySteps(Schedule(interval, start=interval))  # nothing has happened yet at step 0


def _integer(value: Any, name: str) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise BadSchedule(f"{name} is a whole number of steps, not the {_shown(value)}")


def _from_text(text: str) -> Cadence:
    if share := _SHARE.fullmatch(text.strip()):
        percent = float(share[1])
        if not 0 < percent <= 100:
            raise BadSchedule(
                f"a share of the time is more than 0 % and at most 100 %, not {_quoted(text)}"
            )
        return _ByBudget(percent)
    if not _DURATION.fullmatch(text.strip()):
        raise _refused(text)
    return _ByClock(_positive(duration(text), text))


def duration(text: str) -> timedelta:
    """A time as a user writes it: 90s, 10min, 1h30m; raises BadSchedule."""
    if not _DURATION.fullmatch(text.strip()):
        raise BadSchedule(
            f"{_quoted(text)} is not a time: give one such as '90s', '10min' or '1h30min'"
        )
    try:
        return sum((float(n) * _UNITS[u] for n, u in _AMOUNT.findall(text)), _ZERO)
    except OverflowError as error:
        raise BadSchedule(
            f"{_quoted(text)} is longer than any run: give a time such as '10min'"
        ) from error


_ZERO: Final = timedelta()


def _positive(interval: timedelta, given: object) -> timedelta:
    if interval <= _ZERO:
        raise BadSchedule(f"{_quoted(str(given))} is no time to wait for: give {_ACCEPTED}")
    return interval


def _refused(every: object) -> BadSchedule:
    return BadSchedule(f"every cannot be the {_shown(every)}: give {_ACCEPTED}")


def _shown(value: object) -> str:
    return f"{type(value).__name__} {printable(shortened(repr(value)))}"


def _quoted(text: str) -> str:
    return printable(shortened(repr(text)))


class _Never:
    """Only when asked."""

    by_steps: Final = True

    def begin(self, now: float) -> None:
        pass

    def is_due(self, step: int, now: float) -> bool:
        return False

    def saved(self, step: int, now: float, held: float) -> None:
        pass

    def __str__(self) -> str:
        return "never"


class _BySteps:
    """By the number of the step alone."""

    by_steps: Final = True

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def begin(self, now: float) -> None:
        pass

    def is_due(self, step: int, now: float) -> bool:
        return self._schedule.should_checkpoint(step)

    def saved(self, step: int, now: float, held: float) -> None:
        pass

    def __str__(self) -> str:
        return str(self._schedule)


class _ByClock:
    """When so much time has passed since the loop began, or since the last save."""

    by_steps: Final = False

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self._seconds = interval.total_seconds()
        self._since: float | None = None

    def begin(self, now: float) -> None:
        self._since = now

    def is_due(self, step: int, now: float) -> bool:
        if self._since is None:
            self._since = now
        return now - self._since >= self._seconds

    def saved(self, step: int, now: float, held: float) -> None:
        self._since = now

    def __str__(self) -> str:
        return f"every {_duration(self._interval)}"


class _ByBudget:
    """When the time since the last save has paid for it.

    After a save that held the loop up for h seconds, the next is due h / share seconds later. Thus
    each is paid for by the time that follows it, whatever the next one costs. Where the saves
    before were dearer, their mean is paid: a free save would otherwise be followed by another at
    the next step. The first save, which also sets things up, says little about the next: a quarter
    of it counts, and the rest is paid off by the turns after it, each half as long again.
    """

    by_steps: Final = False

    def __init__(self, percent: float) -> None:
        self._percent = percent
        self._share = percent / 100
        self._mean: float | None = None
        self._unpaid = 0.0
        self._next: float | None = None

    def begin(self, now: float) -> None:
        self._next = None  # the first is due at once: it tells the price

    def is_due(self, step: int, now: float) -> bool:
        return self._next is None or now >= self._next

    def saved(self, step: int, now: float, held: float) -> None:
        self._unpaid += held
        if self._mean is None:
            self._mean = held = held * _FIRST
        self._mean += (held - self._mean) * _WEIGHT
        price = max(held, self._mean)
        payment = min(max(price, self._unpaid), price * _INSTALMENT)
        self._unpaid = max(0.0, self._unpaid - payment)
        self._next = now + payment / self._share

    def __str__(self) -> str:
        return f"{self._percent:g} % of the time"


_FIRST: Final = 0.25
_WEIGHT: Final = 0.25
"""Of the newest price in the mean: about the last seven count."""
_INSTALMENT: Final = 1.5


def _duration(interval: timedelta) -> str:
    """10 min, 1 h 30 min, 500 ms."""
    parts = []
    for name, unit in _UNITS.items():
        count, interval = divmod(interval, unit)
        if count:
            parts.append(f"{count} {name}")
    if interval:
        parts.append(f"{interval.microseconds} µs")
    return " ".join(parts)

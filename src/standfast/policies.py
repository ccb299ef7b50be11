"""Which checkpoints of a run are kept: policies, each of which keeps some, put together by `|`.

>>> keep = KeepLast(3) | KeepBest(2, "val_loss") | KeepEvery(steps=10_000, without="optimizer")

A checkpoint is kept if any of them keeps it, and of it the parts that any of them keeps. What a
store never deletes, whatever the policies say, is the store's own business.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from standfast.errors import BadOption

Mode = Literal["min", "max"]

_UNITS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What policies look at of a checkpoint."""

    step: int
    time: float
    """When it was committed, in seconds; a clock that was set back counts as any other."""
    metrics: Mapping[str, Any]
    tagged: bool


Kept = Mapping[int, str]
"""The steps that a policy keeps, and for each one why."""


class Policy(msgspec.Struct, frozen=True, tag_field="policy", forbid_unknown_fields=True):
    """Keeps some checkpoints of a run, or all of their parts but some.

    Its `keeps` says which of all that there are, given in the order of their commits.
    """

    def __or__(self, other: Policy | Policies) -> Policies:
        return Policies((self,)) | other


class KeepLast(Policy, tag="last", frozen=True, omit_defaults=True):
    """Keeps the newest checkpoints."""

    n: int
    without: tuple[str, ...] | str = ()
    """Parts of the state that it does not keep, such as "optimizer"."""

    def __post_init__(self) -> None:
        _check_count(self.n, "KeepLast")
        _check_parts(self.without)

    def keeps(self, candidates: Sequence[Candidate]) -> Kept:
        """The last n."""
        newest = reversed(candidates[max(0, len(candidates) - self.n) :])
        return {each.step: f"{_ordinal(i)} newest" for i, each in enumerate(newest)}

    def __str__(self) -> str:
        return f"the last {self.n}" if self.n > 1 else "the last"


class KeepBest(Policy, tag="best", frozen=True, omit_defaults=True):
    """Keeps those with the best values of a metric; of two equal ones the earlier is better."""

    n: int = 1
    metric: str | None = None
    """Without one, a Checkpointer takes the metric that it monitors."""
    mode: Mode | None = None
    """Whether less is better or more; "min" if it is not said."""
    without: tuple[str, ...] | str = ()

    def __post_init__(self) -> None:
        _check_count(self.n, "KeepBest")
        _check_parts(self.without)
        if self.mode not in (None, "min", "max"):
            raise BadOption(f"KeepBest: the mode is 'min' or 'max', not {self.mode!r}")
        if self.metric is not None and not isinstance(self.metric, str):
            raise BadOption(f"KeepBest: the metric is a name, not a {type(self.metric).__name__}")

    def keeps(self, candidates: Sequence[Candidate]) -> Kept:
        """The best n of those that have the metric."""
        sign = -1 if self.mode == "max" else 1
        rated = [
            (sign * value, i)
            for i, each in enumerate(candidates)
            if (value := _number(each.metrics.get(str(self.metric)))) is not None
        ]
        return {
            candidates[i].step: f"{_ordinal(rank)} best by {self.metric}, {sign * value:.6g}"
            for rank, (value, i) in enumerate(sorted(rated)[: self.n])
        }

    def __str__(self) -> str:
        return f"the best {self.n if self.n > 1 else ''}".rstrip() + f" by {self.metric}"


class KeepEvery(Policy, tag="every", frozen=True, omit_defaults=True, kw_only=True):
    """Keeps one checkpoint every so many steps, or every so many seconds."""

    steps: int | None = None
    """Of those between two multiples of it, the first is kept, whether it is one or not."""
    seconds: float | None = None
    """The first is kept, and then the first that was saved so much later than the one before."""
    without: tuple[str, ...] | str = ()

    def __post_init__(self) -> None:
        _check_parts(self.without)
        if (self.steps is None) == (self.seconds is None):
            raise BadOption("KeepEvery takes steps=… or seconds=…, one of them")
        if self.steps is not None:
            _check_count(self.steps, "KeepEvery(steps=…)")
        elif not _is_number(self.seconds) or not 0 < float(self.seconds or 0) < math.inf:
            raise BadOption(f"KeepEvery(seconds=…) is a positive number, not {self.seconds!r}")

    def keeps(self, candidates: Sequence[Candidate]) -> Kept:
        """One of each stretch."""
        if self.steps is not None:
            return self._by_steps(candidates, self.steps)
        found: dict[int, str] = {}
        last = -math.inf
        for each in candidates:
            # A clock may have been set back: what is far from the last in any direction is new.
            if abs(each.time - last) >= float(self.seconds or 0):
                found[each.step], last = f"the first in {_seconds_text(self.seconds)}", each.time
        return found

    def _by_steps(self, candidates: Sequence[Candidate], steps: int) -> Kept:
        found: dict[int, str] = {}
        taken = set()
        for each in sorted(candidates, key=lambda candidate: candidate.step):
            stretch = each.step // steps
            if stretch not in taken and (stretch or not each.step):
                taken.add(stretch)
                found[each.step] = f"the first from step {stretch * steps:,} on"
        return found

    def __str__(self) -> str:
        if self.steps is not None:
            return f"one every {self.steps:,} steps"
        return f"one every {_seconds_text(self.seconds)}"


class KeepTagged(Policy, tag="tagged", frozen=True, omit_defaults=True, kw_only=True):
    """Keeps those with a tag, which a store never deletes anyway."""

    def keeps(self, candidates: Sequence[Candidate]) -> Kept:
        """All that have one."""
        return {each.step: "tagged" for each in candidates if each.tagged}

    def __str__(self) -> str:
        return "the tagged"


class KeepAll(Policy, tag="all", frozen=True, omit_defaults=True, kw_only=True):
    """Keeps all checkpoints, or all but some parts of them."""

    without: tuple[str, ...] | str = ()

    def __post_init__(self) -> None:
        _check_parts(self.without)

    def keeps(self, candidates: Sequence[Candidate]) -> Kept:
        """All."""
        return {each.step: "all are kept" for each in candidates}

    def __str__(self) -> str:
        return "all"


AnyPolicy = KeepLast | KeepBest | KeepEvery | KeepTagged | KeepAll


@dataclass(frozen=True, slots=True)
class Policies:
    """Several policies: what any of them keeps is kept."""

    policies: tuple[Any, ...]

    def __or__(self, other: Policy | Policies) -> Policies:
        more = other.policies if isinstance(other, Policies) else (other,)
        if not all(isinstance(policy, Policy) for policy in more):
            return NotImplemented
        return Policies((*self.policies, *(p for p in more if p not in self.policies)))

    def __ror__(self, other: Policy) -> Policies:
        return Policies((other,)) | self

    def __iter__(self) -> Iterator[Any]:
        return iter(self.policies)

    def __str__(self) -> str:
        return ", ".join(map(str, self.policies))


class Retention(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a run keeps: the policies, and how many bytes it may take."""

    keep: tuple[AnyPolicy, ...] = ()
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 0:
            raise BadOption(f"a budget is a number of bytes, not {self.budget}")

    def __str__(self) -> str:
        keep = ", ".join(_described(policy) for policy in self.keep)
        budget = f"at most {self.budget:,} bytes" if self.budget is not None else ""
        return "; ".join(filter(None, (keep, budget))) or "everything"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the policies of a run say about one checkpoint."""

    reasons: tuple[str, ...]
    """Why it is kept; none if it is not."""
    without: frozenset[str]
    """The parts that no policy keeps of it."""


def judge(policies: Iterable[AnyPolicy], candidates: Sequence[Candidate]) -> dict[int, Wish]:
    """What becomes of each checkpoint, by its step; without policies all are kept."""
    policies = list(policies) or [KeepAll()]
    reasons: dict[int, list[str]] = {each.step: [] for each in candidates}
    without: dict[int, frozenset[str]] = {}
    for policy in policies:
        left_out = frozenset(parts_of(policy))
        for step, why in policy.keeps(candidates).items():
            lacking = f", without {' and '.join(sorted(left_out))}" if left_out else ""
            reasons[step].append(why + lacking)
            without[step] = without.get(step, left_out) & left_out
    return {step: Wish(tuple(why), without.get(step, frozenset())) for step, why in reasons.items()}


def parts_of(policy: AnyPolicy) -> tuple[str, ...]:
    """The parts that a policy does not keep."""
    without: tuple[str, ...] | str = getattr(policy, "without", ())
    return (without,) if isinstance(without, str) else tuple(without)


def retention(
    keep: Policy | Policies | None,
    budget: int | float | str | None = None,
    monitor: str | None = None,
    mode: Mode = "min",
) -> Retention | None:
    """What a run keeps, as it was asked for; None if nothing was."""
    if keep is None and budget is None:
        return None
    if keep is not None and not isinstance(keep, Policy | Policies):
        raise BadOption(
            f"keep is a {type(keep).__name__}: give a policy, such as KeepLast(3), or several put "
            "together by |"
        )
    policies = (keep,) if isinstance(keep, Policy) else tuple(keep or ())
    return Retention(
        tuple(_completed(policy, monitor, mode) for policy in policies), as_bytes(budget)
    )


def _completed(policy: Any, monitor: str | None, mode: Mode) -> Any:
    if not isinstance(policy, KeepBest):
        return policy
    if policy.metric is None and monitor is None:
        raise BadOption("KeepBest: by which metric? Give it one, or the Checkpointer a `monitor`")
    if policy.metric in (None, monitor):
        return msgspec.structs.replace(policy, metric=monitor, mode=policy.mode or mode)
    return msgspec.structs.replace(policy, mode=policy.mode or "min")


def as_bytes(budget: int | float | str | None, what: str = "a budget") -> int | None:
    """A number of bytes: 5e10, "50GB", "1.5 TB", "512MiB"."""
    if budget is None:
        return None
    number: float | None = None
    if isinstance(budget, str):
        match = _SIZE.fullmatch(budget.strip())
        if match:
            base = 1024 if match[3] else 1000
            number = float(match[1]) * base ** _UNITS[match[2].lower()]
    elif _is_number(budget):
        number = budget
    if number is None or not 0 <= number < 1 << 62:
        raise BadOption(f"{what} is a number of bytes, or a text such as '50GB', not {budget!r}")
    return int(number)


def _described(policy: AnyPolicy) -> str:
    without = parts_of(policy)
    return f"{policy} (without {' and '.join(without)})" if without else str(policy)


def _number(value: Any) -> float | None:
    """A metric that can be compared with others; one that is no number cannot."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_count(n: Any, what: str) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise BadOption(f"{what} takes a whole number of at least 1, not {n!r}")


def _check_parts(without: Any) -> None:
    parts = (without,) if isinstance(without, str) else without
    if not isinstance(parts, tuple | list) or not all(isinstance(p, str) and p for p in parts):
        raise BadOption(f"without is the name of a part, or several in a tuple, not {without!r}")


def _ordinal(i: int) -> str:
    return {0: "the", 1: "the 2nd", 2: "the 3rd"}.get(i, f"the {i + 1}th")


def _seconds_text(seconds: float | None) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds and seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"

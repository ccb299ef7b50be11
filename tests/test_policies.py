"""Policies: what each keeps, how they go together, and what they refuse."""

import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import KeepAll, KeepBest, KeepEvery, KeepLast, KeepTagged
from standfast.errors import BadOption
from standfast.policies import Candidate, Retention, as_bytes, judge, retention


def candidates(*steps: int, **more: Any) -> list[Candidate]:
    """Checkpoints of these steps, a minute apart, the loss falling."""
    return [
        Candidate(step, 60.0 * i, {"loss": 1 / (i + 1)}, tagged=step in more.get("tagged", ()))
        for i, step in enumerate(steps)
    ]


def with_losses(*losses: float | None) -> list[Candidate]:
    return [
        Candidate(i + 1, float(i), {} if loss is None else {"loss": loss}, False)
        for i, loss in enumerate(losses)
    ]


def kept(policy: Any, found: list[Candidate]) -> list[int]:
    policies = policy if hasattr(policy, "__iter__") else [policy]
    return sorted(step for step, wish in judge(policies, found).items() if wish.reasons)


@pytest.mark.parametrize(
    ("policy", "steps", "expected"),
    [
        (KeepLast(2), (300, 100, 200), [100, 200]),  # in the order of their commits
        (KeepLast(9), (1, 2), [1, 2]),
        (KeepLast(1), (), []),
        (KeepEvery(steps=1000), (100, 900, 1000, 1100, 2000, 3700, 3800), [1000, 2000, 3700]),
        (KeepEvery(steps=10), (0, 5, 10), [0, 10]),
        (KeepTagged(), (1, 2, 3), [2]),
        (KeepAll(), (1, 2, 3), [1, 2, 3]),
        ([], (1, 2, 3), [1, 2, 3]),
    ],
    ids=str,
)
def test_what_a_policy_keeps(policy, steps, expected):
    assert kept(policy, candidates(*steps, tagged=(2,))) == expected


def test_the_best_are_kept_and_of_equal_ones_the_earlier():
    found = with_losses(0.5, 0.1, 0.3, 0.1, None, math.nan, 0.0)
    assert kept(KeepBest(1, "loss"), found) == [7]
    assert kept(KeepBest(2, "loss"), found) == [2, 7]
    assert kept(KeepBest(3, "loss"), found) == [2, 4, 7]
    assert kept(KeepBest(1, "loss", "max"), found) == [1]
    assert kept(KeepBest(9, "loss"), found) == [1, 2, 3, 4, 7]
    assert kept(KeepBest(1, "accuracy"), found) == []


def test_one_in_so_many_seconds_is_kept_also_over_a_clock_that_was_set_back():
    found = [Candidate(i, time, {}, False) for i, time in enumerate((0, 50, 100, 150, 210))]
    assert kept(KeepEvery(seconds=100), found) == [0, 2, 4]
    back = [Candidate(i, time, {}, False) for i, time in enumerate((1000, 0, 50, 100))]
    assert kept(KeepEvery(seconds=100), back) == [0, 1, 3]


def test_policies_go_together_and_each_says_why():
    keep = KeepLast(1) | KeepBest(1, "loss", "max") | (KeepTagged() | KeepEvery(steps=3))
    wishes = judge(keep, candidates(1, 2, 3, 4, 5, tagged=(2,)))
    assert {step: wish.reasons for step, wish in wishes.items()} == {
        1: ("the best by loss, 1",),
        2: ("tagged",),
        3: ("the first from step 3 on",),
        4: (),
        5: ("the newest",),
    }
    assert str(keep) == "the last, the best by loss, the tagged, one every 3 steps"
    assert len((KeepLast(1) | KeepLast(1)).policies) == 1


def test_a_part_is_kept_if_any_policy_keeps_it():
    keep = KeepLast(2) | KeepEvery(steps=2, without=("optimizer", "ema"))
    wishes = judge(keep | KeepAll(without="optimizer"), candidates(1, 2, 3, 4))
    left_out = {step: [*wish.without] for step, wish in wishes.items()}
    assert left_out == {1: ["optimizer"], 2: ["optimizer"], 3: [], 4: []}


POLICIES = {
    "last": lambda n: KeepLast(n),
    "best": lambda n: KeepBest(n, "loss", "max"),
    "steps": lambda n: KeepEvery(steps=17 * n),
    "seconds": lambda n: KeepEvery(seconds=100.0 * n),
}


@given(
    st.lists(st.integers(0, 400), unique=True, max_size=30),
    st.integers(1, 5),
    st.sampled_from([*POLICIES]),
)
def test_what_was_kept_is_kept_again_once_the_rest_is_gone(steps, n, kind):
    policy, found = POLICIES[kind](n), candidates(*steps)
    first = kept(policy, found)
    assert kept(policy, [each for each in found if each.step in first]) == first


def test_policies_are_stored_and_read_again():
    keep = KeepLast(3) | KeepBest(2, "loss", "max", without=("optimizer",)) | KeepEvery(steps=10)
    keep = keep | KeepEvery(seconds=2.5) | KeepTagged() | KeepAll(without="optimizer")
    wanted = retention(keep, "1.5 GB")
    text = msgspec.json.encode(wanted)
    assert text.startswith(b'{"keep":[{"policy":"last","n":3},{"policy":"best","n":2,')
    again = msgspec.json.decode(text, type=Retention)
    assert again == wanted
    assert again.budget == 1_500_000_000


@pytest.mark.parametrize(
    "policy",
    [
        *('"last","n":0', '"last","n":true', '"every"', '"every","steps":1,"seconds":1'),
        *('"never"', '"best","n":1,"mode":"most"', '"all","without":[""]', '"last","more":1'),
    ],
)
def test_what_was_stored_by_somebody_else_is_checked(policy):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"keep":[{{"policy":{policy}}}]}}', type=Retention)


WRONG = """
    KeepLast(0), KeepLast(True), KeepLast(2.5), KeepBest(-1, "loss"), KeepBest(1, "loss", "least"),
    KeepBest(1, 7), KeepEvery(), KeepEvery(steps=1, seconds=1), KeepEvery(seconds=-1),
    KeepEvery(seconds=math.inf), KeepAll(without=3), retention([KeepLast(1)]),
    retention(KeepBest(1)), retention(None, "50 pounds"), retention(None, -1),
    retention(None, math.nan),
"""


@pytest.mark.parametrize("call", re.findall(r"\w+\(.*?\)(?=,)", WRONG))
def test_what_makes_no_sense_is_refused(call):
    with pytest.raises(BadOption):
        eval(call)


def test_the_metric_that_is_monitored_stands_in_for_one_that_is_not_named():
    wanted = retention(KeepBest(2), monitor="accuracy", mode="max")
    assert wanted == Retention((KeepBest(2, "accuracy", "max"),))
    wanted = retention(KeepBest(2, "loss"), monitor="accuracy", mode="max")
    assert wanted == Retention((KeepBest(2, "loss", "min"),))
    assert retention(None) is None


def test_sizes_are_what_people_write():
    for text, number in [
        *(("50GB", 50 * 10**9), ("1.5 TB", 1_500_000_000_000), ("512MiB", 512 << 20)),
        *(("10k", 10_000), ("7", 7), ("7 B", 7), (5e9, 5_000_000_000), (0, 0)),
    ]:
        assert as_bytes(text) == number  # type: ignore[arg-type]

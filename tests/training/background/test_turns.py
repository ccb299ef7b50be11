"""Short turns at the interpreter: while they are needed, and not a moment longer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from standfast.training.background.turns import short_turns


@pytest.fixture(autouse=True)
def interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield before
    sys.setswitchinterval(before)


def test_turns_are_short_until_the_last_user_is_done() -> None:
    with short_turns():
        with short_turns():
            assert sys.getswitchinterval() < 0.001
        assert sys.getswitchinterval() < 0.001
    assert sys.getswitchinterval() == 0.004


def test_they_are_given_back_when_something_is_raised() -> None:
    with pytest.raises(ValueError), short_turns():
        raise ValueError
    assert sys.getswitchinterval() == 0.004


def test_what_the_program_chooses_meanwhile_stays() -> None:
    with short_turns():
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == 0.002


def test_turns_that_are_shorter_already_stay_so() -> None:
    sys.setswitchinterval(0.0001)
    chosen = sys.getswitchinterval()
    with short_turns():
        assert sys.getswitchinterval() == chosen
    assert sys.getswitchinterval() == chosen


def test_a_forked_child_has_turns_as_before() -> None:
    with short_turns():
        child = os.fork()
        if not child:
            os._exit(0 if sys.getswitchinterval() == 0.004 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sys.getswitchinterval() == 0.004

"""Which cases of a long proof `make test` runs."""

from collections.abc import Iterable
from typing import Any

import pytest


def kept(cases: Iterable[Any], *short: Any) -> list[Any]:
    """All cases, for `parametrize`; those that are not named here are marked `long`.

    >>> @pytest.mark.parametrize("change", kept(CHANGES, "save", "delete"))
    """
    found = list(cases)
    assert all(each in found for each in short), f"not among the cases: {short}"
    return [
        case if case in short else pytest.param(*_values(case), marks=pytest.mark.long)
        for case in found
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)

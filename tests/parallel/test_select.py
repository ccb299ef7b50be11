"""What may be left out, and where: a program that MPI has started must say which ranks it means."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from standfast.errors import BadOption
from standfast.parallel import SingleRank
from standfast.parallel.select import given_ranks


def stand_in_for_mpi(size: int, initialized: bool = True, finalized: bool = False) -> Any:
    world = SimpleNamespace(Get_size=lambda: size, Get_rank=lambda: 1)
    return SimpleNamespace(
        COMM_WORLD=world,
        Is_initialized=lambda: initialized,
        Is_finalized=lambda: finalized,
        Comm=type("Comm", (), {}),
    )


def test_ranks_that_mpi_has_started_must_be_given() -> None:
    with patch.dict(sys.modules, {"mpi4py.MPI": stand_in_for_mpi(3)}):
        with pytest.raises(BadOption, match="this is rank 1 of the 3 that MPI has started"):
            given_ranks(None)
        alone = SingleRank()
        assert given_ranks(alone) is alone


@pytest.mark.parametrize(
    "mpi",
    [
        stand_in_for_mpi(1),
        stand_in_for_mpi(3, initialized=False),
        stand_in_for_mpi(3, finalized=True),
    ],
    ids=["1", "not", "over"],
)
def test_a_process_alone_need_say_nothing(mpi: Any) -> None:
    with patch.dict(sys.modules, {"mpi4py.MPI": mpi}):
        assert given_ranks(None).size == 1

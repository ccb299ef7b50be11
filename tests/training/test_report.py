"""What people are told when a run goes on, and what to put into the state."""

from __future__ import annotations

import pytest
import torch

import standfast
from standfast.errors import RefusedState
from standfast.training.report import NO_LOADER, ResumeReport


@pytest.mark.parametrize(
    ("notes", "inexact", "ending"),
    [
        ([], [], "continues after step 3, exactly as it was"),
        ([NO_LOADER], [], "continues after step 3, exactly as it was, if its data is"),
        ([NO_LOADER], ["other ranks"], "continues after step 3, which may not be exact"),
    ],
)
def test_exactness_is_not_promised_of_data_that_nobody_keeps(
    notes: list[str], inexact: list[str], ending: str
) -> None:
    report = ResumeReport("4dd7ba7e", "gpt", 3, ref="gpt@3", notes=notes, inexact=inexact)
    assert str(report).splitlines()[0] == f"run gpt (4dd7ba7e) {ending}"


def test_who_gives_a_loader_of_torch_is_told_what_to_give() -> None:
    loader = torch.utils.data.DataLoader([1, 2, 3])
    with pytest.raises(RefusedState, match=r"make it a standfast\.ResumableLoader"):
        standfast.TrainingState(loader=loader)

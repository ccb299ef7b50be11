"""Every scheduler of torch goes on, from a checkpoint, with the rates it would have had."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import standfast
from tests.kit.cases import kept
from tests.kit.walk import checkpointer

STOP, STEPS = 7, 15

Make = Callable[[torch.optim.Optimizer], Any]


def _one_after_the_other(optimizer: torch.optim.Optimizer) -> Any:
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    second = lr_scheduler.MultiStepLR(optimizer, [2, 5], gamma=0.7)
    third = lr_scheduler.ExponentialLR(optimizer, 0.9)
    return lr_scheduler.SequentialLR(optimizer, [first, second, third], [4, 10])


def _one_in_the_other(optimizer: torch.optim.Optimizer) -> Any:
    milestones = lr_scheduler.MultiStepLR(optimizer, [3, 9], gamma=0.3)
    return lr_scheduler.ChainedScheduler(
        [milestones, lr_scheduler.ExponentialLR(optimizer, 0.97)], optimizer
    )


NESTED = "SequentialLR"
SETTINGS: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 3, "gamma": 0.7},
    "MultiStepLR": {"milestones": [4, 8, 8, 12], "gamma": 0.7},
    "ConstantLR": {"factor": 0.3, "total_iters": 9},
    "LinearLR": {"start_factor": 0.1, "total_iters": 11},
    "ExponentialLR": {"gamma": 0.93},
    "CosineAnnealingLR": {"T_max": 10, "eta_min": 1e-3},
    "CosineAnnealingWarmRestarts": {"T_0": 3, "T_mult": 2},
    "PolynomialLR": {"total_iters": 14, "power": 1.7},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": 4},
    "OneCycleLR": {"max_lr": 0.3, "total_steps": STEPS + 1},
    "ReduceLROnPlateau": {"patience": 1, "cooldown": 1, "factor": 0.7},
    "LambdaLR": {"lr_lambda": lambda epoch: 0.9**epoch},
    "MultiplicativeLR": {"lr_lambda": lambda epoch: 1 - 0.1 / epoch},
}
SCHEDULERS: dict[str, Make] = {
    **{name: partial(getattr(lr_scheduler, name), **given) for name, given in SETTINGS.items()},
    NESTED: _one_after_the_other,
    "ChainedScheduler": _one_in_the_other,
}


def _rates(store: Path, make: Make, steps: int) -> list[tuple[str, str]]:
    """The learning rate and momentum after every step that was left, to the last bit."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    state = standfast.TrainingState(model=model, optimizer=optimizer, scheduler=scheduler)
    rates = []
    with checkpointer(store, state, hp={"lr": 0.1}, every=1) as ckpt:
        for step in ckpt.steps(steps):
            optimizer.step()
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                scheduler.step(max(5 - step, 0))  # a loss that gets no better from step 5 on
            else:
                scheduler.step()
            ckpt.step(step)
            group = optimizer.param_groups[0]
            rates.append((float(group["lr"]).hex(), float(group["momentum"]).hex()))
        assert ckpt.resume_report.exact, ckpt.resume_report
    return rates


@pytest.mark.parametrize("name", kept(SCHEDULERS, "MultiStepLR", "ReduceLROnPlateau", NESTED))
def test_learning_rates_go_on_as_if_nothing_had_been(tmp_path, name):
    whole = _rates(tmp_path / "whole", SCHEDULERS[name], STEPS)
    first = _rates(tmp_path / "parts", SCHEDULERS[name], STOP)
    rest = _rates(tmp_path / "parts", SCHEDULERS[name], STEPS)
    assert len(rest) == STEPS - STOP
    assert first + rest == whole
    assert rest != whole[: len(rest)], "a scheduler that began anew would not show"
    assert {*lr_scheduler.__all__} - {*SCHEDULERS} == {"LRScheduler"}  # the base of all
    (run,) = standfast.Store(tmp_path / "parts").runs()
    saved = run.load()["scheduler"]
    if name in (NESTED, "MultiStepLR"):
        found = saved["_schedulers"][1] if name == NESTED else saved
        assert type(found["milestones"]) is Counter


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lax"])
def test_a_counter_of_the_program_is_filled_where_it_lies(tmp_path, strict):
    def go(words: Counter[str]) -> standfast.Checkpointer:
        state = standfast.TrainingState(seen={"words": words})
        with checkpointer(tmp_path, state, name="words", every=1, strict=strict) as ckpt:
            for step in ckpt.steps(1):
                words.update("abba")
                ckpt.step(step)
        return ckpt

    go(Counter())
    again = Counter[str]()
    assert go(again).resume_report.exact
    assert again == {"a": 2, "b": 2}

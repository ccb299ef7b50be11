"""A run whose tensors lie on a device goes on: filled in place, in one pass, exactly."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast.errors import CopyFailed, DigestMismatch, FellBack, StateMismatch
from standfast.tensors import TensorSpec
from standfast.training.comparison import differences
from tests.kit.devices import LateDevice, Made, put_tensors_on
from tests.kit.stores import data_path, flip, same
from tests.kit.walk import checkpointer

WIDE = 600
"""Wide enough for model and optimizer to have files of their own."""


class Program:
    """A model with tied weights and a buffer, Adam, a schedule, and values of its own."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(WIDE, WIDE),
            torch.nn.BatchNorm1d(WIDE),
            torch.nn.Linear(WIDE, WIDE),
        )
        self.model[2].weight = self.model[0].weight
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.own: dict[str, Any] = {"sum": torch.zeros(5), "array": np.zeros(3), "steps": 0}
        self.state = standfast.TrainingState(
            model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, own=self.own
        )

    def train(self) -> torch.Tensor:
        batch = torch.randn(8, WIDE)
        loss: torch.Tensor = (self.model(batch) - batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        with torch.no_grad():
            self.own["sum"] += batch[0, :5]
        self.own["array"] += np.random.standard_normal(3)
        self.own["steps"] += 1
        return loss

    def run(self, store: Path, steps: int, **options: Any) -> standfast.Checkpointer:
        with checkpointer(store, self.state, every=2, **options) as ckpt:
            for step in ckpt.steps(steps):
                ckpt.step(step, loss=self.train())
        return ckpt

    def tree(self) -> dict[str, Any]:
        """All that there is of it now, copied."""
        parts = self.model, self.optimizer, self.scheduler
        return copy.deepcopy({"parts": [each.state_dict() for each in parts], "own": self.own})


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    device = LateDevice()
    put_tensors_on(device, monkeypatch)
    return device


def _restored(program: Program, store: Path, **options: Any) -> standfast.Checkpointer:
    with checkpointer(store, program.state, **options) as ckpt:
        return ckpt


def test_a_run_on_a_device_goes_on_exactly(tmp_path, device):
    whole = Program()
    whole.run(tmp_path / "whole", 7)
    Program().run(tmp_path / "parts", 4)
    second = Program(seed=1)
    ckpt = second.run(tmp_path / "parts", 7)
    assert ckpt.resume_report.exact, ckpt.resume_report
    assert ckpt.resume_report.step == 4
    assert same(second.tree(), whole.tree())
    assert second.model[2].weight is second.model[0].weight


def test_tensors_are_filled_in_place_and_moments_made_where_they_stay(
    tmp_path, device, monkeypatch
):
    first, second = Program(), Program(seed=1)
    first.run(tmp_path, 4)
    before = [value.data_ptr() for value in second.model.state_dict().values()]
    total, array = second.own["sum"], second.own["array"]
    made = Made(device, monkeypatch)
    _restored(second, tmp_path)
    assert same(second.tree(), first.tree())
    assert [value.data_ptr() for value in second.model.state_dict().values()] == before
    assert second.own["sum"] is total
    assert second.own["array"] is array
    parameters = [TensorSpec("float32", tuple(p.shape)) for p in second.model.parameters()]
    assert sorted(map(str, made.specs)) == sorted(map(str, parameters * 2)), "two moments for each"


def test_each_byte_comes_to_the_device_once(tmp_path, device):
    run = Program().run(tmp_path, 2).run
    program = Program()
    with checkpointer(tmp_path, program.state):
        arrived = {piece.target.data_ptr() for piece in device.incoming}
    stored = int(run.checkpoint().record.nbytes.sum())
    # The scalars, the random states and the array came to the host.
    assert stored - 16384 < sum(piece.data.size for piece in device.incoming) < stored
    moments = [
        value.data_ptr()
        for state in program.optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    ]
    assert {*moments} <= arrived


def test_an_optimizer_that_has_moments_keeps_its_tensors(tmp_path, device, monkeypatch):
    first, second = Program(), Program(seed=1)
    first.run(tmp_path, 2)
    second.train()
    averages = [state["exp_avg"] for state in second.optimizer.state.values()]
    made = Made(device, monkeypatch)
    _restored(second, tmp_path)
    assert same(second.tree(), first.tree())
    assert not made.specs
    for mine, state in zip(averages, second.optimizer.state.values(), strict=True):
        assert state["exp_avg"].data_ptr() == mine.data_ptr()


class _Mean:
    """An object that empties its tensors before it takes others."""

    def __init__(self) -> None:
        self.mean = torch.zeros(4)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean.zero_()
        self.mean += state["mean"]


def test_an_object_that_empties_its_tensors_first_is_given_others(tmp_path, device):
    first, second = _Mean(), _Mean()
    with checkpointer(tmp_path, standfast.TrainingState(mean=first), every=1) as ckpt:
        first.mean += 3
        ckpt.step(1)
    own = second.mean
    with checkpointer(tmp_path, standfast.TrainingState(mean=second)):
        assert second.mean is own
        assert torch.equal(own, torch.full((4,), 3.0))
    assert device.incoming, "they are made on the device all the same"


def test_damage_midway_falls_back_to_an_older_checkpoint(tmp_path, device, monkeypatch):
    program = Program()
    trees = {}
    with checkpointer(tmp_path, program.state, every=2) as ckpt:
        for step in ckpt.steps(4):
            ckpt.step(step, loss=program.train())
            trees[step] = program.tree()
    flip(data_path(ckpt.run, 4, "optimizer"))
    again = Program(seed=1)
    made = Made(device, monkeypatch)
    with pytest.warns(FellBack):
        resumed = _restored(again, tmp_path)
    assert resumed.resume_report.step == 2
    assert same(again.tree(), trees[2])
    moments = 2 * len(list(again.model.parameters()))
    assert made.before_each == [*range(moments), *range(moments)], (
        "the first were gone before the second came"
    )


def test_damage_of_a_checkpoint_that_is_named_is_raised(tmp_path, device):
    ckpt = Program().run(tmp_path, 4)
    flip(data_path(ckpt.run, 4, "optimizer"))
    options = {"resume": f"{ckpt.run.hash}@4", "hp": {"lr": 1}}
    with pytest.raises(DigestMismatch, match="late:0"):  # where bytes of it may be already
        _restored(Program(), tmp_path, **options)
    program = Program(seed=1)
    before = program.tree()
    device.incoming.clear()
    with pytest.raises(DigestMismatch):
        _restored(program, tmp_path, strict=False, **options)
    assert same(program.tree(), before)
    assert not device.incoming


def test_an_older_checkpoint_that_does_not_fit_names_the_device_left_changed(tmp_path, device):
    program = Program()
    with checkpointer(tmp_path, program.state, every=None) as ckpt:
        for step in ckpt.steps(2):
            ckpt.step(step, loss=program.train())
            if step == 1:
                del program.own["steps"]
            ckpt.save()
            program.own["steps"] = step
    flip(data_path(ckpt.run, 2, "optimizer"))
    with pytest.raises(StateMismatch, match="late:0"):
        _restored(Program(), tmp_path)


def test_without_strict_what_fits_is_restored(tmp_path, device):
    first, second = Program(), Program(seed=1)
    first.run(tmp_path, 2)
    second.own["more"], total = torch.zeros(3), second.own["sum"]
    ckpt = _restored(second, tmp_path, strict=False)
    assert ckpt.resume_report.missing == ["own.more"]
    assert same(second.model.state_dict(), first.model.state_dict())
    assert second.own["sum"] is total
    assert same(total, first.own["sum"])


def test_a_copy_that_fails_is_raised_as_it_is(tmp_path, device):
    Program().run(tmp_path, 4)
    device.fails_after = 0
    with pytest.raises(CopyFailed, match="late:0"):
        _restored(Program(), tmp_path)


# Comparing


def test_tensors_on_one_device_are_compared_by_their_bits_where_they_lie(device):
    nan, other = torch.tensor([1, 0x7FC00000, 0]), torch.tensor([1, 0x7FC00001, 0])
    nans, others = (each.int().view(torch.float32) for each in (nan, other))
    saved = {"same": nans, "payload": nans, "zero": torch.zeros(2), "order": torch.ones(2, 3)}
    mine = {
        "same": nans.clone(),
        "payload": others,
        "zero": -torch.zeros(2),
        "order": torch.ones(3, 2).T,
    }
    assert list(differences(mine, saved)) == ["payload", "zero"]
    assert not device.out


def test_a_tensor_on_the_device_is_compared_with_the_host_piece_by_piece(device, seams):
    x = torch.arange(10.0)
    changed = x.numpy().copy()
    changed[9] = -1
    seams.bound("chunk of a comparison", 16)
    mine, saved = {"x": x, "y": x}, {"x": x.numpy().copy(), "y": changed}
    assert list(differences(mine, saved)) == ["y"]

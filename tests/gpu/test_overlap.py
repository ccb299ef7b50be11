"""Copies during the next step, on a real GPU: what is committed is one step, never two."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.gpu.gpu import DEVICE, ON_GPU, busy, checkpointer, differing, kept, wait_until_warm

pytestmark = ON_GPU
WIDTH = 5120
"""Two layers of it with their moments are 0.6 GB, which take more than ten milliseconds to copy."""


class Model(nn.Module):
    """Two large layers, and if wished a large buffer that every forward writes."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        if buffer:
            self.register_buffer("calls", torch.zeros(1 << 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "calls"):
            self.calls += 1
        result: torch.Tensor = self.layers(x)
        return result


class Program:
    """A training program on the GPU, and what its state was at each save."""

    def __init__(self, folder: Path, **options: Any) -> None:
        torch.manual_seed(0)
        with torch.device(DEVICE):
            self.model = Model(**options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.ckpt = checkpointer(folder, model=self.model, optimizer=self.optimizer)
        self.were: dict[int, Any] = {}
        self.train()

    def forward_and_backward(self) -> None:
        self.model(torch.randn(8, WIDTH, device=DEVICE)).square().mean().backward()

    def train(self) -> None:
        self.forward_and_backward()
        self.optimizer.step()

    def remember(self) -> None:
        self.were[self.ckpt.next_step] = kept(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        )

    def save(self) -> None:
        self.remember()
        self.ckpt.step()

    def saved(self) -> dict[int, list[str]]:
        """The steps that were committed, and what of each is not as it was."""
        self.ckpt.wait()
        found = {}
        for each in self.ckpt.run.checkpoints():
            state = each.load(device=DEVICE)
            state.pop("random")
            found[each.step] = [*differing(self.were[each.step], state)]
        return found


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    with program.ckpt:
        yield program


def test_a_step_returns_while_the_gpu_still_computes_what_will_be_saved(program):
    program.save()
    program.ckpt.wait()
    wait_until_warm(program.ckpt)
    program.remember()
    torch.cuda.synchronize()
    done = busy()
    program.ckpt.step()
    assert not done.query()
    assert program.saved() == {1: [], 2: []}


def test_the_next_step_of_the_optimizer_never_gets_into_a_checkpoint(program):
    for step in range(1, 7):
        program.save()
        if step % 3 == 1:
            program.optimizer.step()  # with the gradients that it has, at once
        if step % 3 == 2:
            program.train()  # else gradients are accumulated over two saves
        else:
            program.forward_and_backward()
    assert program.saved() == {step: [] for step in range(1, 7)}


def test_buffers_that_forward_writes_are_those_of_the_step(tmp_path):
    program = Program(tmp_path, buffer=True)
    with program.ckpt:
        for _ in range(3):
            program.save()
            program.forward_and_backward()
        assert program.saved() == {1: [], 2: [], 3: []}
        assert [int(each["model"]["calls"][0]) for each in program.were.values()] == [1, 2, 3]


def _edit(program: Program) -> None:
    with torch.no_grad():
        for parameter in program.model.parameters():
            parameter.mul_(0.5)


def _edit_data(program: Program) -> None:
    for parameter in program.model.parameters():
        parameter.data.add_(1.0)


def _edit_moments(program: Program) -> None:
    for state in program.optimizer.state.values():
        state["exp_avg_sq"].zero_()


@pytest.mark.parametrize("edit", [_edit, _edit_data, _edit_moments])
def test_what_is_edited_by_hand_is_never_committed_as_the_step_before(program, edit, capsys):
    edit(program)  # to load its kernels waits for the whole GPU
    program.save()
    program.ckpt.wait()
    wait_until_warm(program.ckpt)
    program.train()
    program.remember()
    busy(1.0)  # the copies and the edit both begin when this is over
    program.ckpt.step()
    edit(program)
    while not program.ckpt._open().is_idle():
        time.sleep(0.01)
    program.train()
    program.save()
    edit(program)  # for which the copies are waited for by now
    assert program.saved() == {1: [], 3: []}
    assert capsys.readouterr().err.count("step 2 ") == 1

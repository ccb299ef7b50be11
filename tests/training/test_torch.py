"""Torch's objects as parts of a training state."""

import copy
import random
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import standfast
from standfast import errors
from tests.kit.cases import kept
from tests.kit.walk import checkpointer

Model = torch.nn.Module


def _model() -> Model:
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(8)
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 1))


def _bytes(model: Model) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


def _train(model: Model, optimizer: Any) -> torch.Tensor:
    batch = torch.randn(16, 4)
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def _run(
    store: Path, steps: int, wrap: Callable[[Model], Model] = copy.copy, **options: Any
) -> tuple[Model, standfast.Checkpointer]:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
    state = standfast.TrainingState(model=wrap(model), optimizer=optimizer, scheduler=scheduler)
    with checkpointer(store, state, every=5, **options) as ckpt:
        for step in ckpt.steps(steps):
            loss = _train(model, optimizer)
            scheduler.step()
            ckpt.step(step, loss=loss)
    return model, ckpt


def test_a_model_with_optimizer_and_scheduler_goes_on_exactly(tmp_path):
    whole, _ = _run(tmp_path / "whole", 20)
    _run(tmp_path / "parts", 7)
    again, ckpt = _run(tmp_path / "parts", 20)
    assert ckpt.resume_report.exact, ckpt.resume_report
    assert ckpt.resume_report.step == 7
    assert _bytes(again) == _bytes(whole)


@pytest.fixture
def process_group(tmp_path: Path) -> Any:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def _with_compiled_part(model: Model) -> Model:
    model[3] = torch.compile(model[3], backend="eager")  # type: ignore[operator,index]
    return model


@pytest.mark.parametrize(
    "wrap",
    [
        torch.nn.DataParallel,
        torch.nn.parallel.DistributedDataParallel,
        lambda model: torch.compile(model, backend="eager"),
        _with_compiled_part,
    ],
    ids=["parallel", "distributed", "compiled", "compiled-part"],
)
@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_wrapped_model_is_saved_under_the_names_of_the_one_inside(tmp_path, wrap):
    plain, first = _run(tmp_path, 10)
    wrapped, ckpt = _run(tmp_path, 15, wrap)
    assert ckpt.run.hash == first.run.hash
    assert ckpt.resume_report.step == 10
    assert ckpt.resume_report.exact, ckpt.resume_report
    assert set(ckpt.run.load()["model"]) == set(plain.state_dict())
    bare, last = _run(tmp_path, 15)  # and back without the wrapper
    assert last.resume_report.exact, last.resume_report
    assert sorted(_bytes(bare).values()) == sorted(_bytes(wrapped).values())


def test_another_model_is_another_run_and_refused_as_the_same(tmp_path):
    _, ckpt = _run(tmp_path, 5)
    other = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Dropout(), torch.nn.Linear(9, 1))
    state = standfast.TrainingState(model=other)
    with checkpointer(tmp_path, state) as fresh:
        assert fresh.run.hash != ckpt.run.hash
        assert "model" in str(fresh.resume_report)
    before = _bytes(other)
    branch = checkpointer(tmp_path, state, trial=2, resume=ckpt.run.hash)
    with pytest.raises(errors.StateMismatch, match=r"0\.weight:.*\[8,"), branch:
        pass
    assert _bytes(other) == before


def test_settings_that_the_checkpoint_overrules_are_listed(tmp_path):
    def go(lr: float, **options: Any) -> str:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        state = standfast.TrainingState(**parts)
        with checkpointer(tmp_path, state, name="a", hp={"lr": lr}, **options) as ckpt:
            for step in ckpt.steps(3):
                ckpt.step(step)
            return str(ckpt.resume_report)

    go(0.1)
    assert "overruled" not in go(0.1)
    said = go(0.001, resume="a@3")
    assert "lr: 0.1, and here 0.001" in said
    assert "optimizer.param_groups.0.initial_lr: 0.1 is restored, 0.001 was set" in said
    assert "last_epoch" not in said


def test_generators_are_parts(tmp_path):
    def run(steps: int) -> list[Any]:
        own, numpy = random.Random(1), np.random.default_rng(2)
        generator = torch.Generator().manual_seed(3)
        parts = {"own": own, "numpy": numpy, "torch": generator}

        def draws() -> tuple[Any, ...]:
            return own.random(), numpy.random(), torch.rand((), generator=generator).item()

        with checkpointer(tmp_path, standfast.TrainingState(**parts), name="generators") as ckpt:
            draws()  # what is built before the first step may draw
            return [draws() for _ in ckpt.steps(steps)]

    run(2)
    expected = random.Random(1)
    assert [own for own, *_ in run(4)] == [expected.random() for _ in range(5)][3:]


# Loaders


def _batches(store: Path, loader: Any, epochs: int, stop: int | None = None) -> list[Any]:
    """What a program sees of its data, with a checkpoint after each batch."""
    seen: list[Any] = []
    state = standfast.TrainingState(model=_model(), loader=loader)
    with checkpointer(store, state, every=1) as ckpt:
        for epoch in ckpt.epochs(epochs):
            for (batch,) in loader:
                seen.append((epoch, batch.tolist()))
                ckpt.step()
                if len(seen) == stop:
                    return seen
    return seen


def _resumable() -> Any:
    data = TensorDataset(torch.arange(10))
    return standfast.ResumableLoader(data, batch_size=3, shuffle=True, seed=5)


def _stateful(**options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import RandomSampler

        data = TensorDataset(torch.arange(10))
        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(4))
        options["generator"] = torch.Generator().manual_seed(5)
        return StatefulDataLoader(data, batch_size=3, sampler=sampler, **options)


def _with_worker() -> Any:
    return _stateful(num_workers=1)


@pytest.mark.parametrize(
    ("make", "stop"),
    kept(
        [*product([_resumable, _stateful], [1, 3, 4, 5, 9]), (_with_worker, 3)],
        *((_resumable, 4), (_resumable, 5), (_stateful, 3), (_stateful, 4)),
    ),
)
@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_an_epoch_goes_on_with_the_batches_that_are_left(tmp_path, make, stop):
    whole = _batches(tmp_path / "whole", make(), 3)
    assert len(whole) == 3 * 4
    first = _batches(tmp_path / "parts", make(), 3, stop)
    rest = _batches(tmp_path / "parts", make(), 3)
    assert first + rest == whole


def test_steps_take_batches_over_the_ends_of_epochs(tmp_path):
    def batches(store: Path, *totals: int) -> list[Any]:
        seen = []
        for total in totals:
            loader = _resumable()
            endless = loader.forever()  # made before the state is restored
            state = standfast.TrainingState(model=_model(), loader=loader)
            with checkpointer(store, state, every=1) as ckpt:
                for step in ckpt.steps(total):
                    seen.append(next(endless)[0].tolist())
                    ckpt.step(step)
        return seen

    assert batches(tmp_path / "parts", 2, 4, 7, 13) == batches(tmp_path / "whole", 13)


def test_a_loader_of_other_data_is_refused_before_anything_is_changed(tmp_path):
    _batches(tmp_path, _resumable(), 1)
    loader = standfast.ResumableLoader(TensorDataset(torch.arange(11)), batch_size=3, seed=5)
    model = _model()
    torch.nn.init.zeros_(model[0].weight)  # type: ignore[index,arg-type]
    before = _bytes(model)
    state = standfast.TrainingState(model=model, loader=loader)
    with pytest.raises(errors.StateMismatch), checkpointer(tmp_path, state):
        pass
    assert _bytes(model) == before
    with checkpointer(tmp_path, state, strict=False) as ckpt:
        assert not ckpt.resume_report.exact
        assert "length 10" in str(ckpt.resume_report)
    assert loader.epoch == 0
    assert _bytes(model) != before


def test_moments_of_another_model_are_not_restored(tmp_path):
    def run(width: int, **options: Any) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, width))
        optimizer = torch.optim.Adam(model.parameters())
        state = standfast.TrainingState(model=model, optimizer=optimizer)
        with checkpointer(tmp_path, state, name="a", hp={"w": width}, **options) as ckpt:
            for step in ckpt.steps(ckpt.next_step):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                ckpt.step(step)
            return ckpt.resume_report

    run(3)
    report = run(5, resume="a@1", strict=False)
    assert "optimizer.state.0.exp_avg" in report.unexpected
    assert "model.0.weight" in report.restored
    assert len(report.mismatched) == 2
    assert not report.exact


class _Stop(Exception):
    """Ends a program as a crash would."""


def _recipe(store: Path, stop: int | None = None) -> tuple[dict[str, bytes], list[Any]]:
    """The program of docs/training.md: epochs, validation, early stopping."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    data = TensorDataset(torch.randn(22, 4, generator=torch.Generator().manual_seed(1)))
    loader = standfast.ResumableLoader(data, batch_size=4, shuffle=True, seed=2)
    stopper = {"best": float("inf"), "bad": 0}
    state = standfast.TrainingState(
        model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, stopper=stopper
    )
    batches = 0
    with checkpointer(store, state, name="recipe", every=4, monitor="val_loss") as ckpt:
        for _ in ckpt.epochs(12):
            if stopper["bad"] == 3:
                break
            for (batch,) in loader:
                loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ckpt.step(loss=loss)
                batches += 1
                if batches == stop:
                    raise _Stop
            model.eval()
            with torch.no_grad():
                val_loss = float((model(data.tensors[0]) * (1 + torch.rand(()))).square().mean())
            model.train()
            scheduler.step(val_loss)
            is_better = val_loss < stopper["best"]
            stopper["best"] = min(val_loss, stopper["best"])
            stopper["bad"] = 0 if is_better else stopper["bad"] + 1
            ckpt.report(val_loss=val_loss)
            ckpt.save()
        saved = [(c.step, c.epoch, c.metrics) for c in ckpt.run.checkpoints()]
        return _bytes(model), [*saved, ckpt.run.checkpoint("best").step, stopper]


@pytest.mark.parametrize("stop", kept([1, 5, 6, 7, 12, 13, 17], 13))
def test_a_program_with_validation_and_early_stopping_goes_on_exactly(tmp_path, stop):
    whole = _recipe(tmp_path / "whole")
    with pytest.raises(_Stop):
        _recipe(tmp_path / "stopped", stop)
    assert _recipe(tmp_path / "stopped") == whole
    assert _recipe(tmp_path / "stopped") == whole  # it had ended, and does nothing more

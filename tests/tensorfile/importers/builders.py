"""Folders of checkpoints, laid out as Transformers and Lightning lay them out."""

import json
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import standfast


def trained(steps: int = 3) -> tuple[torch.nn.Module, torch.optim.AdamW]:
    """A small model and its optimizer, after a few steps."""
    torch.manual_seed(steps)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.8, 0.99))
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@cache
def _written(step: int) -> tuple[torch.nn.Module, dict[str, bytes]]:
    """A checkpoint of a step, made once: its model and its files."""
    model, optimizer = trained(step % 7 + 1)
    with TemporaryDirectory() as name:
        folder = Path(name)
        standfast.save(folder / "model.safetensors", model.state_dict(), {"format": "pt"})
        write_training(folder, step, optimizer)
        return model, {path.name: path.read_bytes() for path in folder.iterdir()}


def write_transformers(folder: Path, step: int, **trainer: Any) -> torch.nn.Module:
    """What the Trainer of Transformers writes at a step."""
    folder.mkdir(parents=True)
    model, files = _written(step)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    _write_state(folder, step, trainer)
    return model


def write_training(folder: Path, step: int, optimizer: Any) -> None:
    """All that stands beside the weights."""
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    generator = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
    }
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(scheduler.state_dict(), folder / "scheduler.pt")
    torch.save({"scale": 65536.0, "growth_factor": 2.0}, folder / "scaler.pt")
    torch.save(generator, folder / "rng_state.pth")
    torch.save(torch.nn.Linear(1, 1), folder / "training_args.bin")
    _write_state(folder, step, {})
    (folder / "config.json").write_text('{"model_type": "bert", "hidden_size": 4}')
    (folder / "tokenizer.json").write_text("{}")


def _write_state(folder: Path, step: int, trainer: dict[str, Any]) -> None:
    state = {"global_step": step, "epoch": step / 200, "log_history": [], **trainer}
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=2))


def lightning(step: int, epoch: int = 3, **changes: Any) -> dict[str, Any]:
    """What Lightning hands to torch.save."""
    model, optimizer = trained(step % 7 + 1)
    callback = (
        "ModelCheckpoint{'monitor': 'val_loss', 'mode': 'min', 'every_n_train_steps': 0, "
        "'every_n_epochs': 1, 'train_time_interval': None}"
    )
    return {
        "epoch": epoch,
        "global_step": step,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": model.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": epoch}}}},
        "callbacks": {
            callback: {
                "monitor": "val_loss",
                "best_model_score": torch.tensor(0.25),
                "best_model_path": "/data/run/checkpoints/epoch=3-step=500.ckpt",
                "current_score": torch.tensor(0.5),
                "dirpath": "/data/run/checkpoints",
                "best_k_models": {"/data/run/checkpoints/epoch=3-step=500.ckpt": torch.tensor(0.2)},
                "kth_best_model_path": "",
                "kth_value": torch.tensor(0.25),
                "last_model_path": "",
            }
        },
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [{"step_size": 2, "gamma": 0.1, "base_lrs": [0.01], "last_epoch": 3}],
        "hparams_name": "kwargs",
        "hyper_parameters": {"width": 3, "rate": 1e-2, "name": "small"},
        **changes,
    }


def save_torch(path: Path, tree: Any) -> Path:
    """A file of torch's, with the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tree, path)
    return path

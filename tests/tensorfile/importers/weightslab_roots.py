"""Roots as weightslab writes them, in both layouts, and all that is in a folder."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

"""Written by weightslab 2.0."""
WRITTEN = "c2546cf6b5a79a7800000000"
"""The one experiment in it."""

FIRST = "a1b2c3d4e5f6g7h8i9j0k1l2"
SECOND = "f0f0f0f0e5f6g7h8i9j0k1l2"
LAYOUTS = pytest.mark.parametrize("short", [False, True], ids=["24 characters", "8 characters"])


def weights(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "model_state_dict": {"0.weight": torch.full((2, 3), float(step)), "0.bias": torch.ones(2)},
        "timestamp": "2026-01-21T10:30:00",
        "exp_hash": FIRST,
    }


class Writer:
    """Writes a root; `short` names the folders by the 8 characters of a part."""

    def __init__(self, path: Path, short: bool) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._short = short
        self._entries: dict[str, Any] = {}
        for kind in ("models", "HP", "data"):
            (self.checkpoints / kind).mkdir(parents=True)

    def experiment(self, hash: str, *steps: int, **entry: Any) -> None:
        """Add weights of these steps, and an entry of the manifest."""
        self._entries[hash] = {"hp_hash": hash[:8], **entry}
        self.write_manifest(hash)
        for step in steps:
            torch.save(weights(step), self.weights(hash, step))

    def write_manifest(self, latest: str | None) -> None:
        content = {"latest_hash": latest, "experiments": self._entries}
        self.manifest.write_text(yaml.safe_dump(content))

    def config(self, hash: str, hyperparameters: Any) -> Path:
        path = self._file("HP", hash, hash[:8], "config.yaml")
        content = {"hyperparameters": hyperparameters, "exp_hash": hash}
        path.write_text(yaml.safe_dump(content))
        return path

    def data_state(self, hash: str, content: Any) -> Path:
        path = self._file("data", hash, hash[16:], "data_state.yaml")
        path.write_text(yaml.safe_dump(content))
        return path

    def snapshot(self, hash: str, content: Any) -> Path:
        path = self._file("data", hash, hash[16:], "data_snapshot.json")
        path.write_text(json.dumps(content))
        return path

    def weights(self, hash: str, step: int) -> Path:
        folder = self.checkpoints / "models" / (hash[8:16] if self._short else hash)
        folder.mkdir(exist_ok=True)
        return folder / f"{hash}_step_{step:06d}.pt"

    @property
    def manifest(self) -> Path:
        return self.checkpoints / "manifest.yaml"

    def _file(self, kind: str, hash: str, part: str, what: str) -> Path:
        name = part if self._short else hash
        folder = self.checkpoints / kind / name
        folder.mkdir(exist_ok=True)
        return folder / f"{name}_{what}"


def everything_in(root: Path) -> dict[str, Any]:
    """Names, times and bytes of all there is in a folder."""
    found = {}
    for path in sorted([root, *root.rglob("*")]):
        status = os.lstat(path)
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_ino, content)
    return found

"""A model larger than the memory there is: saved in shards, and loaded again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.packages.limits import memory_group, run_within

PROGRAM = Path("tests/packages/programs/larger_than_memory.py")
SHARD = 100_000_000
LIMIT = 450_000_000
"""Of which Python and torch take 250 million by themselves; the rest is one shard."""


def _saved_and_loaded(tmp_path: Path, layers: int) -> dict[str, Any]:
    """What the program tells that saves and loads a model of so many layers."""
    made = run_within(None, PROGRAM, ["make", str(tmp_path / "w"), str(layers), "1024"], 120)
    assert made.returncode == 0, made.stderr
    arguments = ["work", str(tmp_path / "w"), str(layers), "1024"]
    arguments += [str(tmp_path / "package"), str(SHARD)]
    with memory_group(LIMIT) as group:
        done = run_within(group, PROGRAM, arguments, 300)
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["shards"] >= found["size"] // SHARD
    assert found["saving"] < 80_000_000  # of its own, besides what is mapped
    assert found["loading"] < 20_000_000
    return found


def test_a_model_that_does_not_fit_into_memory_is_saved_and_loaded(tmp_path: Path) -> None:
    found = _saved_and_loaded(tmp_path, layers=10)
    assert found["size"] > LIMIT
    assert found["same"]


@pytest.mark.long
def test_a_model_of_several_gigabytes_does_not_fit_into_memory(tmp_path: Path) -> None:
    found = _saved_and_loaded(tmp_path, layers=80)
    assert found["size"] > 4_000_000_000
    assert found["same"]

"""Hashes that were computed elsewhere: by Python 3.12 and torch 2.11, on another machine."""

from __future__ import annotations

import numpy as np
import torch

from standfast.identity import identify


def test_the_hash_is_that_of_another_machine_and_another_python() -> None:
    uids = [f"é{i}" for i in range(1000)]
    identity = identify(
        hp={
            "a": (1, 2.5, None, True, b"x", 1 + 2j, {3, 1}),
            "f": float("nan"),
            "big": 2**70,
            "t": np.arange(6.0).reshape(2, 3),
        },
        model=torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)),
        data={
            "uids": uids,
            "discarded": uids[::7],
            "tags": {uid: ["x", "y"] for uid in uids[::3]},
        },
    )
    assert identity.hash == "3dbc204e92149ff5f0d2a64b"

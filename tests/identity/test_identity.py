"""The identity of a run: what it is made of, and that it never changes."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3

from standfast.errors import BadLabel, UnstableValue
from standfast.identity import IGNORED, Identity, identify
from tests.identity.values import Adam, Colour, Config, schedule

EXAMPLE = {
    "hp": {"lr": 0.1, "layers": [64, 64], "max_steps": 1000},
    "model": {"weight": np.zeros((20, 10), np.float32)},
    "data": {"uids": ["a", "b"], "discarded": ["b"], "tags": {"a": ["train"]}},
    "trial": 1,
    "volatile": ["max_steps"],
}


def test_the_example_of_the_documentation_has_the_digests_that_it_gives():
    identity = identify(**EXAMPLE)
    hp = b"m2:s5:triali1:1s2:hpm2:s2:lrd\x3f\xb9\x99\x99\x99\x99\x99\x9as6:layersl2:i2:40i2:40"
    model = b"m1:s5:modelm1:s6:weightks7:float32l2:i2:14i1:a"
    data = b"m1:s4:datam3:s4:uidsu2:s1:as1:bs9:discardedu1:s1:bs4:tagsm1:s1:au1:s5:train"
    assert identity.hp == "c62e2d8c11e12dd1fe53328bdbb5394c27d75c42ec81869780492f289afaea74"
    assert identity.model == "255eb5824fafad0ce594465878ab9d5b2fbc4eba38f770d194f70ca7b6d16e45"
    assert identity.data == "0c3c70dee9ad4d4b1270a0c477deb6dffb4ec4122588cc66cb6d2d4d05ba2118"
    assert identity.hp == blake3(hp).hexdigest()
    assert identity.model == blake3(model).hexdigest()
    assert identity.data == blake3(data).hexdigest()


UIDS = [f"é{i}" for i in range(1000)]
GOLDEN: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"name": "baseline"}, "70ed8d8a0000000000000000"),
    "name and trial": ({"name": "baseline", "trial": 2}, "efcec2f90000000000000000"),
    "trial and model": ({"trial": 2, "model": "mlp"}, "91d106518f344b3600000000"),
    "plain": ({"hp": {"lr": 0.1, "seed": None, "amp": True}}, "4a8b404e0000000000000000"),
    "many kinds": (
        {
            "hp": {
                "classes": [Adam, schedule, Colour.RED, torch.float16],
                "numbers": (1, -1.5, 2j, float("nan"), float("inf"), 1 << 90),
                "others": {b"\xff", "é", frozenset({1, 2})},
                "config": Config(3, Adam(np.float32(0.1))),  # type: ignore[arg-type]
                "array": np.arange(6, dtype=np.int16).reshape(2, 3),
                "path": Path("data/train"),
            }
        },
        "272449780000000000000000",
    ),
    "layer": ({"model": torch.nn.Linear(10, 20)}, "000000006540909a00000000"),
    "data": (
        {"data": {"uids": [3, 1, 2], "discarded": [], "tags": {1: ["x", "y"]}}},
        "00000000000000009ee75f90",
    ),
    # By Python 3.12 and torch 2.11, on another machine.
    "another machine": (
        {
            "hp": {
                "a": (1, 2.5, None, True, b"x", 1 + 2j, {3, 1}),
                "f": float("nan"),
                "big": 2**70,
                "t": np.arange(6.0).reshape(2, 3),
            },
            "model": torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)),
            "data": {
                "uids": UIDS,
                "discarded": UIDS[::7],
                "tags": {u: ["x", "y"] for u in UIDS[::3]},
            },
        },
        "3dbc204e92149ff5f0d2a64b",
    ),
    "plain data": ({"data": {"files": ["a", "b"], "seed": 1}}, "0000000000000000588e0004"),
}


@pytest.mark.parametrize(("parts", "expected"), GOLDEN.values(), ids=GOLDEN)
def test_no_release_changes_a_hash(parts, expected):
    assert identify(**parts).hash == expected


def test_the_hash_is_eight_digits_of_each_part_and_zeros_for_a_missing_one():
    identity = Identity("1" * 64, None, "2" * 64)
    assert identity.hash == "111111110000000022222222"
    assert identify(model=1).hp is None
    assert identify(model=1).hash[:8] == "00000000"


def test_a_run_needs_something_to_tell_it_apart():
    for nothing in ({}, {"trial": 1}):
        with pytest.raises(BadLabel):
            identify(**nothing)
    assert identify(hp={}).hp


@pytest.mark.parametrize("given", [{"hp": {"lr": 1}}, {"model": 1}, {"data": 1}], ids=str)
def test_the_name_is_the_trial_where_none_is_given(given):
    assert identify(name="a", **given) == identify(trial="a", **given)
    assert identify(name="a", **given) != identify(name="b", **given)
    assert identify(name="a", trial=1, **given) == identify(name="b", trial=1, **given)


def test_trials_tell_equal_hyperparameters_apart():
    hps = {
        identify(hp={"lr": 1}).hp,
        identify(hp={"lr": 1}, trial=1).hp,
        identify(hp={"lr": 1}, trial=2).hp,
        identify(hp={"lr": 1, "trial": 1}).hp,
        identify(model=1, trial=1).hp,
        identify(name="a").hp,
        identify(name="a", trial=1).hp,
        identify(name="b").hp,
        identify(name="b", trial=1).hp,
        identify(hp="a").hp,
    }
    assert len(hps) == 10
    assert identify(hp=1, model=2, data=3).model == identify(model=2, trial=1).model


def test_what_says_where_and_whether_a_run_goes_on_is_ignored():
    hp = {"lr": 0.1}
    assert identify(hp=hp | dict.fromkeys(IGNORED, object())) == identify(hp=hp)
    assert identify(hp={"sub": {"is_training": 1}}) != identify(hp={"sub": {"is_training": 2}})
    names = argparse.Namespace(lr=0.1, is_training=True)
    assert identify(hp=names) == identify(hp=hp)


def test_volatile_hyperparameters_do_not_count():
    hp = {"lr": 0.1, "max_steps": 5, "trainer": {"max_steps": 5, "bf16": True}}
    top = identify(hp=hp, volatile=["max_steps"])
    assert top == identify(hp={**hp, "max_steps": 6}, volatile=["max_steps"])
    assert top == identify(hp=hp, volatile="max_steps")
    assert top != identify(hp=hp)
    other = {**hp, "trainer": {"max_steps": 6, "bf16": True}}
    assert top != identify(hp=other, volatile=["max_steps"])
    inner = {"trainer.max_steps"}
    assert identify(hp=hp, volatile=inner) == identify(hp=other, volatile=inner)
    flat = {"trainer.max_steps": 5}
    assert identify(hp=flat, volatile=inner) == identify(hp={}, volatile=inner)


def test_volatile_names_reach_into_objects_and_lists():
    volatile = ["optimizer.lr"]
    assert identify(hp=Config(1, Adam(1.0)), volatile=volatile) == identify(
        hp=Config(1, Adam(2.0)), volatile=volatile
    )
    layers = ["layers.1.workers"]
    hps = [{"layers": [{"workers": 0}, {"workers": n}]} for n in (1, 2)]
    assert identify(hp=hps[0], volatile=layers) == identify(hp=hps[1], volatile=layers)
    assert identify(hp={"callback": object()}, volatile=["callback"]).hp
    with pytest.raises(UnstableValue):
        identify(hp={"callback": object()}, volatile=["call"])


SCRIPT = """
import enum, sys
from dataclasses import dataclass
import standfast
from standfast.identity import identify

class Colour(enum.Enum):
    RED = 1

@dataclass
class Config:
    colour: Colour
    names: frozenset

def loss(): ...

def identity():
    hp = [Config(Colour.RED, frozenset(map(str, range(100)))), Config, loss]
    tags = {str(uid): {"x", "y", "z"} for uid in range(100)}
    return identify(hp=hp, data={"uids": set(map(str, range(100))), "tags": tags})
"""


def run(command: list[str], folder: Path, seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, check=True
    )
    return done.stdout.decode()


def test_every_process_finds_the_same_identity(tmp_path):
    train = SCRIPT + "if __name__ == '__main__': print(identity())"
    worker = (
        SCRIPT + "if __name__ == '__main__':\n"
        "    import multiprocessing\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(identity))\n"
    )
    for folder, text in ((tmp_path, train), (tmp_path / "worker", worker)):
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(text)
    found = {
        "as a script": run(["train.py"], tmp_path, "1"),
        "imported": run(["-c", "import train; print(train.identity())"], tmp_path, "3"),
        "in a worker": run(["train.py"], tmp_path / "worker", "4"),
    }
    assert set(found.values()) == {found["imported"]}
    assert found["imported"].startswith("Identity(hp='")
    # In a package, it has the name that it is imported by.
    imported = "from worker.train import identity; print(identity())"
    (tmp_path / "worker" / "train.py").write_text(train)
    as_module = run(["-m", "worker.train"], tmp_path, "1")
    assert as_module == run(["-c", imported], tmp_path, "2") != found["imported"]

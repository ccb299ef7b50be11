"""Each top-level dict of a state is a data file of its own, which other tools open as it is."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import standfast
from standfast import Run
from tests.kit.stores import MIB, data_files, data_path, folder, random_bytes, same


def _big(seed: int = 0) -> Any:
    return random_bytes(MIB, seed)


def _labels(run: Run) -> list[str]:
    return sorted(name.split(".")[2] for name in data_files(run))


def _names(path: Path) -> list[str]:
    with standfast.open(path) as file:
        return sorted(file)


def test_each_top_level_dict_has_a_file_with_names_unprefixed(run):
    state = {"loose": _big(3), "list": [_big(4), 1], "step": 7}
    state |= {"model": {"layer": {"w": _big(1)}, "b": np.ones(3)}}
    state |= {"optimizer": {"state": {0: {"exp_avg": _big(2)}}}}
    run.save(1, state)
    assert _labels(run) == ["model", "optimizer", "state"]
    assert _names(data_path(run, 1, "model")) == ["b", "layer.w"]
    assert _names(data_path(run, 1, "optimizer")) == ["state.0.exp_avg"]
    assert _names(data_path(run, 1, "state")) == ["list.0", "loose"]
    assert sorted(run.checkpoint().tensors) == [
        *("list.0", "loose", "model.b", "model.layer.w", "optimizer.state.0.exp_avg")
    ]


def test_small_parts_share_a_file_and_one_alone_has_its_own(run):
    small, large = {"x": np.ones(3)}, {"w": _big()}
    run.save(1, {"a": small, "b": {"x": _big()[1:]}, "c": np.ones(5), "d": large})
    assert _labels(run) == ["d", "parts"], "a part is large from one mebibyte on"
    assert _names(data_path(run, 1, "parts")) == ["a.x", "b.x", "c"]
    run.save(1, {"a": small, "d": {"w": _big(2)}, "step": 4, "empty": {}}, replace=True)
    assert _labels(run) == ["a", "d"]
    assert _names(data_path(run, 1, "a")) == ["x"]


def test_a_state_that_is_no_dict_is_the_part_state(run):
    run.save(1, [{"w": _big()}, np.ones(2)])
    assert _labels(run) == ["state"]
    assert _names(data_path(run, 1)) == ["0.w", "1"]
    run.save(2, _big(5))
    assert _names(data_path(run, 2)) == ["state"]


@pytest.mark.guarantee("G19")
def test_the_model_file_is_a_model_for_other_programs(run):
    model = torch.nn.Sequential(torch.nn.Linear(600, 500), torch.nn.BatchNorm1d(500))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 600)).sum().backward()
    optimizer.step()
    run.save(1, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    weights = load_file(data_path(run, 1, "model"))
    other = torch.nn.Sequential(torch.nn.Linear(600, 500), torch.nn.BatchNorm1d(500))
    other.load_state_dict(weights)
    assert same(other.state_dict(), model.state_dict())


def test_every_data_file_verifies_by_itself_and_says_whose_it_is(run):
    run.save(3, {"model": {"w": _big(1)}, "a": {"x": np.ones(1)}, "b": {"x": np.ones(1)}})
    for name in data_files(run):
        assert standfast.verify(folder(run) / name).tensors > 0
        with standfast.open(folder(run) / name) as file:
            assert file.metadata["checkpoint"] == f"{run.hash}@3"
            assert file.metadata["part"] == name.split(".")[2]
            assert "left_out" not in file.metadata


WEIRD: list[Any] = [
    *("../x", "/etc/passwd", "a/b\\c", "..", ".", "", " ", "\0", "\n", "state", "parts"),
    *("x" * 300, "x" * 301, "Grün", "绿", "红", "\udc80", "A", "a", "a ", "model.safetensors"),
    *(0, -1, 1.5, float("nan"), None, True, 1 << 300, 1 << 16_000),
]


def test_weird_keys_never_become_paths(run, tmp_path):
    state: Any = {key: {"w": _big(number)} for number, key in enumerate(WEIRD)}
    state |= {"loose": _big(1000), "model": {"__metadata__": _big(1001)}}
    run.save(1, state)
    names = list(data_files(run))
    assert len(names) == len(WEIRD) + 2
    grammar = rf"{run.hash}_step_000001\.[0-9a-f]{{8}}\.[a-z0-9_-]{{1,40}}\.safetensors"
    assert all(re.fullmatch(grammar, name) for name in names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]
    assert same(run.load(1), state)
    assert run.checkpoint(1).verify().files == len(names)
    assert {len(_names(folder(run) / name)) for name in names} == {1}


def test_weird_keys_in_one_shared_file(run):
    state: Any = {key: {"w": np.full(3, number)} for number, key in enumerate(WEIRD)}
    state["loose"] = np.ones(3)
    state |= {chr(0x4E00 + number): {"w": np.ones(1)} for number in range(5000)}
    run.save(1, state)
    assert _labels(run) == ["parts-2"], "a part is called parts"
    assert same(run.load(1), state)


@pytest.mark.parametrize(
    "keys",
    [("A", "a"), ("a b", "a-b"), ("绿", "红"), ("state", None), ("x" * 40, "x" * 41), (1, "1")],
)
def test_parts_of_one_label_have_files_of_their_own(run, keys):
    state = {keys[0]: {"w": _big(1)}, keys[1]: {"w": _big(2)}}
    if keys[1] is None:
        state = {"state": {"w": _big(1)}, "w": _big(2)}
    run.save(1, state)
    assert len(data_files(run)) == (1 if keys == (1, "1") else 2)
    assert same(run.load(1), state)


def test_names_that_collide_stay_apart_and_those_too_long_are_cut(run):
    state = {
        "a": {"b.c": _big(1), "b": {"c": _big(2)}, "b.c~2": _big(3), 0: _big(4), "0": _big(5)},
        "a.b": {"c": _big(6)},
    }
    run.save(1, state)
    assert same(run.load(1), state)
    assert sorted(run.checkpoint().tensors) == [
        *("a.0", "a.0~2", "a.b.c", "a.b.c~2", "a.b.c~2~2", "a.b.c~3")
    ]
    assert _names(data_path(run, 1, "a")) == ["0", "0~2", "b.c", "b.c~2", "b.c~2~2"]
    state = {"x" * 100_000: {"y" * 100_000: np.ones(1)}, "x" * 100_001: np.zeros(1)}
    run.save(2, state)
    assert same(run.load(2), state)
    assert max(map(len, run.checkpoint().tensors)) < 5000


def test_views_of_another_part_are_found_in_it(run):
    weight = torch.arange(float(MIB))
    state = {"model": {"w": weight}, "ema": {"w": weight, "half": weight[: MIB // 2]}}
    run.save(1, state)
    assert _labels(run) == ["model"]
    loaded = run.load(1)
    loaded["model"]["w"] += 1
    assert same(loaded["ema"]["half"], weight[: MIB // 2] + 1)

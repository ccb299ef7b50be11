"""VarMap: a model's parameters by name, saved and loaded in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import standfast
from standfast import errors
from standfast.packages import GPT, Config, VarMap
from tests.kit.stores import flip

TINY = Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2)


def _bits(state: VarMap) -> dict[str, bytes]:
    return {name: value.detach().numpy().tobytes() for name, value in state.items()}


def test_what_was_saved_is_loaded_in_place(tmp_path: Path) -> None:
    model = GPT(TINY)
    state = VarMap(model)
    before = _bits(state)
    state.save(tmp_path / "w.safetensors")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert _bits(state) != before
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    state.load(tmp_path / "w.safetensors")
    assert _bits(VarMap(model)) == before
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses


def test_it_is_a_mapping_of_the_model_s_own_parameters() -> None:
    model = GPT(TINY)
    state = VarMap(model)
    assert list(state) == [name for name, _ in model.named_parameters()]
    assert state["wte.weight"] is model.wte.weight
    assert len(state) == 16
    assert repr(state) == "<VarMap of 16 parameters>"
    assert list(VarMap({"a": torch.zeros(2)})) == ["a"]


def test_the_file_of_another_model_changes_nothing(tmp_path: Path) -> None:
    a, b = torch.zeros(2), torch.zeros(3)
    for given in (
        {"a": a},
        {"a": a, "b": torch.zeros(4)},
        {"a": a, "b": b, "c": a},
        {"a": a, "b": b.double()},
    ):
        standfast.save(tmp_path / "w.safetensors", given)
        state = VarMap({"a": torch.ones(2), "b": torch.ones(3)})
        with pytest.raises(errors.StateMismatch, match=r"w\.safetensors"):
            state.load(tmp_path / "w.safetensors")
        assert all(bool((value == 1).all()) for value in state.values())
    empty = VarMap(torch.nn.ReLU())
    with pytest.raises(errors.StateMismatch, match="'a'"):
        empty.load(tmp_path / "w.safetensors")
    assert len(empty) == 0


def test_elements_that_share_memory_are_refused(tmp_path: Path) -> None:
    standfast.save(tmp_path / "w.safetensors", {"a": torch.ones(2), "b": torch.arange(3.0)})
    state = VarMap({"a": torch.zeros(2), "b": torch.zeros(1).expand(3)})
    with pytest.raises(errors.StateMismatch, match="'b'"):
        state.load(tmp_path / "w.safetensors")
    assert not state["a"].any()


def test_different_tensors_do_not_go_into_shared_memory(tmp_path: Path) -> None:
    weight = torch.zeros(3)
    state = VarMap({"a": weight, "b": weight})
    standfast.save(tmp_path / "w.safetensors", {"a": torch.ones(3), "b": torch.arange(3.0)})
    with pytest.raises(errors.StateMismatch, match=r"'a'.*'b'"):
        state.load(tmp_path / "w.safetensors")
    assert not weight.any()
    standfast.save(tmp_path / "w.safetensors", {"a": torch.ones(3), "b": torch.ones(3)})
    state.load(tmp_path / "w.safetensors")
    assert weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize("is_new", [False, True])
def test_a_damaged_file_changes_and_fills_nothing(is_new: bool, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    VarMap({"a": torch.ones(2), "b": torch.ones(3)}).save(path)
    flip(path)
    state = VarMap() if is_new else VarMap({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(errors.DigestMismatch, match="'b'"):
        state.load(path)
    assert len(state) == (0 if is_new else 2)
    assert not any(value.any() for value in state.values())


def test_an_empty_varmap_is_filled_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    varmap = VarMap()
    varmap.save(path)
    varmap.load(path)
    assert dict(varmap) == {}
    model = GPT(TINY)
    VarMap(model).save(path)
    varmap.load(path)
    assert _bits(varmap) == _bits(VarMap(model))
    other = GPT(TINY)
    other.load_state_dict(varmap)
    assert _bits(VarMap(other)) == _bits(VarMap(model))
    varmap["wte.weight"].zero_()
    varmap.load(path)  # in place now
    assert _bits(varmap) == _bits(VarMap(model))


def test_an_empty_varmap_is_filled_from_a_model_and_by_name(tmp_path: Path) -> None:
    model = GPT(TINY)
    varmap = VarMap()
    varmap.update(model.named_parameters())
    varmap["extra"] = torch.ones(2)
    assert varmap["wte.weight"] is model.wte.weight
    varmap.save(tmp_path / "w.safetensors")
    varmap["extra"].zero_()
    varmap.load(tmp_path / "w.safetensors")
    assert varmap["extra"].tolist() == [1, 1]
    del varmap["extra"]
    assert list(varmap) == [name for name, _ in model.named_parameters()]
    with pytest.raises(errors.UnsupportedTensor):
        varmap["text"] = "no tensor"
    assert "text" not in varmap


@pytest.mark.parametrize("varmap", [VarMap(), VarMap({"a": torch.zeros(2)})], ids=["new", "full"])
def test_a_file_of_another_program_is_loaded_with_a_warning(tmp_path: Path, varmap: VarMap) -> None:
    standfast.save(tmp_path / "w.safetensors", {"a": torch.ones(2)}, extras=False)
    with pytest.warns(errors.NotVerified) as caught:
        varmap.load(tmp_path / "w.safetensors")
    assert caught[0].filename == __file__
    assert varmap["a"].tolist() == [1, 1]


def test_what_has_no_parameters_is_refused() -> None:
    for given in ("model.safetensors", 5, [torch.zeros(2)]):
        with pytest.raises(errors.BadOption, match=type(given).__name__):
            VarMap(given)

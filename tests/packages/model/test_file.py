"""A model in one file: saved, loaded, mapped."""

import json
import subprocess
import sys
from functools import partial

import pytest
import torch

import standfast
from standfast import errors
from standfast.packages import GPT, Config, VarMap, load_model, load_model_mmaped, save_model
from standfast.packages.model.config import shapes
from tests.kit.stores import flip
from tests.packages.stored_models import TINY, bits, model


def test_a_model_comes_back_from_one_file(tmp_path):
    path = tmp_path / "model.safetensors"
    for made in (model(1), torch.nn.DataParallel(model(1))):
        save_model(made, path, {"epoch": 3})
        loaded, config, state = load_model(path)
        assert bits(loaded) == bits(model(1))
        assert config == TINY
        assert isinstance(state, VarMap)
        assert state["ln_f.bias"] is loaded.ln_f.bias
        with standfast.open(path) as file:
            assert file.metadata["epoch"] == 3
        assert f"loaded from {path}, verified" in repr(loaded)


def test_the_configuration_in_the_file_comes_first_and_config_json_second(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_model(model(1).state_dict(), path)
    with pytest.raises(errors.MissingFile, match=r"config\.json.*weights\.json"):
        load_model(path)
    for heads, name in ((8, "weights.json"), (4, "config.json")):
        TINY.changed(n_head=heads).save(tmp_path / name)
        for load in (load_model, load_model_mmaped):
            loaded, config, *_ = load(path)
            assert bits(loaded) == bits(model(1))
            assert config.n_head == heads
    save_model(model(1), path)
    assert load_model(path)[1].n_head == 2


def test_parameters_alone_are_a_model_too(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(VarMap(model(1)), path, {"config": TINY.as_dict()})
    assert bits(load_model(path)[0]) == bits(model(1))
    standfast.save(path, model(1).state_dict(), {"config": json.dumps(TINY.as_dict())})
    assert bits(load_model(path)[0]) == bits(model(1))  # text, as others write it


@pytest.mark.parametrize("config", [5, "{", [], {"n_layer": -1}], ids=str)
def test_a_configuration_that_is_none_is_refused(tmp_path, config):
    path = tmp_path / "model.safetensors"
    standfast.save(path, model(1).state_dict(), {"config": config})
    with pytest.raises(errors.BadField, match=r"model\.safetensors"):
        load_model(path)


def test_damage_is_found_when_it_is_looked_for(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(model(1), path)
    flip(path)
    for load in (load_model, partial(load_model_mmaped, verify=True)):
        with pytest.raises(errors.DigestMismatch, match=r"ln_f\.bias"):
            load(path)
    mapped, _ = load_model_mmaped(path)  # which reads nothing, and says so
    assert "not verified" in repr(mapped)


MAPPED = """
import sys, torch
from pathlib import Path
from standfast.packages import Config, load_model_mmaped
from standfast.packages.model.gpt import empty

modules = len(sys.modules)
empty(Config.large())
modules = len(sys.modules) - modules

def read():
    return int(Path("/proc/self/io").read_text().split()[1])

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if "Rss" in line}

for _ in range(3):  # what is imported is imported
    before, was_read = resident(), read()
    model, _ = load_model_mmaped(sys.argv[1])
was_read, after = read() - was_read, resident()
model.h[0].mlp.c_fc.weight.detach().sum().item()
then = resident()
grown = lambda a, b: sum(b.values()) - sum(a.values())
touched = grown(after, then), model.h[0].mlp.c_fc.weight.nbytes
print(modules, was_read, grown(before, after), *touched)
"""


def test_a_large_file_is_mapped_and_only_what_is_touched_is_read(tmp_path):
    config = Config(vocab_size=1000, n_positions=64, n_embd=1024, n_layer=1, n_head=16)
    path = tmp_path / "model.safetensors"
    save_model({name: torch.ones(shape) for name, shape in shapes(config)}, path)
    config.save(tmp_path / "config.json")
    assert path.stat().st_size > 50_000_000
    done = subprocess.run([sys.executable, "-c", MAPPED, path], capture_output=True, check=True)
    modules, was_read, by_loading, by_touching, touched = map(float, done.stdout.split())
    assert modules < 20  # to build a model; some torch code would import 800
    assert was_read < 1_000_000
    assert by_loading < 5_000_000
    assert touched <= by_touching < 1.5 * touched


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    for metadata in ({"config": "small"}, {"quantization": "none"}):
        with pytest.raises(errors.RefusedMetadata):
            save_model(model(1), tmp_path / "model.safetensors", metadata)
    with pytest.raises(errors.BadOption, match="torch"):
        save_model(model(1), tmp_path / "model.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_warning_comes_only_if_a_file_was_loaded(tmp_path, recwarn):
    path = tmp_path / "model.safetensors"
    standfast.save(path, model(1).state_dict(), extras=False)
    config = tmp_path / "config.json"
    loads = (load_model, partial(load_model_mmaped, verify=True))
    TINY.changed(n_layer=3).save(config)
    for load in loads:
        with pytest.raises(errors.StateMismatch):
            load(path)
    assert recwarn.list == []
    TINY.save(config)
    for load in loads:
        with pytest.warns(errors.NotVerified) as caught:
            load(path)
        assert caught[0].filename == __file__


def test_other_precisions_stay_what_they_are_and_integers_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(model(1).to(torch.bfloat16), path)
    loaded, *_ = load_model(path)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert loaded(torch.tensor([[1, 2]])).dtype == torch.bfloat16
    numbers = {name: value.to(torch.int32) for name, value in model(1).state_dict().items()}
    standfast.save(path, numbers, {"config": TINY.as_dict()})
    with pytest.raises(errors.StateMismatch, match="int32"):
        load_model(path)


def test_what_was_saved_is_loaded_in_place(tmp_path):
    made = model(1)
    state = VarMap(made)
    state.save(tmp_path / "w.safetensors")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(1)
    addresses = [parameter.data_ptr() for parameter in made.parameters()]
    state.load(tmp_path / "w.safetensors")
    assert bits(made) == bits(model(1))
    assert [parameter.data_ptr() for parameter in made.parameters()] == addresses


def test_it_is_a_mapping_of_the_model_s_own_parameters():
    model = GPT(TINY)
    state = VarMap(model)
    assert list(state) == [name for name, _ in model.named_parameters()]
    assert state["wte.weight"] is model.wte.weight
    assert len(state) == 28
    assert repr(state) == "<VarMap of 28 parameters>"
    assert list(VarMap({"a": torch.zeros(2)})) == ["a"]


def test_the_file_of_another_model_changes_nothing(tmp_path):
    a, b = torch.zeros(2), torch.zeros(3)
    others = ({"a": a}, {"a": a, "b": torch.zeros(4)}, {"a": a, "b": b, "c": a})
    for given in (*others, {"a": a, "b": b.double()}):
        standfast.save(tmp_path / "w.safetensors", given)
        state = VarMap({"a": torch.ones(2), "b": torch.ones(3)})
        with pytest.raises(errors.StateMismatch, match=r"w\.safetensors"):
            state.load(tmp_path / "w.safetensors")
        assert all(bool((value == 1).all()) for value in state.values())
    empty = VarMap(torch.nn.ReLU())
    with pytest.raises(errors.StateMismatch, match="'a'"):
        empty.load(tmp_path / "w.safetensors")
    assert len(empty) == 0


def test_different_tensors_do_not_go_into_shared_memory(tmp_path):
    path, weight = tmp_path / "w.safetensors", torch.zeros(3)
    standfast.save(path, {"a": torch.ones(3), "b": torch.arange(3.0)})
    for other, named in ((weight, r"'a'.*'b'"), (torch.zeros(1).expand(3), "'b'")):
        with pytest.raises(errors.StateMismatch, match=named):
            VarMap({"a": weight, "b": other}).load(path)
        assert not weight.any()
        assert not other.any()
    standfast.save(path, {"a": torch.ones(3), "b": torch.ones(3)})
    VarMap({"a": weight, "b": weight}).load(path)
    assert weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize("is_new", [False, True])
def test_a_damaged_file_changes_and_fills_nothing(is_new, tmp_path):
    path = tmp_path / "w.safetensors"
    VarMap({"a": torch.ones(2), "b": torch.ones(3)}).save(path)
    flip(path)
    state = VarMap() if is_new else VarMap({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(errors.DigestMismatch, match="'b'"):
        state.load(path)
    assert len(state) == (0 if is_new else 2)
    assert not any(value.any() for value in state.values())


def test_an_empty_varmap_is_filled_from_a_file(tmp_path):
    path, varmap, made = tmp_path / "w.safetensors", VarMap(), model(1)
    varmap.save(path)
    varmap.load(path)
    assert dict(varmap) == {}
    VarMap(made).save(path)
    varmap.load(path)
    assert bits(varmap) == bits(made)
    other = GPT(TINY)
    other.load_state_dict(varmap)
    assert bits(other) == bits(made)
    varmap["wte.weight"].zero_()
    varmap.load(path)  # in place now
    assert bits(varmap) == bits(made)


def test_an_empty_varmap_is_filled_from_a_model_and_by_name(tmp_path):
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
def test_a_file_of_another_program_is_loaded_with_a_warning(tmp_path, varmap):
    standfast.save(tmp_path / "w.safetensors", {"a": torch.ones(2)}, extras=False)
    with pytest.warns(errors.NotVerified) as caught:
        varmap.load(tmp_path / "w.safetensors")
    assert caught[0].filename == __file__
    assert varmap["a"].tolist() == [1, 1]


def test_what_has_no_parameters_is_refused():
    for given in ("model.safetensors", 5, [torch.zeros(2)]):
        with pytest.raises(errors.BadOption, match=type(given).__name__):
            VarMap(given)

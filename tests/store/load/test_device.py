"""A checkpoint comes to a device: made there, or into tensors that lie there, verified and once."""

import errno
import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import standfast
from standfast import Run, errors
from standfast.files.digests import CHUNK
from standfast.store.backends.memory import MemoryBackend
from standfast.store.load.loading import saved_tree
from standfast.tensors import TensorSpec
from standfast.torch import devices, dtypes
from tests.kit.devices import LateDevice, Made, put_tensors_on
from tests.kit.stores import MIB, chunks, data_path, flip, random_bytes, same


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    device = LateDevice()
    put_tensors_on(device, monkeypatch)
    return device


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(40, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 40)
    return torch.nn.Sequential(*layers)


def _state() -> dict[str, Any]:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 40)).sum().backward()
    optimizer.step()
    tied = dict(model.named_parameters())
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {**states, "parameters": tied, "array": np.arange(5.0), "step": 7}


def _chunks(*seeds: int) -> torch.Tensor:
    return torch.from_numpy(chunks(*seeds)).view(torch.int32)  # what is of uint8 stays on the host


def _random(size: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(random_bytes(size, seed)).view(torch.int32)


def _arrived(device: LateDevice) -> int:
    return sum(piece.data.size for piece in device.incoming)


def test_a_state_comes_to_the_device_as_it_was(run, device):
    state = _state()
    run.save(1, state)
    assert same(run.load(device="cpu"), state)
    assert not device.incoming
    loaded = run.load(device="late")
    assert same(loaded, state)
    assert _arrived(device) == sum(
        spec.nbytes
        for name, spec in run.checkpoint(1).tensors.items()
        # The parameters are those of the model, and arrays stay on the host.
        if not name.startswith("parameters") and name != "array"
    )
    parameter, weight = loaded["parameters"]["0.weight"], loaded["model"]["0.weight"]
    assert type(parameter) is torch.nn.Parameter
    assert parameter.is_leaf
    assert parameter.data_ptr() == weight.data_ptr()


def test_an_unknown_device_or_one_beside_a_tree_or_an_odd_cast_is_refused(run, device):
    run.save(1, {"w": torch.arange(4.0)})
    for match, options in (
        ("late:0", {"device": "cuda:7"}),
        ("into", {"into": {"w": torch.zeros(4)}, "device": "late"}),
        ("int8", {"cast": "int8"}),
    ):
        with pytest.raises(errors.BadOption, match=match):
            run.load(**options)


@pytest.mark.parametrize("cast", [None, "bfloat16", torch.bfloat16])
def test_views_come_back_within_what_they_shared(run, device, cast):
    x, overlapping = torch.arange(24.0).reshape(4, 6), torch.arange(10.0)
    state = {"x": x, "columns": x.T, "row": x[2], "every": x[1:3, ::2]}
    state |= {"first": overlapping[:7], "last": overlapping[3:]}
    run.save(1, state)
    dtype = torch.float32 if cast is None else torch.bfloat16
    loaded = run.load(device="late", cast=cast)
    expected = {name: value.to(dtype) for name, value in state.items()}
    assert same({name: value.clone() for name, value in loaded.items()}, expected)
    loaded["x"][2, 2] = 100
    loaded["first"][4] = 200
    assert loaded["columns"][2, 2] == loaded["row"][2] == loaded["every"][1, 1] == 100
    assert loaded["last"][1] == 200


def test_one_memory_of_several_dtypes_is_tied_or_cast_apart(run, device):
    x = torch.arange(6.0)
    run.save(1, {"x": x, "bits": x.view(torch.int32), "tail": x[2:]})
    loaded = run.load(device="late")
    loaded["x"][3] = -1
    assert loaded["bits"][3] == x.new_tensor([-1]).view(torch.int32)[0]
    assert loaded["tail"][1] == -1
    cast = run.load(device="late", cast="float16")
    assert same(cast["x"], x.half())
    assert same(cast["bits"], x.view(torch.int32))
    assert same(cast["tail"], x[2:].half())


@pytest.mark.parametrize("cast", [None, "float64"])
def test_a_tensor_at_an_odd_byte_is_apart(run, device, cast):
    memory = random_bytes(41)
    odd = torch.from_numpy(memory[1:].view(np.int32))
    run.save(1, {"memory": memory, "odd": odd, "whole": torch.from_numpy(memory)})
    loaded = run.load(device="late", cast=cast)
    assert same(loaded["odd"], odd)
    assert np.array_equal(loaded["memory"], memory)
    assert np.array_equal(loaded["whole"], memory)


@pytest.mark.parametrize("name", ["late", None])
def test_a_cast_changes_usual_floats_alone(run, device, name):
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)
    others = (torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)
    kept = {str(dtype): x.to(dtype) for dtype in others}
    cast = {str(dtype): x.to(dtype) for dtype in (torch.float64, torch.half, torch.bfloat16)}
    single, array = torch.nn.Parameter(x.float()), x.float().numpy()
    run.save(1, {**kept, **cast, "single": single, "array": array})
    loaded = run.load(device=name, cast="bfloat16")
    assert same(loaded.pop("single"), torch.nn.Parameter(x.float().bfloat16()))
    assert same(loaded.pop("array"), array.astype(ml_dtypes.bfloat16))
    assert same(loaded, kept | {name: each.bfloat16() for name, each in cast.items()})


def test_ties_outlast_a_cast_on_the_host(run):
    x = np.arange(8.0)
    weight = torch.arange(12.0).reshape(3, 4)
    run.save(1, {"x": x, "tail": x[5:], "weight": weight, "turned": weight.T})
    loaded = run.load(cast="float16")
    assert loaded["x"].dtype == np.float16
    loaded["x"][6] = 100
    loaded["weight"][1, 2] = 200
    assert loaded["tail"].tolist() == [5, 100, 7]
    assert loaded["turned"][2, 1] == 200
    assert loaded["weight"].data_ptr() % 64 == 0


def test_extents_in_several_files_come_together(run, device):
    size = CHUNK // 4
    first = torch.arange(3 * size, dtype=torch.float32)
    run.save(1, {"x": first})
    second = torch.cat([first[:size], -first[size : 2 * size], first[2 * size :], first[:9]])
    run.save(2, {"x": second})
    assert len(run.checkpoint(2).head.files) == 2
    given = torch.zeros_like(second)
    run.load(2, into={"x": given})
    for found in (run.load(device="late")["x"], given):
        assert torch.equal(found, second)
    assert same(run.load(2, device="late", cast="bfloat16")["x"], second.bfloat16())


def test_what_is_tied_and_wanted_in_two_places_comes_to_both(run, device):
    x = torch.arange(6.0)
    run.save(1, {"here": x, "there": x})
    loaded = run.checkpoint(1).state_with(
        saved_tree(run.checkpoint(1), None),
        lambda path: None,
        lambda path: device if path == ("there",) else None,
    )
    assert same(loaded, {"here": x, "there": x})
    assert loaded["here"].data_ptr() != loaded["there"].data_ptr()
    assert device.incoming[0].target.data_ptr() == loaded["there"].data_ptr()


def test_each_byte_is_read_once(run, device, seams):
    x = _random(3 * MIB)
    run.save(1, {"x": x, "tied": x, "y": _random(MIB, 1)})
    sizes = []

    def counted(preadv: Any, fd: int, buffers: Any, *at: int) -> int:
        sizes.append(preadv(fd, buffers, *at))
        return sizes[-1]

    seams.system(os, preadv=counted)
    run.load(device="late")
    assert 4 * MIB <= sum(sizes) < 4 * MIB + 16384


def test_only_the_files_of_a_part_are_opened(run, device):
    model = {"w": _random(MIB), "b": torch.arange(3)}
    run.save(1, {"model": model, "optimizer": {"m": _random(MIB, 1)}})
    flip(data_path(run, 1, "optimizer"))
    assert same(run.load(part="model"), model)
    data_path(run, 1, "optimizer").unlink()
    assert same(run.load("latest", part="model", device="late"), model)
    into = {name: torch.zeros_like(value) for name, value in model.items()}
    run.load(part="model", into=into)
    assert same(into, model)
    with pytest.raises(errors.MissingData):
        run.load(1, part="optimizer")


def test_a_part_may_be_a_plain_value_and_must_be_there(run):
    run.save(1, _state())
    assert run.load(part="step") == run.checkpoint(1).state(part="step") == 7
    with pytest.raises(errors.StateMismatch, match=r"'modle'.*'model', 'optimizer'"):
        run.load(part="modle")
    run.save(2, np.arange(3))
    with pytest.raises(errors.StateMismatch, match="model"):
        run.load(part="model")


def test_latest_falls_back_with_all_options(run, device):
    run.save(1, {"model": {"w": torch.full((100_000,), 1.5)}, "n": 1})
    run.save(2, {"model": {"w": torch.full((100_000,), 2.5)}, "n": 2})
    flip(data_path(run, 2))
    with pytest.warns(errors.FellBack):
        loaded = run.load(device="late", cast="float16", part="model")
    assert same(loaded, {"w": torch.full((100_000,), 1.5, dtype=torch.float16)})
    with pytest.raises(errors.DigestMismatch, match=r"model\.w"):
        run.load(2, device="late")


def test_tensors_on_the_device_are_filled(run, device, monkeypatch):
    saved, model = _model(), _model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    run.save(1, {"model": saved.state_dict(), "step": 3, "a": np.arange(3.0)})
    made = Made(device, monkeypatch)
    array = np.zeros(3)
    tree = {"model": model.state_dict(), "step": 0, "a": array}
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    assert run.load(1, into=tree) is tree
    assert same(model.state_dict(), saved.state_dict())
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == before
    assert (tree["step"], tree["a"] is array, array.tolist()) == (3, True, [0, 1, 2])
    assert not made.specs, "no temporary tensor is made"
    of_device = [value for value in model.state_dict().values() if value.numel() > 1]
    assert _arrived(device) == sum(value.nbytes for value in of_device)


def test_parameters_are_filled_without_a_trace(run, device):
    x = torch.arange(6.0).reshape(2, 3)
    run.save(1, {"w": x, "turned": x.clone()})
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    turned = torch.zeros(3, 2, requires_grad=True)
    run.load(1, into={"w": parameter, "turned": turned.T})
    assert torch.equal(parameter.detach(), x)
    assert torch.equal(turned.detach().T, x)
    assert parameter.requires_grad
    assert parameter.grad_fn is None
    assert turned.is_leaf


def test_targets_of_any_strides_go_through_one_temporary_tensor(run, device, monkeypatch, seams):
    x = torch.randn(6, 4, 3, 5)
    run.save(1, {"a": x, "b": x + 1, "c": x[..., 0].clone()})
    base = torch.zeros(6, 4, 6)
    targets = {
        "a": torch.zeros_like(x).to(memory_format=torch.channels_last),
        "b": torch.zeros(5, 3, 4, 6).permute(3, 2, 1, 0),
        "c": base[:, :, ::2],
    }
    seams.bound("temporary tensors", x.nbytes)
    made = Made(device, monkeypatch)
    run.load(1, into=targets)
    assert same(targets, {"a": x, "b": x + 1, "c": x[..., 0].clone()})
    assert not base[:, :, 1::2].any(), "nothing beside the target was written"
    assert [spec.shape for spec in made.specs] == [x.shape, x.shape, (6, 4, 3)]
    assert max(made.before_each) <= 1, "one at a time, and the one that the thread keeps"


def test_targets_tied_as_they_were_saved_are_filled_once(run, device, monkeypatch):
    x = torch.arange(24.0).reshape(4, 6)
    run.save(1, {"row": x[1], "x": x, "again": x, "turned": x.T})
    y = torch.zeros(4, 6)
    made = Made(device, monkeypatch)
    run.load(1, into={"row": y[1], "x": y, "again": y, "turned": y.T})
    assert torch.equal(y, x)
    assert _arrived(device) == x.nbytes
    wide = torch.zeros(4, 6, dtype=torch.float64)
    run.load(1, into={"x": wide, "row": wide[1]}, cast="float64", strict=False)
    assert torch.equal(wide, x.double())
    assert not made.specs


def test_targets_that_are_apart_each_get_what_was_tied(run, device):
    x, flat = torch.arange(24.0).reshape(4, 6), torch.arange(10.0)
    state = {"x": x, "again": x, "turned": x.T, "first": flat[:7], "last": flat[3:]}
    run.save(1, state)
    targets = {name: torch.zeros(each.shape) for name, each in state.items()}
    run.load(1, into=targets)
    assert same(targets, state)
    assert _arrived(device) == x.nbytes + flat.nbytes


@pytest.mark.parametrize("late", [True, False])
def test_of_tied_targets_the_last_counts(run, monkeypatch, late):
    if late:
        put_tensors_on(LateDevice(), monkeypatch)
    run.save(1, {"a": torch.full((4,), 1.0), "b": torch.full((4,), 2.0), "c": torch.ones(3) * 3})
    x, y = torch.zeros(4), torch.zeros(6)
    run.load(1, into={"b": x, "a": x, "c": y[3:]}, strict=False)
    assert x.tolist() == [1] * 4, "in the order of the given tree"
    run.load(1, into={"c": y[:3], "b": y[2:], "a": y[1:5]}, strict=False)
    assert y.tolist() == [3, 1, 1, 1, 1, 2]


def test_a_target_takes_an_array_of_any_strides(run, device):
    x = np.arange(12.0)
    run.save(1, {"back": x[::-1]})
    for dtype, cast in ((torch.float64, None), (torch.float32, "float32")):
        target = torch.zeros(12, dtype=dtype)
        run.load(1, into={"back": target}, cast=cast)
        assert target.tolist() == x[::-1].tolist()


@pytest.mark.parametrize("late", [True, False])
def test_targets_have_the_cast_dtype(run, monkeypatch, late):
    if late:
        put_tensors_on(LateDevice(), monkeypatch)
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    run.save(1, {"x": x, "row": x[2], "turned": x.T, "n": torch.arange(3)})
    targets = {
        "x": torch.zeros(4, 6, dtype=torch.bfloat16),
        "row": torch.zeros(6, dtype=torch.bfloat16),
        "turned": torch.zeros(4, 6, dtype=torch.bfloat16).T,
        "n": torch.zeros(3, dtype=torch.int64),
    }
    run.load(1, into=targets, cast="bfloat16")
    y = x.bfloat16()
    assert same(targets, {"x": y, "row": y[2], "turned": y.T, "n": torch.arange(3)})
    with pytest.raises(errors.StateMismatch, match=r"float32 .*bfloat16"):
        run.load(1, into={**targets, "x": torch.zeros(4, 6)}, cast="bfloat16")


def _damaged(run: Run, step: int = 1, part: str = "y") -> dict[str, Any]:
    """A checkpoint in which a part is damaged, and zeros to be filled with it."""
    x, y = _chunks(1, 2), _chunks(3)
    run.save(step, {"x": {"w": x}, "y": {"w": y}, "n": 1, "host": {"a": random_bytes(MIB)}})
    flip(data_path(run, step, part))
    into = {"x": {"w": torch.zeros_like(x)}, "y": {"w": torch.zeros_like(y)}}
    return {**into, "n": 0, "host": {"a": np.zeros(MIB, np.uint8)}}


def test_damage_midway_is_told_and_no_damaged_chunk_arrives(run, device):
    tree = _damaged(run)
    with pytest.raises(errors.DigestMismatch, match="late:0") as caught:
        run.load(1, into=tree)
    assert caught.value.tensors == ("y.w",)
    assert torch.equal(tree["x"]["w"], _chunks(1, 2)), "it came before"
    assert not tree["y"]["w"].any()
    assert not tree["host"]["a"].any()
    assert tree["n"] == 0


@pytest.mark.parametrize(("part", "strict"), [("y", False), ("host", True)])
def test_without_strict_and_on_the_host_everything_is_verified_first(run, device, part, strict):
    tree = _damaged(run, part=part)
    with pytest.raises(errors.DigestMismatch):
        run.load(1, into=tree, strict=strict)
    assert not device.incoming
    assert not tree["x"]["w"].any()


def test_a_fallback_that_does_not_fit_tells_what_was_filled(run, device):
    run.save(1, {"other": _chunks(9)})
    tree = _damaged(run, 2)
    with pytest.raises(errors.StateMismatch, match="late:0"):
        run.load(into=tree)
    assert torch.equal(tree["x"]["w"], _chunks(1, 2)), "it came before the damage was found"


@pytest.mark.parametrize("made", [True, False])
def test_a_copy_that_fails_is_raised_as_it_is(run, device, made):
    run.save(1, {"x": _chunks(1, 2, 3)})
    run.save(2, {"x": _chunks(4, 5, 6)})
    device.fails_after = 1
    tree = {"x": torch.zeros_like(_chunks(1, 2, 3))}
    with pytest.raises(errors.CopyFailed, match="late:0"):
        run.load(device="late") if made else run.load(into=tree)


def test_arrays_stay_on_the_host(device):
    run = standfast.Store(MemoryBackend()).run("a")
    x = np.arange(6.0)
    run.save(1, {"array": x, "tensor": torch.from_numpy(x), "part": x[2:]})
    loaded = run.load(device="late")
    assert type(loaded["array"]) is np.ndarray
    assert loaded["tensor"].tolist() == loaded["array"].tolist() == x.tolist()
    assert np.shares_memory(loaded["array"], loaded["part"])
    assert _arrived(device) == x.nbytes, "only the tensor went to the device"


def test_a_disk_that_fails_tells_what_was_filled(run, device, seams):
    run.save(1, {"x": {"w": _chunks(1)}, "y": {"w": _chunks(2)}})
    path = str(data_path(run, 1, "y"))

    def failing(preadv: Any, fd: int, *where: Any) -> int:
        if os.readlink(f"/proc/self/fd/{fd}") == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return int(preadv(fd, *where))

    seams.system(os, preadv=failing)
    tree = {name: {"w": torch.zeros_like(_chunks(1))} for name in "xy"}
    with pytest.raises(errors.UnreadableFile, match="late:0"):
        run.load(1, into=tree)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (0,)])
def test_a_tensor_of_one_element_or_none_may_have_any_stride(shape):
    tensor = torch.full((12,), 5.0).as_strided(shape, [7] * len(shape), 3)
    spec = TensorSpec("float32", shape)
    data = torch.full(shape, 2.5).reshape(-1).view(torch.uint8)
    devices._put(data, tensor, 0, torch.float32)
    assert tensor.tolist() == torch.full(shape, 2.5).tolist()
    source = devices.DeviceSource(tensor, spec, None)
    assert torch.equal(source.on_device(0, spec.nbytes), data)
    seen = dtypes.view(tensor, spec, 0, [4] * len(shape))
    assert seen.data_ptr() == tensor.data_ptr()
    assert torch.equal(seen, tensor)

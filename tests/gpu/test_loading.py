"""Loads to a real GPU: every dtype, casts, tensors that are there already, and damage."""

from pathlib import Path
from typing import Any

import pytest
import torch

import standfast
from standfast.errors import DigestMismatch
from tests.gpu.gpu import DEVICE, ON_GPU, checkpointer, differing, of_all_kinds, of_bytes
from tests.kit.stores import flip

pytestmark = ON_GPU
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def load(path: Path, **options: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = standfast.load(
        path, framework="torch", device=DEVICE, **options
    )
    return found


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "npz", "tenzor"])
def test_every_dtype_comes_to_lie_on_the_gpu_as_it_was(tmp_path, suffix):
    tensors = of_all_kinds()
    if suffix == "safetensors":  # which has no dtype for these
        tensors = {k: v for k, v in tensors.items() if v.dtype != torch.complex128}
    elif suffix != "pt":
        tensors = {"weight": torch.randn(3000, 3000, device=DEVICE)}
    standfast.save(tmp_path / f"all.{suffix}", tensors)
    found = load(tmp_path / f"all.{suffix}")
    assert {each.device.type for each in found.values()} == {DEVICE}
    assert [*differing(tensors, found)] == []


@pytest.mark.parametrize("cast", ["bfloat16", torch.float16], ids=str)
def test_a_cast_is_that_of_torch(tmp_path, cast):
    torch.manual_seed(1)
    dtype = cast if isinstance(cast, torch.dtype) else getattr(torch, cast)
    tensors = {
        str(each): (torch.randn(2_100_003, dtype=torch.float64, device=DEVICE) * 100).to(each)
        for each in FLOATS
    }
    tensors["numbers"] = torch.arange(100, device=DEVICE)
    standfast.save(tmp_path / "floats.safetensors", tensors)
    expected = {k: v.to(dtype) if v.dtype in FLOATS else v for k, v in tensors.items()}
    assert [*differing(expected, load(tmp_path / "floats.safetensors", cast=cast))] == []


def test_tensors_that_are_there_are_filled_where_they_lie(tmp_path):
    tensors = {"weights": of_all_kinds()}
    tensors["weights"]["one of two"] = torch.tensor([3.0, 5.0], device=DEVICE)[::2]
    with checkpointer(tmp_path, **tensors) as ckpt:
        ckpt.step()
    targets = {"weights": of_all_kinds(seed=1)}
    targets["weights"]["one of two"] = torch.zeros(2, device=DEVICE)[::2]
    assert [*differing(tensors["weights"], targets["weights"])] != []
    addresses = {name: each.data_ptr() for name, each in targets["weights"].items()}
    state = {**targets, "random": ckpt.run.load()["random"]}
    found = ckpt.run.load(into=state)
    assert [*differing(tensors["weights"], targets["weights"])] == []
    assert addresses == {name: each.data_ptr() for name, each in found["weights"].items()}


def test_tied_tensors_come_back_tied_and_a_part_alone(tmp_path):
    weight = torch.randn(500, 300, device=DEVICE)
    model = {"head": weight, "embedding": weight, "turned": weight.t(), "row": weight[7]}
    with checkpointer(tmp_path, model=model, optimizer={"moment": torch.randn(7)}) as ckpt:
        ckpt.step()
    found = ckpt.run.load(part="model", device=DEVICE)
    assert [*differing(model, found)] == []
    assert found["head"].device.type == DEVICE
    found["head"].zero_()
    assert not any(each.any() for each in found.values())


def test_damage_is_found_and_named(tmp_path):
    path = tmp_path / "state.safetensors"
    tensors = {name: of_bytes(torch.float32, 5_000_000) for name in ("first", "second", "third")}
    standfast.save(path, tensors)
    flip(path, path.stat().st_size // 2)
    with pytest.raises(DigestMismatch) as caught:
        load(path)
    assert caught.value.tensors == ("second",)


def test_a_load_takes_little_memory_beyond_what_is_loaded(tmp_path):
    path = tmp_path / "state.safetensors"
    standfast.save(path, {f"{n}": torch.zeros(1 << 26, device=DEVICE) for n in range(8)})
    for cast in (None, "bfloat16"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        found = load(path, cast=cast)
        now = torch.cuda.memory_allocated()
        assert torch.cuda.max_memory_allocated() - now <= 512_000_000
        del found


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_a_resume_puts_all_of_an_optimizer_where_it_was(tmp_path, fused):
    def program() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(300, 400, device=DEVICE)
        return model, torch.optim.AdamW(model.parameters(), fused=fused)

    model, optimizer = program()
    model(torch.randn(3, 300, device=DEVICE)).sum().backward()
    optimizer.step()
    with checkpointer(tmp_path, model=model, optimizer=optimizer) as ckpt:
        ckpt.step()
    again, restored = program()
    with checkpointer(tmp_path, model=again, optimizer=restored) as ckpt:
        assert ckpt.resume_report.exact, ckpt.resume_report
    assert [*differing(model.state_dict(), again.state_dict())] == []
    assert [*differing(optimizer.state_dict(), restored.state_dict())] == []
    devices = [{k: v.device for k, v in each.items()} for each in optimizer.state.values()]
    found = [{k: v.device for k, v in each.items()} for each in restored.state.values()]
    assert devices == found

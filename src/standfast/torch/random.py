"""The states of torch's random generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from standfast.errors import BadField, StateMismatch


def random_states() -> dict[str, Any]:
    """The state of the CPU's generator, and those of all CUDA devices if CUDA is in use."""
    states: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random_states(states: Any) -> list[str]:
    """Put the states of the generators of the CPU and of the CUDA devices that are here back."""
    if not isinstance(states, Mapping) or not {"cpu"} <= set(states) <= {"cpu", "cuda"}:
        raise BadField("torch's random states are 'cpu' and, where CUDA was used, 'cuda'")
    devices = states.get("cuda", [])
    if not isinstance(devices, list):
        raise BadField(f"torch's CUDA states are a list, not a {type(devices).__name__}")
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cpu = _checked_state(states["cpu"], torch.device("cpu"))
    cuda = [
        _checked_state(state, torch.device("cuda", number) if number < here else None)
        for number, state in enumerate(devices)
    ]
    torch.set_rng_state(cpu)
    for number, state in enumerate(cuda[:here]):
        torch.cuda.set_rng_state(state, number)
    return _differences(len(devices), here)


def _differences(saved: int, here: int) -> list[str]:
    if saved and saved != here:
        return [
            f"the checkpoint has the states of {saved} CUDA generators, and there are {here} "
            f"devices here: {min(saved, here)} were put back"
        ]
    if not saved and torch.cuda.is_initialized():
        return ["the checkpoint has no states of CUDA's generators"]
    return []


def generator_state(value: Any) -> Any | None:
    """The state of a torch.Generator, and the kind of device that it is for."""
    if not isinstance(value, torch.Generator):
        return None
    return {"device": value.device.type, "state": value.get_state()}


def restore_generator(value: Any, state: Any) -> None:
    """Put the state of a torch.Generator back into one for the same kind of device."""
    if not isinstance(state, Mapping) or set(state) != {"device", "state"}:
        raise BadField("the state of a torch.Generator has a 'device' and a 'state'")
    if not isinstance(state["device"], str):
        raise BadField(f"a device is text, not a {type(state['device']).__name__}")
    if state["device"] != value.device.type:
        raise StateMismatch(
            f"the state is that of a torch.Generator on {state['device']!r:.40}, and this one is "
            f"on {value.device.type!r}: make it on the same kind of device"
        )
    value.set_state(_checked_state(state["state"], value.device))


def _checked_state(state: Any, device: torch.device | None) -> torch.Tensor:
    """A copy of a state that a generator of the device takes, if that is here; else BadField."""
    if type(state) is not torch.Tensor or state.dtype != torch.uint8 or not state.is_cpu:
        raise BadField(f"torch's random states are uint8 tensors, not a {type(state).__name__}")
    copy: torch.Tensor = state.clone()  # at no offset in its storage, which torch overlooks
    if device is None:
        return copy
    try:
        torch.Generator(device).set_state(copy)
    except (RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise BadField(f"no random state of torch's generator on {device}: {reason}") from error
    # Torch trusts that these two agree, and would read beyond its 624 words: a new generator has
    # 1 left, and after that they count the same words, one down and one up.
    if device.type == "cpu":
        left, position = int(copy[8:12].view(torch.int32)), int(copy[16:24].view(torch.int64))
        if (left, position) != (1, 0) and left + position != 625:
            raise BadField(f"torch's CPU generator has {left} words left at position {position}")
    return copy

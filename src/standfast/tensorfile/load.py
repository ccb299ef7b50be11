"""Load all tensors of a file, verified."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from standfast.errors import BadOption, NotVerified, within_memory
from standfast.files.device_reader import stream
from standfast.tensorfile.open import Array, TensorFile
from standfast.tensors import framework as framework_named
from standfast.tensors.adapter import Framework
from standfast.tensors.cast import cast_array, cast_spec, castable_dtype
from standfast.tensors.devices import Device, Incoming
from standfast.tensors.frameworks import plain


def load(
    source: str | os.PathLike[str] | BinaryIO,
    framework: str = "numpy",
    verify: bool = True,
    mapped: bool | None = None,
    *,
    names: Sequence[str] | None = None,
    tensors_only: bool = False,
    device: Any = None,
    cast: Any = None,
) -> dict[str, Any]:
    """Load all tensors of a file as writable arrays, or as tensors of another framework.

    Every byte is checked against the digests in the file; one that holds none loads with a
    NotVerified warning. The tensors lie in a private mapping of the file: what is written to
    them stays in memory. `mapped=False` reads them into fresh memory instead, which is slower
    and does not care what becomes of the file. A binary stream is read as far as its content
    reaches. `names` and `tensors_only` are those of `open`.

    `device` is where the tensors of a framework come to lie, such as `cuda` or `cuda:1`; each
    part of the file is on its way there, verified, while the next ones are read. With `cast`, the
    name of a floating-point dtype such as `bfloat16`, all tensors of float64, float32, bfloat16
    and float16 become that, and values beyond it infinite.

    >>> weights = standfast.load("model.safetensors", framework="torch")
    >>> weights = standfast.load("model.safetensors", "torch", device="cuda", cast="bfloat16")
    """
    with within_memory():
        adapter = None if framework == "numpy" else framework_named(framework)
        target = _device(device, adapter)
        dtype = None if cast is None else castable_dtype(cast)
        with TensorFile(
            source,
            mapped=mapped,
            writable=True,
            verify=verify,
            names=names,
            tensors_only=tensors_only,
        ) as file:
            found = _arrays(file, dtype) if target is None else _on_device(file, target, dtype)
            if verify and not file.has_digests:
                checked = (
                    "only its CRC-32 sums were checked" if file.has_crcs else "nothing was verified"
                )
                warnings.warn(
                    f"{file.path} holds no digests: it was loaded, but {checked}",
                    NotVerified,
                    stacklevel=2,
                )
            if adapter is None or target is not None:
                return found
            return {
                name: adapter.tensor(array, cast_spec(file.spec(name), dtype))
                for name, array in found.items()
            }


def _device(device: Any, adapter: Framework | None) -> Device | None:
    """What the argument of that name means; None for the host."""
    name = device if isinstance(device, str) else plain(device)
    if device is None or name == "cpu":
        return None
    if name is None:
        raise BadOption(f"device={device!r}: give the name of a device, such as 'cuda:0'")
    if adapter is None:
        raise BadOption(
            f"device={name!r}: NumPy's arrays lie in the memory of the host; load with "
            "framework='torch', or leave the device out"
        )
    return adapter.device(name)


def _arrays(file: TensorFile, dtype: str | None) -> dict[str, Array]:
    arrays = file.arrays()
    for name in arrays:  # one by one: what was cast is let go at once
        arrays[name] = cast_array(arrays[name], file.spec(name), dtype)
    return arrays


def _on_device(file: TensorFile, device: Device, dtype: str | None) -> dict[str, Any]:
    tensors = {name: device.empty(cast_spec(file.spec(name), dtype)) for name in file}
    stretches = {name: file.stretch(name, tensor) for name, tensor in tensors.items()}
    stream(device, [stretch for stretch in stretches.values() if stretch is not None])
    for name, stretch in stretches.items():
        if stretch is None:  # compressed, or in another order: the host sees to it
            array = cast_array(file[name], file.spec(name), dtype)
            _copy_in(device, array, tensors[name])
    return tensors


def _copy_in(device: Device, array: Array, tensor: Any) -> None:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if data.size:
        device.copy_in([Incoming(data, tensor, 0, "uint8")]).wait()

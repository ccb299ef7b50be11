"""The parameters of a model by their names, saved and loaded in place."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from standfast.errors import BadOption, NotVerified, StateMismatch, shortened
from standfast.packages.remote.places import as_tensors, written_here
from standfast.store.tree.aliases import check_shared
from standfast.tensorfile.open import TensorFile
from standfast.tensorfile.save import save
from standfast.tensors import fill, framework, source_of, why_not_fillable


class VarMap(MutableMapping[str, Any]):
    """Name → parameter, of a model or of any mapping; the parameters are the model's own.

    One that is created empty is filled by name, with `update`, or from a file.

    >>> state = VarMap(model)
    >>> state.save("before.safetensors")
    >>> state.load("before.safetensors")  # the model has its old weights again
    >>> state = VarMap()
    >>> state.load("before.safetensors")  # tensors of torch
    """

    def __init__(self, parameters: Any = None) -> None:
        self._is_of_file = parameters is None
        """Whether `load` may add tensors, as long as there are none."""
        if parameters is None:
            parameters = {}
        elif not isinstance(parameters, Mapping):
            if not hasattr(parameters, "named_parameters"):
                raise BadOption(
                    f"a {type(parameters).__name__} has no parameters: give a model, or a mapping "
                    "of names to tensors"
                )
            parameters = parameters.named_parameters()
        self._parameters: dict[str, Any] = dict(parameters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save all parameters to a file, durably."""
        with written_here(path) as target:
            save(target, self._parameters)

    def load(self, path: str | os.PathLike[str], *, verify: bool = True) -> None:
        """Fill all parameters from a file, every byte verified; if this raises, none is changed.

        A `VarMap()` without parameters gets those of the file.
        """
        is_new = self._is_of_file and not self._parameters
        with TensorFile(as_tensors(path), writable=is_new, verify=verify) as file:
            if is_new:
                make, found = framework("torch").tensor, file.arrays()
                self._parameters = {name: make(found[name], file.spec(name)) for name in found}
            else:
                _check(file, self._parameters)
                arrays = file.arrays()
                check_shared(self._parameters, arrays)
                for name, parameter in self._parameters.items():
                    fill(parameter, arrays[name], file.spec(name))
        if verify and not file.has_digests:
            text = f"{file.path} holds no digests: it was loaded, but nothing was verified"
            warnings.warn(text, NotVerified, stacklevel=2)

    def __getitem__(self, name: str) -> Any:
        return self._parameters[name]

    def __setitem__(self, name: str, parameter: Any) -> None:
        source_of(parameter)  # raises for what is not a tensor
        self._parameters[name] = parameter

    def __delitem__(self, name: str) -> None:
        del self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __repr__(self) -> str:
        return f"<VarMap of {len(self):,} parameters>"


def _check(file: TensorFile, parameters: Mapping[str, Any]) -> None:
    """Raise StateMismatch unless the file holds these parameters and no others."""
    problems = [f"{shortened(name)!r} is in the file alone" for name in file.keys() - parameters]
    for name, parameter in parameters.items():
        if name not in file:
            problems.append(f"{shortened(name)!r} is not in the file")
            continue
        have, found = source_of(parameter).spec, file.spec(name)
        if have != found:
            problems.append(
                f"{shortened(name)!r} is {found.dtype} {list(found.shape)} in the file and "
                f"{have.dtype} {list(have.shape)} here"
            )
        elif why := why_not_fillable(parameter):
            problems.append(f"{shortened(name)!r}: {why}")
    if problems:
        more = "" if len(problems) <= 5 else f", and {len(problems) - 5:,} more"
        raise StateMismatch(f"{file.path} is of another model: {'; '.join(problems[:5])}{more}")

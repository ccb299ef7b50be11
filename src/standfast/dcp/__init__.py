"""torch.distributed.checkpoint on a store, and the folders that it writes by itself.

>>> from standfast import dcp as standfast_dcp
>>> dcp.save(state_dict, storage_writer=standfast_dcp.Writer("experiments", "gpt", step=100))
>>> dcp.load(state_dict, storage_reader=standfast_dcp.Reader("experiments", "gpt", "latest"))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from standfast.dcp.folder.folder import DCPFolder, read

if TYPE_CHECKING:
    from standfast.dcp.reader import Reader
    from standfast.dcp.writer import Writer

_LATER = {"Reader": "standfast.dcp.reader", "Writer": "standfast.dcp.writer"}
"""Imported on first use: a folder is read without torch.distributed."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'standfast.dcp' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


__all__ = ["DCPFolder", "Reader", "Writer", "read"]

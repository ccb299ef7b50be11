"""torch.distributed.checkpoint on a store, and folders that it wrote by itself.

>>> from standfast.adapters import dcp as standfast_dcp
>>> dcp.save(state_dict, storage_writer=standfast_dcp.Writer("experiments", "gpt", step=100))
>>> dcp.load(state_dict, storage_reader=standfast_dcp.Reader("experiments", "gpt", "latest"))
"""

from __future__ import annotations

from standfast.adapters.dcp_folders import DCPFolder, read
from standfast.adapters.dcp_reader import Reader
from standfast.adapters.dcp_writer import Writer

__all__ = ["DCPFolder", "Reader", "Writer", "read"]

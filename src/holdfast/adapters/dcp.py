"""torch.distributed.checkpoint on a store, and folders that it wrote by itself.

>>> from holdfast.adapters import dcp as holdfast_dcp
>>> dcp.save(state_dict, storage_writer=holdfast_dcp.Writer("experiments", "gpt", step=100))
>>> dcp.load(state_dict, storage_reader=holdfast_dcp.Reader("experiments", "gpt", "latest"))
"""

from __future__ import annotations

from holdfast.adapters.dcp_folders import DCPFolder, read
from holdfast.adapters.dcp_reader import Reader
from holdfast.adapters.dcp_writer import Writer

__all__ = ["DCPFolder", "Reader", "Writer", "read"]

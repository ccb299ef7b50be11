"""Save in another process: torchrun … process.py FOLDER"""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from tests.dcp.programs.checks import same, setting, whole
from tests.parallel.programs import torch_world


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch_world.begin()
    now = setting(folder, dist.get_rank())
    for step in (1, 2):
        expected = whole(now.state())
        future: Any = dcp.async_save(
            now.state(),
            storage_writer=now.writer(step),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        now.train()
        future.result(timeout=100)
        assert same(now.run.load("latest"), expected)
        assert now.run.checkpoint().step == step
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

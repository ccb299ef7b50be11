"""Ranks of NCCL on one GPU, which save and resume together: ranks.py RANK COUNT STORE FOLDER STEPS

The program itself makes no collective call of NCCL: two ranks of it cannot share a GPU.
"""

import json
import sys
from pathlib import Path

import torch
from torch import distributed

import standfast


def main(rank: int, count: int, store: str, folder: Path, steps: int) -> None:
    distributed.init_process_group(
        "nccl", f"file://{folder / 'meeting'}", rank=rank, world_size=count
    )
    weights = torch.zeros(1 << 20, device="cuda")
    own = {"draw": torch.zeros(4, device="cuda")}
    state = standfast.TrainingState(
        weights={"common": weights}, own=standfast.per_rank({"draws": own})
    )
    torch.cuda.manual_seed(rank)
    with standfast.Checkpointer(store, state, name="ranks", every=2) as ckpt:
        for step in ckpt.steps(steps):
            weights.add_(step)
            own["draw"].add_(torch.rand(4, device="cuda"))
            ckpt.step(step)
        report = ckpt.resume_report
    result = {
        "resumed": report.step,
        "inexact": [*report.inexact],
        "common": weights.unique().tolist(),
        "own": own["draw"].tolist(),
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]))

"""A program of MPI ranks that a Checkpointer saves: mpi_walk.py STORE FOLDER STEPS [KILL_AT]"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import standfast


def main(store: str, folder: Path, steps: int, kill_at: int) -> None:
    rank = MPI.COMM_WORLD.rank
    generator = np.random.default_rng(rank)
    walk = {"common": np.zeros(1000), "position": standfast.per_rank({"here": np.zeros(3)})}
    state = standfast.TrainingState(walk=walk, generator=generator)
    with standfast.Checkpointer(store, state, name="walk", every=2) as ckpt:
        for step in ckpt.steps(steps):
            walk["common"] += step
            walk["position"].tree["here"] += generator.normal(size=3)
            ckpt.step(step)
            if step == kill_at:
                ckpt.wait()
                MPI.COMM_WORLD.Barrier()
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
        report = ckpt.resume_report
    result = {
        "resumed": report.step,
        "inexact": [*report.inexact],
        "here": walk["position"].tree["here"].tobytes().hex(),
        "common": walk["common"].tobytes().hex(),
        "asynchronous": ckpt._save_settings.asynchronous,
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

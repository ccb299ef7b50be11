"""A random walk of one array, in NumPy alone: `walk.py --steps 40 --every 4`.

`--leave-out` gives it the defects that a proof must find.
"""

import argparse
import random
import time

import numpy as np

import standfast


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", default="4")
    parser.add_argument("--pause", type=float, default=0.004)
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--leave-out", choices=["generator", "restoring", "seed"])
    arguments = parser.parse_args()

    model = {"position": np.zeros((4, 5)), "velocity": np.zeros((4, 5))}
    if arguments.leave_out != "seed":
        random.seed(7)
    np.random.seed(7)
    generator = np.random.default_rng(7)
    count = {"drawn": 0}
    parts = {"model": model, "generator": generator, "count": count}
    if arguments.leave_out == "generator":
        del parts["generator"]
    every = int(arguments.every) if arguments.every.isdecimal() else arguments.every
    state = standfast.TrainingState(**parts)
    with standfast.Checkpointer(
        "walks", state, every=every, hp={"seed": 7}, asynchronous=not arguments.wait
    ) as ckpt:
        if arguments.leave_out == "restoring":
            count["drawn"] = 0
        for step in ckpt.steps(arguments.steps):
            time.sleep(arguments.pause)  # a training step takes its time
            model["velocity"] += generator.standard_normal((4, 5)) + np.random.random()
            model["position"] += 0.1 * model["velocity"]
            count["drawn"] += 20
            ckpt.step(step, distance=np.linalg.norm(model["position"]))
    print(f"walked {arguments.steps} steps")


if __name__ == "__main__":
    main()

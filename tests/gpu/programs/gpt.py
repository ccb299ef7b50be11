"""A small GPT on a GPU, with dropout and tokens drawn there: `python gpt.py STORE --steps 30`."""

import argparse
import os
import random
import signal
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import standfast
from standfast.packages import GPT, Config


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--kill-at", type=int, help="after this step")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device = arguments.device
    torch.use_deterministic_algorithms(True)
    for enable in (
        torch.backends.cuda.enable_flash_sdp,
        torch.backends.cuda.enable_mem_efficient_sdp,
        torch.backends.cuda.enable_cudnn_sdp,
    ):
        enable(False)  # what is left adds up in one order only
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(42)
    with torch.device(device):
        model = GPT(Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=3, n_head=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")
    sampler = torch.Generator(device).manual_seed(7)
    state = standfast.TrainingState(model=model, optimizer=optimizer, sampler=sampler)
    with standfast.Checkpointer(arguments.store, state, name="gpt", every=5) as ckpt:
        print(f"exact {ckpt.resume_report.exact} from {ckpt.next_step}", flush=True)
        for step in ckpt.steps(arguments.steps):
            tokens = torch.randint(256, (8, 65), generator=sampler, device=device)
            tokens[:, 0] = random.randrange(256) // 2 + np.random.randint(128)
            with torch.autocast(device, torch.bfloat16):
                logits = model(tokens[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ckpt.step(step, loss=loss)
            if step == arguments.kill_at:
                ckpt.wait()
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

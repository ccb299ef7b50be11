"""A small training with optax, for processes of its own: see test_jax.py, which kills it.

`python -m tests.jax.training FOLDER kill` trains in FOLDER and is killed on its way.
`… FOLDER continue` goes on with it, trains another one without a break, and compares the two.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import standfast
from standfast.jax import Pytree
from standfast.tensors import register_framework

register_framework("jax", "standfast.jax.framework")

STEPS, EVERY, KILLED = 12, 3, 8
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


def initial(key: jax.Array) -> dict[str, Any]:
    first, second = jax.random.split(key)
    return {
        "in": {"kernel": jax.random.normal(first, (8, 32)), "bias": jnp.zeros(32)},
        "out": [jax.random.normal(second, (32, 1)).astype(jnp.bfloat16)],
    }


def loss_of(params: Any, key: jax.Array) -> jax.Array:
    x = jax.random.normal(key, (64, 8))
    hidden = jnp.tanh(x @ params["in"]["kernel"] + params["in"]["bias"])
    dropped = hidden * jax.random.bernoulli(key, 0.9, hidden.shape)
    return jnp.mean((dropped @ params["out"][0] - jnp.sin(x[:, :1])) ** 2)


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params: Any, moments: Any, key: jax.Array) -> tuple[Any, Any, Any, jax.Array]:
    key, used = jax.random.split(key)
    loss, gradients = jax.value_and_grad(loss_of)(params, used)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments, key, loss


def train(store: Path, killed: int | None = None) -> tuple[list[bytes], int]:
    """The bits of the state after all steps, and the step that it had begun behind."""
    params = initial(jax.random.key(1))
    state = standfast.TrainingState(
        params=Pytree(params), opt=Pytree(OPTIMIZER.init(params)), key=Pytree(jax.random.key(2))
    )
    with standfast.Checkpointer(store, state, name="small", every=EVERY, quiet=True) as ckpt:
        for step in ckpt.steps(STEPS):
            state.params.value, state.opt.value, state.key.value, loss = train_step(
                state.params.value, state.opt.value, state.key.value
            )
            ckpt.step(step, loss=loss)
            if step == killed:
                ckpt.wait()  # what is asked here is about the state, and not about the writing
                os.kill(os.getpid(), signal.SIGKILL)
        assert not ckpt.resume_report.inexact, ckpt.resume_report
    leaves = jax.tree.leaves([state.params.value, state.opt.value])
    words = jax.random.key_data(state.key.value)
    return [jax.device_get(leaf).tobytes() for leaf in (*leaves, words)], ckpt.resume_report.step


def main(folder: Path, action: str) -> None:
    if action == "kill":
        train(folder / "killed", KILLED)
    again, begun = train(folder / "killed")
    assert begun == KILLED // EVERY * EVERY
    whole, nothing = train(folder / "whole")
    assert nothing == 0
    assert again == whole
    metrics = [standfast.Store(folder / name).resolve("small@12").metrics for name in NAMES]
    assert metrics[0] == metrics[1]
    print(f"the same {sum(map(len, whole))} bytes")


NAMES = ("killed", "whole")

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

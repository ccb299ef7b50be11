"""JAX and optax with checkpoints: start it, kill it, start it again.

pip install ".[jax]" optax
python examples/train_jax.py --steps 1000
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

import standfast
from standfast.jax import Pytree

optimizer = optax.adamw(1e-2)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(train: dict[str, Any]) -> tuple[dict[str, Any], jax.Array]:
    """Fit a linear map to noisy data, drawn from the key in the state."""
    key, used = jax.random.split(train["key"])
    x = jax.random.normal(used, (64, 8))
    loss, gradients = jax.value_and_grad(lambda w: jnp.mean((x @ w - 1) ** 2))(train["params"])
    updates, opt = optimizer.update(gradients, train["opt"], train["params"])
    return {"params": optax.apply_updates(train["params"], updates), "opt": opt, "key": key}, loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--store", default="experiments")
    arguments = parser.parse_args()
    params = jnp.zeros((8, 1))
    train = Pytree({"params": params, "opt": optimizer.init(params), "key": jax.random.key(0)})
    state = standfast.TrainingState(train=train)
    with standfast.Checkpointer(arguments.store, state, name="jax", every=100) as ckpt:
        for step in ckpt.steps(arguments.steps):
            train.value, loss = train_step(train.value)
            ckpt.step(step, loss=loss)

"""JAX: pytrees in a training state, saved to a run and restored with their shardings.

    from standfast.jax import Pytree, restore, save

    save(run, step, {"params": params, "opt": opt_state})
    tree = restore(run, target=jax.eval_shape(init, key))

    state = standfast.TrainingState(params=Pytree(params), opt=Pytree(opt_state), key=Pytree(key))

docs/jax.md describes it. Arrays of jax also work wherever Standfast takes tensors.
"""

from standfast.jax.boxes import assembled, shards, wanted_boxes
from standfast.jax.runs import restore, save
from standfast.jax.trees import Pytree

__all__ = ["Pytree", "assembled", "restore", "save", "shards", "wanted_boxes"]

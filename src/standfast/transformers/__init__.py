"""Hugging Face Transformers: a callback that saves a Trainer's state to a store and resumes it.

    from standfast.transformers import StandfastCallback

    trainer = Trainer(model, args, callbacks=[StandfastCallback("experiments")], ...)

docs/coming-from/transformers.md describes it.
"""

from standfast.transformers.callback import StandfastCallback

__all__ = ["StandfastCallback"]

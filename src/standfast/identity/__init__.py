"""What makes two runs the same run: digests of hyperparameters, model and data.

The bytes that are hashed are given on the page `docs/identity.md`.
"""

from standfast.identity.description import recorded
from standfast.identity.identity import IGNORED, Identity, identify, is_trial
from standfast.identity.samples import is_data_state

__all__ = ["IGNORED", "Identity", "identify", "is_data_state", "is_trial", "recorded"]

"""What makes two runs the same run: digests of hyperparameters, model and data.

The bytes that are hashed are given on the page `docs/identity.md`.
"""

from standfast.identity.identity import IGNORED, Identity, identify
from standfast.identity.recorded import recorded

__all__ = ["IGNORED", "Identity", "identify", "recorded"]

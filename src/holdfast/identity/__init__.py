"""What makes two runs the same run: digests of hyperparameters, model and data.

The bytes that are hashed are given on the page `docs/identity.md`.
"""

from holdfast.identity.identity import IGNORED, Identity, identify
from holdfast.identity.recorded import recorded

__all__ = ["IGNORED", "Identity", "identify", "recorded"]

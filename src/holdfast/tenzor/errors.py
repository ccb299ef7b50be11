"""What this room refuses besides what all rooms do."""

from __future__ import annotations

from holdfast.errors import HoldfastError


class BadConfig(HoldfastError, ValueError):
    """A setting that no training can run with; the message names it."""

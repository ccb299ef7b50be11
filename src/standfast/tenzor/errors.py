"""What this room refuses besides what all rooms do."""

from __future__ import annotations

from standfast.errors import StandfastError


class BadConfig(StandfastError, ValueError):
    """A setting that no training can run with; the message names it."""

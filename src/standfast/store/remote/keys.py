"""The keys that requests to an object store are signed with."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Keys:
    """An access key and its secret. Nothing of them shows in a repr, a log or an error."""

    id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False, default=None)
    """Goes with keys that are valid for a while only."""
    until: datetime | None = None
    """When they expire; None: never."""

    def for_obstore(self) -> dict[str, Any]:
        """The same, as a credential provider of obstore returns it."""
        return {
            "access_key_id": self.id,
            "secret_access_key": self.secret,
            "token": self.token,
            "expires_at": self.until,
        }

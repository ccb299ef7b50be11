"""Where a store is, and obstore's way to it: how long requests may take, how often each is made."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final, cast
from urllib.parse import urlsplit

from standfast.errors import BadOption, shortened
from standfast.store.remote.credentials import Options
from standfast.store.remote.reasons import reason

TIMEOUT: Final = "STANDFAST_TIMEOUT"
"""The environment variable for how many seconds a request that fails is repeated."""
_SECONDS: Final = 120.0
S3: Final = frozenset({"s3", "s3a"})
BY_VERSION: Final = frozenset({"gs"})
"""Stores that replace an object under the condition of its version: its ETag alone does not do."""
_SCHEMES: Final = S3 | BY_VERSION | {"az", "azure", "abfs", "abfss", "adl"}
"""Stores with conditional writes."""
_CONTAINERS: Final = frozenset({"abfs", "abfss"})
"""Before the @ stands the container: abfss://container@account.dfs.core.windows.net/prefix."""


def checked_url(url: str) -> str:
    """A URL without a slash at its end; raises BadOption for one that is none or has a secret."""
    try:
        parts = urlsplit(url)
        # A secret may have a slash in it, and then only its beginning stands before the path.
        good = ":" not in parts.netloc.rpartition("@")[2]
    except ValueError:
        parts, good = urlsplit(""), False
    if (
        not good
        or not parts.scheme
        or not (parts.netloc or parts.path.strip("/"))
        or not url.isprintable()
    ):
        raise BadOption("a store at a URL has one like s3://bucket/prefix")
    if parts.scheme not in _SCHEMES:
        raise BadOption(
            f"{parts.scheme}://… is none of the places that can be written to: "
            f"{', '.join(f'{scheme}://' for scheme in sorted(_SCHEMES))}"
        )
    is_container = parts.scheme in _CONTAINERS and parts.password is None
    if (parts.username is not None and not is_container) or parts.query or parts.fragment:
        raise BadOption(
            f"{parts.scheme}://{parts.hostname or ''}{parts.path}: a URL of a store has no user, "
            "password, query or fragment in it: credentials come from the environment or a profile"
        )
    return url.rstrip("/")


def timeout() -> timedelta:
    """How long a request may take."""
    given = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(given) if given else _SECONDS
        if not 0.01 <= seconds <= 86_400:
            raise ValueError
    except ValueError:
        raise BadOption(f"${TIMEOUT} is {shortened(given)!r}: give a number of seconds") from None
    return timedelta(seconds=seconds)


def connect(url: str, options: Options | None, seconds: timedelta, request: timedelta) -> Any:
    """Requests that fail are repeated for so many seconds; each may take `request`."""
    from obstore.exceptions import BaseError
    from obstore.store import S3Store, from_url

    common: dict[str, Any] = {
        "client_options": {
            "timeout": request,
            "connect_timeout": min(seconds, timedelta(seconds=5)),
            **(options.client_options if options else {}),
        },
        "retry_config": {
            "max_retries": 10_000,  # as many as there is time for
            "retry_timeout": seconds,
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=5),
                "base": 3,  # with 2 it would not double
            },
        },
    }
    try:
        if options is None:
            return from_url(url, **common)
        if options.credential_provider:
            common["credential_provider"] = options.credential_provider
        parts = urlsplit(url)
        prefix, config = parts.path.strip("/") or None, cast("Any", options.config)
        return S3Store(parts.netloc, prefix=prefix, config=config, **common)
    except (BaseError, ValueError, TypeError) as error:
        raise BadOption(f"{url} cannot be opened: {reason(str(error))}") from None

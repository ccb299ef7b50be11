"""AWS Signature Version 4 of requests without a body.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from standfast.store.remote.keys import Keys

EMPTY: Final = hashlib.sha256().hexdigest()
"""The digest of no body."""
_ALGORITHM: Final = "AWS4-HMAC-SHA256"


def encoded(text: str, safe: str = "") -> str:
    """Text in a URL as S3 wants it: all but letters, digits and `-._~` as %XX."""
    return quote(text, safe=safe + "-._~")


def query_string(query: Sequence[tuple[str, str]]) -> str:
    """The query, in the order in which it is signed."""
    pairs = sorted((encoded(name), encoded(value)) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in pairs)


def signed_headers(
    method: str,
    host: str,
    path: str,
    query: Sequence[tuple[str, str]],
    keys: Keys,
    region: str,
    time: datetime,
) -> dict[str, str]:
    """The headers of a request to S3; `path` is encoded already."""
    headers = {
        "host": host,
        "x-amz-content-sha256": EMPTY,
        "x-amz-date": f"{time.astimezone(UTC):%Y%m%dT%H%M%SZ}",
    }
    if keys.token is not None:
        headers["x-amz-security-token"] = keys.token
    signature = authorization(method, path, query, headers, keys, region)
    return {**headers, "authorization": signature}


def authorization(
    method: str,
    path: str,
    query: Sequence[tuple[str, str]],
    headers: Mapping[str, str],
    keys: Keys,
    region: str,
    service: str = "s3",
) -> str:
    """The header that signs a request with these headers, whose names are in lower case."""
    request = _canonical(method, path, query, headers)
    moment = headers["x-amz-date"]
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{keys.secret}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    signature = _hmac(key, f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}").hex()
    return (
        f"{_ALGORITHM} Credential={keys.id}/{scope}, SignedHeaders={';'.join(sorted(headers))}, "
        f"Signature={signature}"
    )


def _canonical(
    method: str, path: str, query: Sequence[tuple[str, str]], headers: Mapping[str, str]
) -> str:
    lines = (f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    names = ";".join(sorted(headers))
    return "\n".join([method, path, query_string(query), "".join(lines), names, EMPTY])


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")

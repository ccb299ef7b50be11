"""A program that begins an upload in parts, says so, and never comes to its end."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import obstore
from obstore.store import S3Store

from standfast.store.remote.credentials import s3_options

PART = 5 << 20
"""The least that S3 takes for a part."""


def main(bucket: str, key: str) -> None:
    options = s3_options()
    store = S3Store(
        bucket,
        config=options.config,
        client_options=options.client_options,
        credential_provider=options.credential_provider,
    )

    def parts() -> Iterator[bytes]:
        for _ in range(3):
            yield bytes(PART)
        print("begun", flush=True)
        sys.stdin.read()

    obstore.put(store, key, parts(), use_multipart=True, chunk_size=PART, max_concurrency=1)


if __name__ == "__main__":
    main(*sys.argv[1:])

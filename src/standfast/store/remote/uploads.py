"""Uploads in parts that were begun and never finished.

Their parts are paid for, and no list of objects shows them: what a killed process left stays until
somebody aborts it, or until a rule of the bucket does. obstore neither lists nor aborts them, so
these two requests are made here.

SeaweedFS says when an upload began, in whole seconds, and pages by the upload's id alone. It says
that keys are encoded when asked to and sends them as they are, so it is not asked to.
"""

from __future__ import annotations

import errno
import http.client
import re
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, Self
from urllib.error import HTTPError
from urllib.parse import urlsplit
from xml.etree import ElementTree

from standfast.errors import FileError, MissingFile, UnreadableFile, WriteFailed
from standfast.store.remote.credentials import Options, aws_endpoint
from standfast.store.remote.keys import Keys
from standfast.store.remote.signature import encoded, query_string, signed_headers

_PATIENCE: Final = 30.0
"""How many seconds a server may be silent."""
_TRIES: Final = 3
_PAUSE: Final = 0.3
_LONGEST: Final = 16 << 20
"""More bytes than an answer can have: a thousand keys of at most 1024 bytes each."""
_CODE: Final = re.compile(r"[A-Za-z0-9.]{1,64}")
_FIRST_YEAR: Final = 2006
"""No upload is older than S3; a server that does not know the time may say the year 1."""

Query = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Place:
    """A bucket, and the part of it that a store has."""

    endpoint: str
    """The server's URL, without the bucket."""
    bucket: str
    prefix: str
    """Without a slash at its end; empty: the whole bucket."""
    region: str
    keys: Keys
    virtual: bool = False
    """Whether the bucket stands in the name of the host, as AWS wants it, or in the path."""

    @classmethod
    def of(cls, options: Options, bucket: str, prefix: str) -> Self | None:
        """The place that the options open; None if the keys are known to obstore alone."""
        if options.keys is None:
            return None
        endpoint = options.endpoint or aws_endpoint(options.region)
        # A bucket with a dot in its name does not match the certificate.
        virtual = options.endpoint is None and "." not in bucket
        return cls(endpoint, bucket, prefix.strip("/"), options.region, options.keys(), virtual)

    def __str__(self) -> str:
        return "s3://" + "/".join(filter(None, (self.bucket, self.prefix)))


class Upload(NamedTuple):
    """An upload that is going on, or was left."""

    key: str
    """Relative to the prefix of the place."""
    id: str
    begun: datetime
    age: timedelta
    """By the server's clock."""


class _Answer(NamedTuple):
    status: int
    body: bytes
    time: datetime


def unfinished(place: Place) -> list[Upload]:
    """All uploads below the place's prefix; raises UnreadableFile, or MissingFile of a bucket."""
    prefix = f"{place.prefix}/" if place.prefix else ""
    found: list[Upload] = []
    seen, markers = set(), ("", "")
    while markers not in seen:
        seen.add(markers)
        named = zip(("key-marker", "upload-id-marker"), markers, strict=True)
        query = [("uploads", ""), ("prefix", prefix), *(pair for pair in named if pair[1])]
        answer = _ask(place, "GET", None, query)
        if answer.status != 200:
            raise _refused(place, "list the unfinished uploads of", answer, UnreadableFile)
        try:
            page = ElementTree.fromstring(answer.body, _parser())
            found += (_upload(each, prefix, answer.time) for each in _all(page, "Upload"))
            if _text(page, "IsTruncated") != "true":
                return [upload for upload in found if upload.key]
            markers = _text(page, "NextKeyMarker"), _text(page, "NextUploadIdMarker")
        except (ElementTree.ParseError, ValueError):
            break
    raise UnreadableFile(
        errno.EIO,
        f"cannot list the unfinished uploads of {place}: what the server says is no such list",
    )


def abort(place: Place, upload: Upload) -> None:
    """Give up an upload and free its parts; one that is gone is no error. Raises WriteFailed."""
    key = "/".join(filter(None, (place.prefix, upload.key)))
    answer = _ask(place, "DELETE", key, [("uploadId", upload.id)])
    if answer.status not in (200, 204) and _code(answer) != "NoSuchUpload":
        raise _refused(place, "abort an unfinished upload of", answer, WriteFailed)


def _ask(place: Place, method: str, key: str | None, query: Query) -> _Answer:
    """Send a request, again if the server is not well."""
    failure = UnreadableFile if method == "GET" else WriteFailed
    problem = ""
    for left in reversed(range(_TRIES)):
        try:
            answer = _send(_request(place, method, key, query))
            if answer.status < 500 or not left:
                return answer
        except (OSError, http.client.HTTPException) as error:
            problem = str(getattr(error, "reason", None) or error) or type(error).__name__
        if left:
            time.sleep(_PAUSE)
    raise failure(errno.EIO, f"cannot reach the server of {place}: {problem}")


def _request(place: Place, method: str, key: str | None, query: Query) -> urllib.request.Request:
    parts = urlsplit(place.endpoint)
    host = f"{place.bucket}.{parts.netloc}" if place.virtual else parts.netloc
    path = parts.path.rstrip("/") + ("" if place.virtual else f"/{encoded(place.bucket)}")
    path = f"{path}/{encoded(key, '/')}" if key is not None else path or "/"
    now = datetime.now(UTC)
    headers = signed_headers(method, host, path, query, place.keys, place.region, now)
    url = f"{parts.scheme}://{host}{path}?{query_string(query)}"
    return urllib.request.Request(url, method=method, headers=headers)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """What is signed for one server is not sent to another."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _send(request: urllib.request.Request) -> _Answer:
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=_PATIENCE) as response:
            return _answer(response)
    except HTTPError as response:
        with response:
            return _answer(response)


def _answer(response: Any) -> _Answer:
    body = response.read(_LONGEST + 1)
    try:
        moment = parsedate_to_datetime(response.headers["Date"]).astimezone(UTC)
    except (TypeError, ValueError):
        moment = datetime.now(UTC)
    return _Answer(response.status, body if len(body) <= _LONGEST else b"", moment)


def _refused(place: Place, verb: str, answer: _Answer, kind: type[FileError]) -> FileError:
    """Say which error the server named, and no more: its text may repeat what was signed."""
    code = _code(answer)
    if code == "NoSuchBucket":
        return MissingFile(errno.ENOENT, f"cannot {verb} {place}: there is no such bucket")
    return kind(errno.EIO, f"cannot {verb} {place}: the server says {answer.status} {code}".strip())


def _code(answer: _Answer) -> str:
    try:
        code = _text(ElementTree.fromstring(answer.body, _parser()), "Code")
    except (ElementTree.ParseError, ValueError):
        return ""
    return code if _CODE.fullmatch(code) else ""


class _Builder(ElementTree.TreeBuilder):
    """Refuses documents that define things, such as entities that grow without end."""

    def doctype(self, *_: Any) -> None:
        raise ValueError("a document type")


def _parser() -> ElementTree.XMLParser:
    return ElementTree.XMLParser(target=_Builder())


def _upload(element: ElementTree.Element, prefix: str, now: datetime) -> Upload:
    """One entry of the list; its key is empty if it is not below the prefix."""
    key, id = _text(element, "Key"), _text(element, "UploadId")
    begun = datetime.fromisoformat(_text(element, "Initiated"))
    if not key or not id or begun.tzinfo is None or begun.year < _FIRST_YEAR:
        raise ValueError("not an upload")
    return Upload(key[len(prefix) :] if key.startswith(prefix) else "", id, begun, now - begun)


def _all(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """The children of this name, in whatever namespace the server puts them."""
    return element.findall(f"{{*}}{name}")


def _text(element: ElementTree.Element, name: str) -> str:
    found = _all(element, name)
    return (found[0].text or "") if found else ""

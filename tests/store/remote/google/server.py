"""A server that answers as Google's does, as far as obstore asks: no test reaches the real one.

What differs from S3 is in it: an object is replaced under the condition of its generation, a number
that each write changes, and a list as obstore reads it says no generation. An ETag is the MD5 of
the content.
"""

import hashlib
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape


class Stored(NamedTuple):
    """An object."""

    data: bytes
    generation: str
    time: datetime

    @property
    def etag(self) -> str:
        """The same for the same content."""
        return f'"{hashlib.md5(self.data).hexdigest()}"'


class Answer(NamedTuple):
    """What the server says."""

    status: int
    body: bytes = b""
    object: Stored | None = None


MISSING = Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
CHANGED = Answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")


class Google(ThreadingHTTPServer):
    """The objects of one bucket, in memory."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, Stored] = {}
        self.updates = 0
        """How many objects were replaced under a condition."""
        self._parts: dict[str, dict[int, bytes]] = {}
        self._numbers = itertools.count(1)
        self._guard = threading.Lock()

    @property
    def environment(self) -> dict[str, str]:
        """By which obstore finds it, as somebody who needs no token."""
        key = {
            "gcs_base_url": f"http://127.0.0.1:{self.server_port}",
            "disable_oauth": True,
            **dict.fromkeys(("client_email", "private_key", "private_key_id"), ""),
        }
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)}

    def answer(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Answer:
        """Do what a request asks for, one at a time."""
        parts = urlsplit(url)
        key = unquote(parts.path).removeprefix("/").partition("/")[2]
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        with self._guard:
            if "list-type" in query:
                return self._list(query)
            if "uploads" in query or "uploadId" in query:
                return self._upload(method, key, query, body)
            if method == "PUT":
                return self._put(key, body, headers)
            found = self.objects.get(key)
            if found is None:
                return MISSING
            if method == "DELETE":
                del self.objects[key]
                return Answer(204)
            return self._get(found, headers)

    def _put(self, key: str, body: bytes, headers: dict[str, str]) -> Answer:
        wanted, old = headers.get("x-goog-if-generation-match"), self.objects.get(key)
        if wanted is not None and wanted != (old.generation if old else "0"):
            return CHANGED
        self.updates += wanted not in (None, "0")
        new = Stored(body, str(next(self._numbers)), datetime.now(UTC))
        self.objects[key] = new
        return Answer(200, object=new)

    def _get(self, found: Stored, headers: dict[str, str]) -> Answer:
        if headers.get("if-match", found.etag) != found.etag:
            return CHANGED
        if "range" not in headers:
            return Answer(200, found.data, found)
        first, _, last = headers["range"].removeprefix("bytes=").partition("-")
        if int(first) >= len(found.data):
            return Answer(416, b"<Error><Code>InvalidRange</Code></Error>")
        return Answer(206, found.data[int(first) : int(last) + 1 if last else None], found)

    def _upload(self, method: str, key: str, query: dict[str, str], body: bytes) -> Answer:
        if "uploads" in query:
            number = f"upload-{next(self._numbers)}"
            self._parts[number] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId>"
            return Answer(200, f"{text}</InitiateMultipartUploadResult>".encode())
        parts = self._parts[query["uploadId"]]
        if method == "PUT":
            parts[int(query["partNumber"])] = body
            return Answer(200, object=Stored(body, "", datetime.now(UTC)))
        del self._parts[query["uploadId"]]
        if method == "DELETE":
            return Answer(204)
        done = self._put(key, b"".join(parts[number] for number in sorted(parts)), {})
        assert done.object is not None
        text = f"<CompleteMultipartUploadResult><ETag>{escape(done.object.etag)}</ETag>"
        return done._replace(body=f"{text}</CompleteMultipartUploadResult>".encode())

    def _list(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        texts, folders = [], set()
        for key, each in sorted(self.objects.items()):
            above, found, _ = key.removeprefix(prefix).partition(delimiter or "\0")
            if not key.startswith(prefix):
                continue
            if found:
                folders.add(f"{prefix}{above}{delimiter}")
                continue
            fields = {
                "Key": key,
                "Generation": each.generation,
                "LastModified": each.time.isoformat(),
                "ETag": each.etag,
                "Size": len(each.data),
            }
            inner = "".join(f"<{name}>{escape(str(of))}</{name}>" for name, of in fields.items())
            texts.append(f"<Contents>{inner}</Contents>")
        texts += (
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
            for each in sorted(folders)
        )
        return Answer(200, f"<ListBucketResult>{''.join(texts)}</ListBucketResult>".encode())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Google

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.answer(self.command, self.path, headers, body)
        self.send_response(answer.status)
        if answer.object is not None:
            self.send_header("ETag", answer.object.etag)
            self.send_header("x-goog-generation", answer.object.generation)
            moment = format_datetime(answer.object.time, usegmt=True)
            self.send_header("Last-Modified", moment)
        if answer.status == 206 and answer.object is not None:
            first = int(headers["range"].removeprefix("bytes=").partition("-")[0])
            last, size = first + len(answer.body) - 1, len(answer.object.data)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        if answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def running() -> Iterator[Google]:
    """Such a server, until the end of the block."""
    with Google() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

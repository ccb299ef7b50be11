"""The objects below a URL, through obstore, which only this file and `connecting` know.

What obstore raises becomes a FileError that says what to do and holds nothing secret: its own
texts have whole requests in them.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

from standfast.errors import (
    AlreadyExists,
    BadOption,
    ChangedFile,
    FileError,
    MissingFile,
    UnreadableFile,
    UnsupportedStore,
    WriteFailed,
    shortened,
)
from standfast.store.remote.connection import BY_VERSION, S3, checked_url, connect, timeout
from standfast.store.remote.credentials import ENDPOINT, s3_options
from standfast.store.remote.reasons import BROKEN, LATE, REASONS, number_of, reason
from standfast.store.remote.wait import heard
from standfast.tensors.sources import Bytes

Buffer = bytes | bytearray | memoryview | Bytes
_SMALL: Final = 1 << 20
_SLOWLY: Final = 4
"""How many times as long a request for more than that may take: others go on beside it."""
PROBES: Final = ".standfast/probes"
"""The folder of the objects that `check_conditions` writes and deletes."""
_PAUSE: Final = 0.2
_AT_ONCE: Final = 8
"""How many parts of one object are on their way."""
_sound: set[tuple[str, str | None]] = set()
"""The URLs, each with its endpoint, whose servers honour conditions."""
_NO_CONDITIONS: Final = (
    "{}; without conditional writes two processes could both be told that a step is saved, and "
    "one would be lost: use a server that has them. Nothing was written; reading works"
)
_process: int | None = None
"""The one in which obstore has begun its threads."""


class Tag(str):
    """Another one whenever the content is another: the ETag, by which alone tags are compared."""

    __slots__ = ("version",)
    version: str | None
    """What some servers want besides, and no list says."""

    def __new__(cls, text: str, version: str | None = None) -> Self:
        """A tag, with the version of the object if it is known."""
        tag = super().__new__(cls, text)
        tag.version = version
        return tag


class Meta(NamedTuple):
    """What the server says of an object."""

    size: int
    tag: Tag
    time: float
    """When it was written, in seconds, by the clock of the server."""


Listed = tuple[list[tuple[str, Meta]], list[str]]
"""Objects by their keys, and folders."""


class Client:
    """The objects whose keys begin with the path of a URL; may be used from several threads."""

    def __init__(self, url: str) -> None:
        """Nothing is asked of the server yet; raises BadOption for a URL that is none."""
        self.url: Final = checked_url(url)
        self.options: Final = s3_options() if self.is_s3 else None
        self._longest: float | None = None
        self._stores: dict[bool, Any] = {}
        self._opening = threading.Lock()

    def hurried(self, seconds: float) -> Client:
        """The same, for requests that take no longer than this."""
        other = copy(self)
        other._longest, other._stores, other._opening = seconds, {}, threading.Lock()
        return other

    @property
    def is_s3(self) -> bool:
        """Whether it is a bucket of S3, or of something that speaks as it does."""
        return urlsplit(self.url).scheme in S3

    def head(self, key: str) -> Meta | None:
        """What there is to know of an object; None if there is none."""
        with self._reading(key):
            try:
                return _meta(self._call("head", _escaped(key)))
            except FileNotFoundError as error:
                self._check_bucket(error, key)
                return None

    def get(
        self, key: str, start: int = 0, length: int | None = None, tag: str | None = None
    ) -> memoryview:
        """An object, or a stretch of it: what is there of it, if it ends before that.

        Raises ChangedFile if its tag is another by now.
        """
        options: dict[str, Any] = {} if tag is None else {"if_match": tag}
        if length == 0:
            return memoryview(b"")
        if length is not None:
            options["range"] = (start, start + length)
        elif start:
            options["range"] = {"offset": start}
        with self._reading(key):
            try:
                is_large = length is None or length > _SMALL
                store, get = self._opened(is_large), self._obstore().get
                found = heard(lambda: get(store, _escaped(key), options=options).bytes(), self.url)
                return memoryview(found)
            except self._errors().PreconditionError:
                raise ChangedFile(
                    f"{self._named(key)}: it was written again since it was opened"
                ) from None
            except self._errors().GenericError as error:
                if "416" in str(error)[:2000] and "InvalidRange" in str(error):
                    return memoryview(b"")  # it ends before this
                raise

    def put(self, key: str, data: Buffer, *, create: bool = False, match: str | None = None) -> Tag:
        """Write an object at once; returns its tag.

        With `create` only if there is none, with `match` only if it has this tag: else raises
        AlreadyExists. After an answer that was lost the server is asked again: what it has then is
        compared with what it was given.
        """
        with self._writing(key):
            mode = self._mode(key, create, match)
            try:
                return self._put(key, data, mode)
            except self._errors().GenericError as error:
                if mode == "overwrite" or not LATE.search(str(error)):
                    raise
                # The server may do it yet, and nobody must take it for undone then.
                return self._put(key, data, mode)

    def check_conditions(self) -> None:
        """Raise UnsupportedStore if the server does not honour the conditions of `put`.

        It is asked once per process and address, with an object that is deleted again. To be
        called before anything is written: without conditions no lock keeps anybody out.
        """
        address = (self.url, self.options.config.get(ENDPOINT) if self.options else None)
        if address in _sound:
            return
        key = f"{PROBES}/{os.urandom(8).hex()}"
        try:
            first = self.put(key, b"1", create=True)
            self._check_refused("If-None-Match", key, create=True)
            self.put(key, b"12", match=first)
            self._check_refused("If-Match", key, match=first)
        except WriteFailed as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            raise UnsupportedStore(_NO_CONDITIONS.format(error)) from None
        finally:
            with suppress(FileError):  # the server does not answer: `tidy` deletes it
                self.delete([key])
        _sound.add(address)

    def _check_refused(self, header: str, key: str, **condition: Any) -> None:
        """Raise UnsupportedStore if a put is done though its condition does not hold."""
        try:
            self.put(key, b"123", **condition)
        except AlreadyExists:
            return
        raise UnsupportedStore(_NO_CONDITIONS.format(f"{self.url}: the server ignores {header}"))

    def _mode(self, key: str, create: bool, match: str | None) -> Any:
        """The condition of a put, as obstore takes it."""
        if create or match is None:
            return "create" if create else "overwrite"
        version = match.version if isinstance(match, Tag) else None
        if version is None and urlsplit(self.url).scheme in BY_VERSION:
            found = self.head(key)
            if found is None or found.tag != match:
                raise self._exists(key)
            version = found.tag.version
        return {"e_tag": match} if version is None else {"e_tag": match, "version": version}

    def _put(self, key: str, data: Buffer, mode: Any, again: int = 3) -> Tag:
        try:
            done = self._call(
                "put", _escaped(key), data, large=len(data) > _SMALL, mode=mode, use_multipart=False
            )
            return _tag(done)
        except (
            self._errors().AlreadyExistsError,
            self._errors().PreconditionError,
            FileNotFoundError,
        ) as error:
            self._check_bucket(error, key)
            found = self.head(key)
            if found is None and mode == "create" and again:
                # Two asked at the same moment, and the server denied it to both.
                time.sleep(_PAUSE)
                return self._put(key, data, mode, again - 1)
            if found is not None and found.size == len(data):
                try:
                    if bytes(self.get(key, tag=found.tag)) == bytes(data):
                        return found.tag
                except (MissingFile, ChangedFile):
                    pass
            raise self._exists(key) from None

    def _exists(self, key: str) -> AlreadyExists:
        return AlreadyExists(
            errno.EEXIST, f"{self._named(key)} exists already, and must not be replaced"
        )

    def upload(self, key: str, blocks: Iterable[Buffer], part: int) -> None:
        """Write an object in parts of this size, several at a time.

        An exception of the iterable ends it, and the object is not there.
        """
        with self._writing(key):
            self._obstore().put(
                self._opened(large=True),
                _escaped(key),
                iter(blocks),
                use_multipart=True,
                chunk_size=part,
                max_concurrency=_AT_ONCE,
            )

    def list(self, prefix: str = "", deep: bool = True) -> Listed:
        """The objects in a folder, by their keys, and the folders in it; with `deep`, all below."""
        with self._reading(prefix, "list"):
            for _ in range(2):  # of a list that breaks off obstore asks for no other
                try:
                    return self._listed(prefix, deep)
                except self._errors().GenericError as error:
                    if reason(str(error)) != BROKEN:
                        raise
            return self._listed(prefix, deep)

    def _listed(self, prefix: str, deep: bool) -> Listed:
        above = _escaped(prefix) or None
        if deep:
            store, listed = self._opened(), self._obstore().list
            found = heard(lambda: listed(store, above, chunk_size=1000).collect(), self.url)
            return [(_plain(each["path"]), _meta(each)) for each in found], []
        listed = self._call("list_with_delimiter", above)
        # Some servers, and some programs, have an object that stands for the folder itself.
        objects = [
            (key, _meta(each))
            for each in listed["objects"]
            if (key := _plain(each["path"])) != prefix
        ]
        return objects, [_plain(path) for path in listed["common_prefixes"]]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are gone are no error."""
        escaped = [_escaped(key) for key in keys]
        if escaped:
            with self._writing(escaped[0], "delete"):
                try:
                    self._call("delete", escaped)
                except FileNotFoundError as error:
                    self._check_bucket(error, escaped[0])
                    for key in escaped:  # a server that denies one may have left the others
                        with _gone():
                            self._call("delete", key)

    def copy(self, source: str, target: str) -> None:
        """Let the server copy an object, over the one that is there."""
        with self._writing(target):
            try:
                self._call("copy", _escaped(source), _escaped(target))
            except FileNotFoundError as error:
                self._check_bucket(error, source)
                raise MissingFile(errno.ENOENT, f"there is no file {self._named(source)}") from None

    def _call(self, name: str, *arguments: Any, large: bool = False, **options: Any) -> Any:
        """Have obstore ask the server."""
        store, function = self._opened(large), getattr(self._obstore(), name)
        return heard(lambda: function(store, *arguments, **options), self.url)

    def _opened(self, large: bool = False) -> Any:
        """With `large`, for requests that take long where the connection is slow."""
        global _process
        with self._opening:
            if large not in self._stores:
                _process = os.getpid()
                longest = timedelta(seconds=self._longest or 86_400)
                seconds = min(timeout(), longest)
                request = seconds * _SLOWLY if large else seconds
                self._stores[large] = connect(self.url, self.options, seconds, request)
            return self._stores[large]

    def _obstore(self) -> Any:
        try:
            import obstore
        except ImportError:
            raise BadOption(
                f"{self.url}: stores at a URL need obstore: `pip install obstore`"
            ) from None
        return obstore

    def _errors(self) -> Any:
        from obstore import exceptions

        return exceptions

    def _named(self, key: str) -> str:
        return shortened(f"{self.url}/{key}" if key else self.url)

    def _check_bucket(self, error: Exception, key: str) -> None:
        """Raise if it is not the object that is missing."""
        if "NoSuchBucket" in str(error):
            raise UnreadableFile(
                errno.ENOENT, f"cannot read {self._named(key)}: {REASONS['NoSuchBucket']}"
            ) from None

    @contextmanager
    def _reading(self, key: str, verb: str = "read") -> Iterator[None]:
        with self._translated(UnreadableFile, key, verb):
            try:
                yield
            except FileNotFoundError as error:
                if isinstance(error, FileError):
                    raise
                self._check_bucket(error, key)
                raise MissingFile(errno.ENOENT, f"there is no file {self._named(key)}") from None

    @contextmanager
    def _writing(self, key: str, verb: str = "write") -> Iterator[None]:
        with self._translated(WriteFailed, key, verb):
            yield

    @contextmanager
    def _translated(
        self, kind: type[UnreadableFile | WriteFailed], key: str, verb: str
    ) -> Iterator[None]:
        self._obstore()
        if _process not in (None, os.getpid()):
            # It would wait for threads that only the other process has.
            raise kind(
                errno.ENOTSUP,
                f"cannot {verb} {self._named(key)}: this process was forked from one that has "
                "used a store at a URL; start it afresh, by multiprocessing's spawn",
            )
        try:
            yield
        except FileNotFoundError as error:
            if isinstance(error, FileError):
                raise
            raise kind(errno.ENOENT, self._failure(verb, key, error)) from None
        except self._errors().BaseError as error:
            raise kind(number_of(error), self._failure(verb, key, error)) from None

    def _failure(self, verb: str, key: str, error: Exception) -> str:
        return f"cannot {verb} {self._named(key)}: {reason(str(error))}"


def _meta(found: Any) -> Meta:
    return Meta(int(found["size"]), _tag(found), found["last_modified"].timestamp())


def _tag(found: Any) -> Tag:
    return Tag(str(found["e_tag"]), found["version"])


def _escaped(key: str) -> str:
    """A key without what some servers change in it."""
    return key.replace("%", "%25").replace("\\", "%5C")


def _plain(key: str) -> str:
    return key.replace("%5C", "\\").replace("%25", "%")


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        return

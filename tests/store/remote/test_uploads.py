"""Unfinished uploads: what a server says of them, what becomes of them, what is never shown."""

import traceback
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import urlsplit

import pytest

from standfast import Store
from standfast.errors import MissingFile, UnreadableFile, WriteFailed
from standfast.store.remote import uploads
from standfast.store.remote.credentials import Options, s3_options
from standfast.store.remote.keys import Keys
from standfast.store.remote.uploads import Place, Upload, abort, unfinished
from standfast.store.retention.collection import carry_out, plan
from tests.kit.object_store.faults import Answer, DropRequest, HoldAnswer
from tests.kit.object_store.proxy import Proxy
from tests.kit.seams import Seams
from tests.store.remote.workers import Worker

KEYS = Keys("AKIDOFNOBODY", "the-secret-itself", "the-token-itself")
BEGUN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
NOW = datetime(2024, 5, 7, 7, 8, 10, tzinfo=UTC)
DATE = f"Date: {format_datetime(NOW, usegmt=True)}"
LEFT = Upload("models/a", "id-1", BEGUN, timedelta(days=1, seconds=1))


class Answering(Proxy):
    """Gives the answers that it was given, one after the other, and remembers the questions."""

    def __init__(self) -> None:
        super().__init__(1)

    def says(self, status: int, body: str | bytes = b"", *headers: str) -> None:
        """The next answer; 0: it hangs up."""
        data = body if isinstance(body, bytes) else body.encode()
        self.rule(Answer(status, data, headers or (DATE,)) if status else DropRequest())

    @property
    def asked(self) -> list[tuple[str, str, dict[str, str]]]:
        return [(each.method, each.path, each.query) for each in self.log]

    def place(self, prefix: str = "pre") -> Place:
        return Place(self.endpoint, "bucket", prefix, "here", KEYS)


@pytest.fixture
def answering(seams: Seams) -> Iterator[Answering]:
    seams.bound("interval of uploads", 0.0)
    with Answering() as proxy:
        yield proxy


def _entry(key: str, id: str, begun: str = "2024-05-06T07:08:09.000Z") -> str:
    return (
        f"<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{begun}</Initiated></Upload>"
    )


def _page(*entries: str, after: tuple[str, str] | None = None) -> str:
    more = ""
    if after is not None:
        more = (
            f"<IsTruncated>true</IsTruncated><NextKeyMarker>{after[0]}</NextKeyMarker>"
            f"<NextUploadIdMarker>{after[1]}</NextUploadIdMarker>"
        )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"{more}{''.join(entries)}</ListMultipartUploadsResult>"
    )


def _error(code: str) -> str:
    hidden = f"<AWSAccessKeyId>{KEYS.id}</AWSAccessKeyId><Message>{KEYS.secret}</Message>"
    return f"<Error><Code>{code}</Code>{hidden}</Error>"


def _shown(error: BaseException) -> str:
    """What a person, or a log, would see of it."""
    shown = "".join(traceback.format_exception(error))
    for hidden in (KEYS.id, KEYS.secret, KEYS.token, "Signature="):
        assert str(hidden) not in shown
    return str(error)


def test_an_upload_has_a_key_an_id_and_an_age_by_the_clock_of_the_server(answering):
    answering.says(200, _page(_entry("pre/models/a", "id-1")))
    assert unfinished(answering.place()) == [LEFT]
    assert answering.asked == [("GET", "/bucket", {"uploads": "", "prefix": "pre/"})]


def test_a_server_without_a_clock_is_given_ours(answering):
    answering.says(200, _page(_entry("pre/models/a", "id-1")), "X-Date: none")
    (upload,) = unfinished(answering.place())
    assert abs(datetime.now(UTC) - BEGUN - upload.age) < timedelta(minutes=1)


def test_uploads_of_a_neighbour_are_none_of_ours(answering):
    theirs = [_entry("pre2/a", "id-2"), _entry("a", "id-3"), _entry("pre/", "id-4")]
    answering.says(200, _page(*theirs, _entry("pre/models/a", "id-1")))
    assert unfinished(answering.place()) == [LEFT]


def test_a_store_may_have_the_whole_bucket(answering):
    answering.says(200, _page(_entry("models/a", "id-1")))
    answering.says(204)
    assert unfinished(answering.place("")) == [LEFT]
    abort(answering.place(""), LEFT)
    assert [path for _, path, _ in answering.asked] == ["/bucket", "/bucket/models/a"]


def test_all_pages_are_read(answering):
    answering.says(200, _page(_entry("pre/a", "1"), after=("pre/a", "1")))
    answering.says(200, _page(_entry("pre/a", "2"), after=("", "2")))  # as SeaweedFS does it
    answering.says(200, _page(_entry("pre/b", "3")))
    found = unfinished(answering.place())
    assert [(upload.key, upload.id) for upload in found] == [("a", "1"), ("a", "2"), ("b", "3")]
    asked = [query for _, _, query in answering.asked]
    assert asked[1] == {**asked[0], "key-marker": "pre/a", "upload-id-marker": "1"}
    assert asked[2] == {**asked[0], "upload-id-marker": "2"}


def test_pages_that_never_end_are_refused(answering):
    for _ in range(2):
        answering.says(200, _page(_entry("pre/a", "1"), after=("pre/a", "1")))
    with pytest.raises(UnreadableFile):
        unfinished(answering.place())


DOCTYPE = '<!DOCTYPE x [<!ENTITY key "pre/models/a">]>'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        _page(_entry("pre/a", "1"))[:-4],
        _page(_entry("", "1")),
        _page(_entry("pre/a", "")),
        _page(_entry("pre/a", "1", "yesterday")),
        _page(_entry("pre/a", "1", "2024-05-06T07:08:09")),
        _page(_entry("pre/a", "1", "0001-01-01T00:00:00Z")),
        _page(_entry("&key;", "1")).replace("?><", f"?>{DOCTYPE}<"),
        _page(_entry("pre/a", "1")).replace("?><", f"?>{DOCTYPE}<").encode("utf-16"),
    ],
    ids="nothing noise cut keyless idless timeless zoneless ancient entity utf-16".split(),
)
def test_an_answer_that_is_no_list_is_refused(answering, body):
    answering.says(200, body)
    with pytest.raises(UnreadableFile) as caught:
        unfinished(answering.place())
    _shown(caught.value)


def test_an_answer_without_an_end_is_refused(answering, seams):
    page = _page(_entry("pre/a", "1"))
    seams.bound("longest upload", len(page))
    answering.says(200, page)
    answering.says(200, page + "\n")
    assert len(unfinished(answering.place())) == 1
    with pytest.raises(UnreadableFile):
        unfinished(answering.place())


def test_an_upload_is_aborted_by_its_key_and_id(answering):
    answering.says(204)
    abort(answering.place(), Upload("a b/ü+%5C", "id/+=", BEGUN, timedelta()))
    path = "/bucket/pre/a b/ü+%5C"
    assert answering.asked == [("DELETE", path, {"uploadId": "id/+="})]


def test_an_upload_that_is_gone_is_no_error(answering):
    answering.says(404, _error("NoSuchUpload"))
    abort(answering.place(), LEFT)
    assert [method for method, _, _ in answering.asked] == ["DELETE"]


@pytest.mark.parametrize(
    ("status", "body", "named"),
    [
        (403, _error("AccessDenied"), "403 AccessDenied"),
        (403, _error("SignatureDoesNotMatch"), "403 SignatureDoesNotMatch"),
        (403, _error(f"<b>{KEYS.secret}</b>"), "403"),
        (403, _error(f"{KEYS.secret} has spaces"), "403"),
        (400, b"\xff", "400"),
        (501, _error("NotImplemented"), "501 NotImplemented"),
        (404, _error("NoSuchBucket"), None),
    ],
    ids="denied signature nested spaces noise unable bucket".split(),
)
def test_a_refusal_says_what_the_server_calls_it_and_no_more(answering, status, body, named):
    kinds = (UnreadableFile, WriteFailed) if named else (MissingFile, MissingFile)
    for kind, act in zip(kinds, (unfinished, lambda place: abort(place, LEFT)), strict=True):
        for _ in range(uploads._TRIES if status >= 500 else 1):
            answering.says(status, body)
        with pytest.raises(kind) as caught:
            act(answering.place())
        assert _shown(caught.value).endswith(named or "")


def test_a_server_that_is_not_well_is_asked_again(answering):
    answering.says(503, _error("SlowDown"))
    answering.says(0)
    answering.says(200, _page())
    assert unfinished(answering.place()) == []


def test_a_server_that_hangs_up_is_given_up(answering):
    for _ in range(2 * uploads._TRIES):
        answering.says(0)
    with pytest.raises(UnreadableFile, match="s3://bucket/pre"):
        unfinished(answering.place())
    with pytest.raises(WriteFailed, match="s3://bucket/pre"):
        abort(answering.place(), LEFT)


def test_what_is_signed_for_one_server_is_not_sent_to_another(answering):
    location = f"Location: {answering.endpoint}/elsewhere"
    answering.says(307, _error("TemporaryRedirect"), location)
    with pytest.raises(UnreadableFile, match="TemporaryRedirect"):
        unfinished(answering.place())
    assert len(answering.asked) == 1


def test_a_server_that_says_nothing_is_given_up(bucket_url, proxy, seams):
    seams.bound("patience of uploads", 0.05)
    seams.bound("interval of uploads", 0.0)
    proxy.rule(HoldAnswer(600), times=None)
    with pytest.raises(UnreadableFile):
        unfinished(_place(bucket_url))


@pytest.mark.parametrize(
    ("config", "bucket", "prefix", "url"),
    [
        ({}, "bucket", "/a/b/", "https://bucket.s3.eu-west-1.amazonaws.com/?uploads="),
        ({}, "my.bucket", "", "https://s3.eu-west-1.amazonaws.com/my.bucket?uploads="),
        (
            {"aws_endpoint_url_s3": "http://host:1/base"},
            "bucket",
            "",
            "http://host:1/base/bucket?uploads=",
        ),
    ],
    ids=["AWS", "a dot in the bucket", "another server"],
)
def test_the_bucket_is_in_the_host_at_aws_and_in_the_path_elsewhere(config, bucket, prefix, url):
    options = Options({"region": "eu-west-1", **config}, {}, lambda: KEYS)
    place = Place.of(options, bucket, prefix)
    assert place is not None
    assert (place.bucket, place.prefix, place.region) == (bucket, prefix.strip("/"), "eu-west-1")
    request = uploads._request(place, "GET", None, [("uploads", "")])
    assert request.full_url == url
    assert request.get_header("Host") == url.split("/")[2]
    request = uploads._request(place, "DELETE", "a/b/c", [("uploadId", "1")])
    assert request.full_url == url.replace("/?", "?").replace("?uploads=", "/a/b/c?uploadId=1")


def test_there_is_no_place_without_keys_and_none_shows_them():
    assert Place.of(Options({}, {}, None), "bucket", "") is None
    place = Place("http://host", "bucket", "pre", "here", KEYS)
    shown = f"{place} {place!r}"
    assert "s3://bucket/pre" in shown
    assert not any(str(hidden) in shown for hidden in (KEYS.id, KEYS.secret, KEYS.token))


# The real server


def _place(url: str) -> Place:
    """A place by the environment."""
    parts = urlsplit(url)
    place = Place.of(s3_options(), parts.netloc, parts.path)
    assert place is not None
    return place


def _leave(worker: Worker, url: str) -> None:
    worker.begin("leave_upload", url)
    assert worker.ended() == 12


def test_what_a_killed_process_left_is_found_and_aborted(bucket_url, worker):
    place, neighbour = _place(f"{bucket_url}/here"), _place(f"{bucket_url}/here2")
    odd = "a b/ü+%5C&<.bin"
    before = datetime.now(UTC)
    _leave(worker, f"{bucket_url}/here/{odd}")
    _leave(worker, f"{bucket_url}/here2/theirs")
    (left,) = unfinished(place)
    assert left.key == odd
    assert left.begun.utcoffset() == timedelta(0)
    assert timedelta(seconds=-2) < left.begun - before < timedelta(minutes=1)
    assert timedelta(seconds=-2) < left.age < timedelta(minutes=1)
    abort(place, left)
    abort(place, left)
    assert unfinished(place) == []
    assert {upload.key for upload in unfinished(_place(bucket_url))} == {"here2/theirs"}
    abort(neighbour, unfinished(neighbour)[0])


def test_gc_knows_the_age_of_an_unfinished_upload(bucket_url, worker):
    store = Store(bucket_url)
    run = store.run("a")
    run.save(1, {"a": 1})
    name = f"models/{run.hash}/{run.hash}_step_000002.0123abcd.x.safetensors"
    _leave(worker, f"{store.url}/{name}")
    assert [each.name for each in store.backend.unfinished()] == [name]
    assert plan(store).lines == [], "a process may be at it"
    later = plan(store, now=datetime.now(UTC) + timedelta(days=3))
    (line,) = later.lines
    assert (line.kind, line.run) == ("upload", run.hash)
    assert carry_out(store, later).lines == [line]
    assert store.backend.unfinished() == []
    assert plan(store, now=later.now).lines == []
    assert run.load() == {"a": 1}


def test_the_real_server_refuses_other_keys_and_buckets(bucket_url):
    place = _place(bucket_url)
    for keys, code in (
        (KEYS, "InvalidAccessKeyId"),
        (Keys(place.keys.id, "x"), "SignatureDoesNotMatch"),
    ):
        with pytest.raises(UnreadableFile, match=code) as caught:
            unfinished(replace(place, keys=keys))
        _shown(caught.value)
    with pytest.raises(MissingFile):
        unfinished(replace(place, bucket="nowhere"))

"""The client: what obstore says, in our own words, and what it does not say at all."""

import threading
from typing import Any

import pytest

from standfast.cli import app
from standfast.errors import (
    AlreadyExists,
    BadOption,
    ChangedFile,
    MissingFile,
    UnreadableFile,
    WriteFailed,
)
from standfast.store.remote import wait
from standfast.store.remote.client import Client
from standfast.store.remote.connection import timeout
from standfast.store.remote.reasons import reason
from tests.kit.object_store.faults import Answer, CutAnswer, DropAnswer, DropRequest, HoldAnswer
from tests.store.remote.places import is_listing


def test_a_message_that_is_not_known_is_shown_without_its_signature():
    assert reason("unknown at http://host/a?X-Amz-Signature=abc\n") == "unknown at …"
    assert reason("")


@pytest.mark.parametrize("given", ["x", "-1", "0", "nan", "1e9"])
def test_a_time_that_is_none_is_refused(given, monkeypatch):
    monkeypatch.setenv("STANDFAST_TIMEOUT", given)
    with pytest.raises(BadOption, match="STANDFAST_TIMEOUT"):
        timeout()


def test_objects_are_written_under_conditions(bucket_url):
    client = Client(bucket_url)
    first = client.put("a", b"1", create=True)
    assert client.put("a", b"1", create=True) == first, "as if its answer had been lost"
    with pytest.raises(AlreadyExists):
        client.put("a", b"2", create=True)
    second = client.put("a", b"2", match=first)
    with pytest.raises(AlreadyExists):
        client.put("a", b"3", match=first)
    with pytest.raises(AlreadyExists):
        client.put("absent", b"3", match=first)
    assert bytes(client.get("a", tag=second)) == b"2"
    with pytest.raises(ChangedFile):
        client.get("a", tag=first)
    with pytest.raises(MissingFile):
        client.get("absent")
    assert client.head("absent") is None


def test_a_stretch_ends_where_the_object_does(bucket_url):
    client = Client(bucket_url)
    client.put("a", b"0123456789")
    stretches = [(0, 3), (8, 5), (10, 1), (20, 5), (4, 0), (7, None), (0, None)]
    found = [bytes(client.get("a", start, length)) for start, length in stretches]
    assert found == [b"012", b"89", b"", b"", b"", b"789", b"0123456789"]


@pytest.mark.parametrize("fault", [DropAnswer(), DropRequest(), Answer(503)], ids="123")
@pytest.mark.parametrize("condition", ["create", "match", "none"])
def test_a_put_is_done_once_however_often_it_is_asked_for(proxy, bucket_url, condition, fault):
    client = Client(bucket_url)
    options: dict[str, Any] = {"create": True} if condition == "create" else {}
    if condition == "match":
        options["match"] = client.put("a", b"0")
    rule = proxy.rule(fault, lambda request: request.method == "PUT", times=2)
    tag = client.put("a", b"1", **options)
    assert rule.hits == 2
    assert bytes(client.get("a", tag=tag)) == b"1"


def test_a_list_that_breaks_off_is_asked_for_again_and_not_for_ever(proxy, bucket_url):
    client = Client(bucket_url)
    client.put("x/a", b"1")

    for deep in (True, False):
        proxy.rule(CutAnswer(10), is_listing, times=2)
        assert [key for key, _ in client.list("x", deep)[0]] == ["x/a"]
        proxy.heal()
    proxy.rule(CutAnswer(10), is_listing, times=None)
    with pytest.raises(UnreadableFile):
        client.list("x")


def test_a_client_in_a_hurry_waits_for_less(proxy, bucket_url):
    client = Client(bucket_url)
    proxy.rule(HoldAnswer(600), times=None)
    with pytest.raises(UnreadableFile):
        client.hurried(0.3).head("a")
    with pytest.raises(WriteFailed):
        client.hurried(0.3).put("a", b"1")


def test_a_silent_server_is_told_of_once_and_a_fast_one_never(monkeypatch, capsys, seams):
    monkeypatch.setitem(vars(wait), "tell_of_silence", app._tell_of_silence)
    monkeypatch.setenv("STANDFAST_TIMEOUT", "90")
    assert wait.heard(lambda: "at once", "s3://fast") == "at once"
    assert capsys.readouterr().err == ""
    seams.bound("silence of a server", 0.01)
    for _ in range(2):
        assert wait.heard(lambda: threading.Event().wait(0.2), "s3://slow") is False
    (line,) = capsys.readouterr().err.splitlines()
    assert all(each in line for each in ("s3://slow", "90", "STANDFAST_TIMEOUT"))


def test_keys_come_back_as_they_were_given(bucket_url):
    client = Client(bucket_url)
    keys = ["a b/ü.txt", "100%", "%41", "a\\b", "a+b&c=d", "x/%5C/y", "é", "e\u0301"]
    for key in keys:
        client.put(key, key.encode())
    assert sorted(key for key, _ in client.list()[0]) == sorted(keys)
    for key in keys:
        assert bytes(client.get(key)) == key.encode()
    client.delete([*keys, "absent"])
    assert client.list() == ([], [])

"""What a store at a URL says when it cannot be used; nothing that it says is secret."""

import logging
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast import Store
from standfast.errors import BadOption, FileError, StandfastError, UnreadableFile, WriteFailed
from standfast.store.remote.connection import checked_url
from standfast.store.remote.versions import UNTRUSTED
from tests.kit.object_store.faults import Answer
from tests.kit.object_store.server import Server
from tests.store.remote.places import check, fresh, objects, shown, state

TOKEN = "FQoGZXIvYXdzEAAaDtokenofnobody"


@pytest.fixture
def hidden(server: Server, caplog: pytest.LogCaptureFixture) -> Callable[[BaseException], str]:
    """Checks that no secret shows, in an error or in a log, and returns the message."""
    caplog.set_level(logging.DEBUG)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

    def checked(error: BaseException) -> str:
        text = shown(error) + caplog.text
        for secret in (*(server.environment[name] for name in names), TOKEN, "Signature="):
            assert secret not in text
        return str(error)

    return checked


def _fails(url: str, kind: type[StandfastError]) -> list[BaseException]:
    """The errors of a save and a load."""
    errors = []
    for act in (lambda: fresh(url).run("a").save(1, {}), lambda: fresh(url).resolve("latest")):
        with pytest.raises(kind) as caught:
            act()
        errors.append(caught.value)
    return errors


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("AWS_SECRET_ACCESS_KEY", "SignatureDoesNotMatch"),
        ("AWS_ACCESS_KEY_ID", "InvalidAccessKeyId"),
    ],
)
def test_credentials_that_are_wrong_are_told_of(bucket_url, name, code, hidden, monkeypatch):
    wrong = secrets.token_hex(20)
    monkeypatch.setenv(name, wrong)
    for error in _fails(bucket_url, FileError):
        message = hidden(error)
        assert code in message
        assert bucket_url in message
        assert wrong not in shown(error)


def test_without_credentials_it_says_where_they_come_from(bucket_url, monkeypatch, hidden):
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    for error in _fails(bucket_url, FileError):
        assert "AWS_ACCESS_KEY_ID" in hidden(error)


def test_a_bucket_that_is_not_there_is_told_of(bucket_url, hidden):
    for error in _fails("s3://nowhere-at-all/prefix", UnreadableFile):
        assert "nowhere-at-all" in hidden(error)


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_who_may_only_read_reads_and_is_told_so_when_they_write(proxy, bucket_url, method, hidden):
    with Store(bucket_url).run("a") as run:
        run.save(1, state(1))
    body = f"<Error><Code>AccessDenied</Code><Message>{TOKEN}</Message></Error>".encode()
    for denied in {method, "PUT"}:
        proxy.rule(Answer(403, body), lambda request, denied=denied: request.method == denied, None)
    check(fresh(bucket_url), state(1))
    with pytest.raises(WriteFailed, match="AccessDenied") as caught:
        fresh(bucket_url).run("a").save(2, state(2))
    hidden(caught.value)
    with pytest.raises(WriteFailed, match="AccessDenied"):
        fresh(bucket_url).run("b")
    proxy.rule(Answer(403, body), times=None)
    with pytest.raises(UnreadableFile, match="AccessDenied") as refused:
        fresh(bucket_url).resolve("latest")
    hidden(refused.value)


def test_a_secret_is_in_no_object_and_no_text(bucket_url, server, client, caplog):
    caplog.set_level(logging.DEBUG)
    store = Store(bucket_url)
    with store.run("a", hp={"lr": 1}) as run:
        checkpoint = run.save(1, state(1), metrics={"loss": 1.0})
        checkpoint.tag("paper")
        texts = [repr(each) for each in (store, run, checkpoint, store.backend)]
    store.close()
    keys = server.environment
    for secret in (keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"]):
        assert secret not in caplog.text
        assert not any(secret in text for text in texts)
        for key, data in objects(client).items():
            assert secret.encode() not in data, key


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:word@bucket/a",
        "s3://key:1/word@bucket/a",
        "s3://bucket/a?token=word",
        "s3://bucket/a#word",
        "file://key:word@host/a",
        "s3://",
        "s3:///",
        "nothing://x/y",
        "file://elsewhere/folder",
    ],
)
def test_a_url_that_is_none_or_has_a_secret_in_it_is_refused(url):
    with pytest.raises(BadOption) as caught:
        Store(url).runs()
    assert "word" not in str(caught.value).replace("password", "")


def test_the_container_of_a_url_of_azure_is_no_secret():
    url = "abfss://data@account.dfs.core.windows.net/runs"
    assert checked_url(f"{url}/") == url
    with pytest.raises(BadOption) as caught:
        checked_url("abfss://data:SECRET@account.dfs.core.windows.net/runs")
    assert "SECRET" not in str(caught.value)


def test_a_path_that_was_a_url_is_refused_without_its_secret():
    with pytest.raises(BadOption, match=r"^s3:/…") as caught:
        Store(Path("s3://key:word@bucket/a"))
    assert "word" not in str(caught.value)
    with pytest.raises(BadOption, match=r"^s3:/bucket/a"):
        Store(Path("s3://bucket/a"))


def test_wrong_keys_of_one_user_disturb_no_other(bucket_url, monkeypatch):
    good = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired")
    first = Store(bucket_url)
    with pytest.raises(FileError):
        first.runs()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", good)
    right = Store(bucket_url)
    run = right.run("a")
    run.save(1, state(1))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired")
    for wrong in (first, Store(bucket_url)):
        with pytest.raises(FileError):
            wrong.runs()
    run.save(2, state(2))
    right.close()
    assert [run.checkpoint(step).step for step in (1, 2)] == [1, 2]
    versions = right.backend.folders("models")
    assert versions[run.hash] < (UNTRUSTED, 0), "what was changed is said to be over"


def test_without_obstore_it_says_what_to_install(bucket_url, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(BadOption, match="obstore"):
        Store(bucket_url).run("a")

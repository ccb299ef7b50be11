"""The server that the tests run against, and the program that a user starts it with."""

import os
import secrets
import select
import signal
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import object_store
import obstore
import pytest
from object_store import free_ports
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from tests.examples import EXAMPLES
from tests.kit.object_store.fixtures import running
from tests.kit.object_store.server import BUCKET, HOST, Server, ServerFailed
from tests.kit.seams import Seams

NO_BUCKET = (BaseError, FileNotFoundError)


def from_environment(url: str) -> S3Store:
    return S3Store.from_url(url, client_options={"allow_http": True})


def names(store: S3Store) -> list[str]:
    return sorted(meta["path"] for page in obstore.list(store) for meta in page)


def test_a_client_finds_it_by_the_environment_and_has_a_place_of_its_own(
    bucket_url: str, server: Server
) -> None:
    store = from_environment(bucket_url)
    assert names(store) == []
    obstore.put(store, "a/b", b"0123456789")
    assert obstore.get_range(store, "a/b", start=7, length=2) == b"78"
    assert names(store) == ["a/b"]
    assert f"{bucket_url.removeprefix('s3://tests/')}/a/b" in names(server.client("tests"))


def test_creation_and_replacement_can_be_conditional(bucket_url: str) -> None:
    store = from_environment(bucket_url)
    first = obstore.put(store, "record", b"one", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "record", b"two", mode="create")
    second = obstore.put(store, "record", b"three", mode={"e_tag": first["e_tag"]})
    with pytest.raises(PreconditionError):
        obstore.put(store, "record", b"four", mode={"e_tag": first["e_tag"]})
    assert first["e_tag"] != second["e_tag"]
    assert obstore.get(store, "record").bytes() == b"three"


def test_what_the_machine_knows_of_other_stores_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "other")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "other")
    server: Server = request.getfixturevalue("server")
    request.getfixturevalue("bucket_url")
    ours = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
    files = {
        "AWS_CONFIG_FILE": str(tmp_path / "aws_config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "aws_credentials"),
    }
    assert ours == {**server.environment, **files}
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path / "cache")


def test_other_keys_and_missing_buckets_are_refused(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NO_BUCKET, match="NoSuchBucket"):
        obstore.put(from_environment("s3://absent/place"), "a", b"a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secrets.token_hex(20))
    with pytest.raises((BaseError, PermissionError), match="SignatureDoesNotMatch"):
        obstore.put(from_environment(bucket_url), "a", b"a")


@pytest.mark.long
def test_a_kill_loses_no_object_and_no_port_that_is_taken_meanwhile_keeps_it_from_starting(
    server: Server, tmp_path: Path, seams: Seams
) -> None:
    offers = iter([[server.port, *free_ports(7)], free_ports(8)])
    seams.system(object_store, free_ports=lambda *_: next(offers))
    server.bucket("first")
    with running(tmp_path / "server") as second:
        assert next(offers, None) is None
        store, endpoint, first = second.client(), second.endpoint, second.pid
        data = os.urandom(5_000_000)
        for number in range(3):
            obstore.put(store, f"{number}", data)
        with pytest.raises(NO_BUCKET, match="NoSuchBucket"):
            names(second.client("first"))
        second.kill()
        assert second.pid is None
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, second.port))
        second.start()
        assert second.pid != first
        assert second.endpoint == endpoint
        assert names(store) == ["0", "1", "2"]
        assert obstore.get(store, "2").bytes() == data
        with pytest.raises(ServerFailed):
            second.start()


@pytest.mark.long
def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = Server(tmp_path / "server")
    (server.folder / "identities.json").write_text("{not json")
    with pytest.raises(ServerFailed, match="identities"):
        server.start()
    assert server.pid is None


@pytest.mark.long
def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; sys.path.append(sys.argv[1])\n"
        "from object_store import Server\n"
        "server = Server(pathlib.Path(sys.argv[2])); server.start()\n"
        "print(server.pid, flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(EXAMPLES), str(tmp_path / "server")]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        died = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    try:
        assert select.select([died], [], [], 60)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(died, signal.SIGKILL)
        os.close(died)


def test_the_program_tells_what_to_type_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    folder = tmp_path / "s3"
    with socket.create_server((HOST, 0)) as taken, ExitStack() as stack:
        port = str(taken.getsockname()[1])
        command: list[Any] = [sys.executable, EXAMPLES / "object_store.py", "--folder", folder]
        process = subprocess.Popen([*command, "--port", port], stdout=-1, text=True)
        stack.enter_context(process)
        stack.callback(process.kill)
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip("\n") for _ in range(6)]
        exports = folder / "env"
        assert stat.S_IMODE(exports.stat().st_mode) == 0o600
        variables = [line.split("=")[0] for line in exports.read_text().splitlines()]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    keys = (folder / "identities.json").read_text()
    Server(folder)
    assert (folder / "identities.json").read_text() == keys
    assert port in lines[0], "another port than the one that is taken"
    assert lines[3:] == [
        f"source {exports}",
        f"standfast push latest s3://{BUCKET}/experiments --store experiments",
        f"standfast ls --store s3://{BUCKET}/experiments",
    ]
    wanted = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT_URL", "REGION")
    assert variables == [f"export AWS_{name}" for name in wanted]

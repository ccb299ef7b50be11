"""`standfast ui`: finds the store, listens, says where, and ends when it is told to."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from standfast import Store
from tests.kit.cli import call
from tests.web.browser.browser import start

LONG = pytest.mark.long
MAIN = "from standfast.cli import main; main()"
UI = "standfast.cli.commands.ui"
LIBRARIES = ("starlette", "uvicorn", "jinja2", "plotly", "anyio", "httpx", "torch", "sklearn")


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


SLOW = """
import time
from standfast.web import changes
from standfast.web.api import checkpoints
changes.LONGEST = 600
checkpoints.runs_diff_json = lambda *_: time.sleep(600)
from standfast.cli import main
main()
"""
ASKING = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("GET", sys.argv[2])
print("asked", flush=True)
sys.exit(connection.getresponse().status != 200)
"""


@contextmanager
def slow(small: Store) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that has long answers, and its address; it must have ended, and said no more."""
    place = str(Path(small.url).parent)
    command = [sys.executable, "-c", SLOW, "ui", place, "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=-1, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
            assert process.wait(60) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=LONG)])
def test_it_ends_at_once_and_well_when_told_to(small: Store, number: int) -> None:
    with slow(small) as (process, url):
        state = httpx.get(f"{url}api/v1/store").json()["state"]
        path = f"/api/v1/store?wait={state}&seconds=600"
        command = [sys.executable, "-c", ASKING, str(port_of(url)), path]
        waiting = subprocess.Popen(command, stdout=-1, text=True)
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "asked\n"
        with pytest.raises(httpx.ReadTimeout):  # this would take for ever
            httpx.get(f"{url}api/v1/compare?before=gpt&after=gpt", timeout=1)
        httpx.get(f"{url}api/v1/store")  # who asked before is heard by now
        process.send_signal(number)
    assert waiting.wait(60) == 0, "those who wait are answered"
    waiting.stdout.close()


def test_it_outlives_those_who_leave_before_they_are_answered(small: Store, tmp_path: Path) -> None:
    """As every browser does whose page is closed."""
    server = start(small, tmp_path / "log")
    # What is refused is answered so fast that the server does not know yet that nobody is there.
    request = b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n"
    try:
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port_of(server.url))) as leaving:
                leaving.sendall(request)
        assert httpx.get(f"{server.url}/api/v1/store").status_code == 200
        assert server.process.poll() is None
    finally:
        server.stop()
    assert server.process.returncode == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", server.log.read_text())


def test_it_is_found_by_environment_and_by_the_folder_around_and_takes_the_next_free_port(
    small: Store, tmp_path: Path
) -> None:
    place = Path(small.url).parent
    command = [sys.executable, "-c", MAIN, "ui", "--no-open"]
    around, named = {"cwd": place / "logs"}, {"env": {**os.environ, "STANDFAST_STORE": str(place)}}
    with ExitStack() as ending:
        ports = []
        for options in (around, {"cwd": tmp_path, **named}):
            process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, **options)
            ending.enter_context(process)
            ending.callback(process.terminate)
            url = process.stdout.readline().strip()
            assert httpx.get(f"{url}api/v1/store").json()["url"] == small.url
            ports.append(port_of(url))
        assert 7433 <= ports[0] < ports[1] < 7533
        assert "port 7433 is taken" in process.stderr.readline()


def test_what_cannot_be_served_is_refused(small: Store, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, place = str(taken.getsockname()[1]), str(Path(small.url).parent)
        for arguments, told in (
            ((tmp_path, "--port", "0"), "no store"),
            ((place, "--files", tmp_path / "none"), "no folder"),
            ((place, "--port", port), f"port {port}: "),
            ((place, "--host", "no.such.host.invalid"), "no.such.host.invalid"),
        ):
            done = call("ui", *arguments, "--no-open")
            assert done.code == 2
            assert told in done.err


def test_without_the_extra_it_says_what_to_install(
    small: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    done = call("ui", Path(small.url).parent, "--no-open", "--port", "0")
    assert done.code == 2
    assert "pip install" in done.err


def test_on_a_terminal_it_opens_the_browser_unless_told_not_to(
    small: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("standfast.cli.commands.ui._open", opened.append)
    monkeypatch.setattr("standfast.cli.commands.ui._run", lambda app, listening: listening.close())
    place = str(Path(small.url).parent)
    call("ui", place, "--port", "0")
    assert opened == [], "nobody looks at a pipe"
    monkeypatch.setattr("standfast.cli.commands.ui.on_terminal", lambda: True)
    call("ui", place, "--port", "0", "--no-open")
    assert opened == []
    done = call("ui", place, "--port", "0")
    assert opened == [done.out.strip()]


ALONE = """
import sys
from standfast.cli.app import run
for arguments in (["--help"], ["ls"], ["show", "latest"]):
    try:
        run(arguments)
    except SystemExit as left:
        assert not left.code
print(*sys.modules, file=sys.stderr)
"""


def test_nothing_else_imports_any_of_it(small: Store) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        env={**os.environ, "STANDFAST_STORE": str(Path(small.url).parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = done.stderr.split()
    assert "standfast.cli.commands.show" in imported
    assert not {name for name in imported if name.partition(".")[0] in LIBRARIES}
    assert not {name for name in imported if name.startswith(("standfast.web", UI))}

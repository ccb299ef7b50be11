"""`standfast ui`: finds the store, listens, says where, and ends when it is told to."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
import webbrowser
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from queue import SimpleQueue
from urllib.parse import urlsplit

import httpx
import pytest

from standfast.cli.app import run
from tests.kit.cases import kept
from tests.kit.cli import call
from tests.kit.seams import Seams

UI = "standfast.cli.commands.ui"
LIBRARIES = ("starlette", "uvicorn", "jinja2", "plotly", "anyio", "httpx", "torch", "sklearn")
PROGRAM = """
import sys
from standfast.cli.app import run

for arguments in (["--help"], ["ls"], ["show", "latest"]):
    try:
        run(arguments)
    except SystemExit as left:
        assert not left.code
print(*sys.modules, file=sys.stderr, flush=True)  # what other commands import
sys.argv[:1] = ["standfast", "ui"]

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


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


@pytest.mark.parametrize("number", kept([signal.SIGINT, signal.SIGTERM], signal.SIGINT))
def test_it_outlives_who_leaves_and_ends_at_once_when_told_to(small, number):
    place = Path(small.url).parent
    command = [sys.executable, "-c", PROGRAM, "--no-open"]
    environment = {name: text for name, text in os.environ.items() if name != "STANDFAST_STORE"}
    with (
        subprocess.Popen(
            command, stdout=-1, stderr=-1, text=True, cwd=place / "logs", env=environment
        ) as process,
        ExitStack() as ending,
    ):
        ending.callback(process.kill)
        assert process.stdout is not None
        assert process.stderr is not None
        imported = process.stderr.readline().split()
        assert "standfast.cli.commands.show" in imported
        assert not {name for name in imported if name.partition(".")[0] in LIBRARIES}
        assert not {name for name in imported if name.startswith(("standfast.web", UI))}
        for line in process.stdout:
            if line.startswith("http"):
                break
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", line)
        url, port = line.strip(), port_of(line)
        assert 7433 <= port < 7533
        assert httpx.get(f"{url}api/v1/store").json()["url"] == small.url
        # A refusal is answered so fast that the server does not know yet that nobody is there.
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port)) as leaving:
                leaving.sendall(b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n")
        state = httpx.get(f"{url}api/v1/store").json()["state"]
        path = f"/api/v1/store?wait={state}&seconds=600"
        waiting = ending.enter_context(
            subprocess.Popen([sys.executable, "-c", ASKING, str(port), path], stdout=-1, text=True)
        )
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "asked\n"
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{url}api/v1/compare?before=gpt&after=gpt", timeout=1)
        httpx.get(f"{url}api/v1/store")  # who asked before is heard by now
        process.send_signal(number)
        assert process.wait(60) == 0
        assert waiting.wait(60) == 0, "those who wait are answered"
        assert process.stdout.read() == ""
        assert [line for line in process.stderr if not line.startswith("port ")] == []


@pytest.fixture
def ui(seams: Seams) -> None:
    """The command ends where it would serve."""
    uvicorn = pytest.importorskip("uvicorn")

    def ended(run: object, sockets: list[socket.socket]) -> None:
        sockets[0].close()
        raise SystemExit(0)

    seams.system(uvicorn.Server, run=ended)


@pytest.mark.usefixtures("ui")
def test_it_takes_the_next_free_port_and_refuses_what_it_cannot_serve(small, tmp_path, monkeypatch):
    place = Path(small.url).parent
    with ExitStack() as ending:
        taken = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
        with suppress(OSError):  # another process has it
            ending.enter_context(socket.create_server(("127.0.0.1", 7433)))
        monkeypatch.setenv("STANDFAST_STORE", str(place))
        done = call("ui", "--no-open")
        assert 7433 < port_of(done.out.strip()) < 7533
        assert "7433" in done.err
        port = str(taken.getsockname()[1])
        for arguments, told in (
            ((tmp_path, "--port", "0"), str(tmp_path)),
            ((place, "--files", tmp_path / "none"), "--files"),
            ((place, "--port", port), port),
            ((place, "--host", "no.such.host.invalid"), "no.such.host.invalid"),
        ):
            call("ui", *arguments, "--no-open").fails(2, told)
    monkeypatch.setitem(sys.modules, "starlette", None)  # type: ignore[arg-type]
    call("ui", place, "--no-open", "--port", "0").fails(2, "pip install")


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("ui")
def test_on_a_terminal_it_opens_the_browser_unless_told_not_to(small, seams):
    opened = SimpleQueue[str]()
    seams.system(webbrowser, open=lambda _, url: opened.put(url))
    command, screen = ["ui", str(Path(small.url).parent), "--port", "0"], Screen()
    call(*command)
    with redirect_stdout(screen):
        for options in (["--no-open"], []):
            with pytest.raises(SystemExit):
                run([*command, *options])
    assert opened.get(timeout=60) == screen.getvalue().splitlines()[-1]
    assert opened.empty()

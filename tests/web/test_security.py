"""A page elsewhere cannot read a store through its visitor's browser, nor anybody without a token.

The server is a real one, and the requests are written byte for byte: no library mends them.
"""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.websockets import WebSocketDisconnect

from standfast import Store
from tests.web import stores
from tests.web.api.client import Api
from tests.web.browser.browser import start
from tests.web.conftest import Serve


class Answer(NamedTuple):
    status: int
    head: str
    body: bytes


@pytest.fixture
def port(small: Store, served: Serve) -> int:
    found = urlsplit(served(small)).port
    assert found is not None
    return found


def ask(port: int, path: str = "/api/v1/runs", method: str = "GET", **headers: str) -> Answer:
    """Ask with just these headers; `Sec_Fetch_Site` is Sec-Fetch-Site."""
    headers = {"Host": f"127.0.0.1:{port}", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items() if value]
    head = "\r\n".join((f"{method} {path} HTTP/1.1", *lines, "Connection: close", "", ""))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(head.encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return Answer(int(head.split()[1]), head.decode("latin-1").lower(), body)


def test_it_answers_to_its_own_names_alone(port):
    for name in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert ask(port, Host=f"{name}:{port}").status == 200, name
    for host in (
        *("attacker.example", f"attacker.example:{port}", f"127.0.0.1.attacker.example:{port}"),
        *(f"localhost.attacker.example:{port}", f"localhost:{port + 1}", "localhost", "127.0.0.1"),
        *(f"user@localhost:{port}", f"192.168.0.1:{port}", f"0.0.0.0:{port}", f":{port}", "*"),
        *(f"localhost:{port}:{port}", f"localhost.:{port}", f"127.0.0.1@attacker.example:{port}"),
        *(f"127.0.0.1:{port}, attacker.example", "[::ffff:127.0.0.1]"),
    ):
        for path in ("/", "/api/v1/runs", "/static/style.css", "/plotly.js"):
            answer = ask(port, path, Host=host)
            assert answer.status == 403, (host, path)
            assert b"gpt" not in answer.body
    assert ask(port, Host="").status in (400, 403)


def test_a_page_with_another_origin_reads_nothing(port):
    own = f"http://127.0.0.1:{port}"
    assert ask(port, Origin=own).status == 200
    for origin in (
        *("http://attacker.example", f"http://attacker.example:{port}", f"{own}.attacker.example"),
        *(f"http://attacker.example#{own}", "http://127.0.0.1:1", "http://127.0.0.1", "null"),
        *(f"https://127.0.0.1:{port}", "file://"),
        f"http://localhost:{port}",  # the same machine, and another origin than the Host
    ):
        for path in ("/api/v1/runs", "/api/v1/store", "/"):
            assert ask(port, path, Origin=origin).status == 403, (origin, path)


def test_a_page_elsewhere_may_link_to_pages_and_do_nothing_else(port):
    def fetched(mode: str, dest: str) -> dict[str, str]:
        return {"Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": dest}

    link = fetched("navigate", "document")
    for site in ("cross-site", "same-site"):
        assert ask(port, "/", Sec_Fetch_Site=site, **link).status == 200
        assert ask(port, "/lineage", Sec_Fetch_Site=site, **link).status == 200
        for path, method, headers in (
            ("/api/v1/runs", "GET", link),
            ("/static/style.css", "GET", link),
            ("/", "POST", link),
            ("/", "GET", fetched("navigate", "iframe")),
            ("/", "GET", fetched("no-cors", "script")),
            ("/static/style.css", "GET", fetched("no-cors", "style")),
            ("/plotly.js", "GET", fetched("no-cors", "script")),
            ("/api/v1/runs", "GET", fetched("cors", "empty")),
            ("/", "GET", {}),
        ):
            answer = ask(port, path, method, Sec_Fetch_Site=site, **headers)
            assert answer.status == 403, (site, path, headers)
    for site in ("same-origin", "none"):
        assert ask(port, Sec_Fetch_Site=site).status == 200


def test_no_answer_may_be_read_framed_sniffed_or_kept(port, small):
    run = small.find_run("gpt").hash
    for path in (
        *("/", f"/runs/{run}", "/api/v1/runs", "/api/v1/none", "/none"),
        *("/static/style.css", "/static/none", "/plotly.js"),
    ):
        head = ask(port, path).head
        assert "access-control-allow" not in head
        for line in (
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ):
            assert line in head, path
        policy = next(line for line in head.split("\r\n") if line.startswith("content-security"))
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        kept = path.startswith(("/static/style", "/plotly"))
        assert ("cache-control: no-store" in head) == (not kept), path


def test_what_is_in_an_address_is_text_on_its_page(port):
    for path in ("/runs/%3Cb%3Ex", "/checkpoints/%3Cb%3Ex/%3Cb%3Ey", "/runs/%22%3E%3Cb%3E"):
        page = ask(port, path)
        assert page.status == 200
        assert b"<b>" not in page.body
        assert b"&lt;b&gt;" in page.body


def test_no_path_leads_out_of_what_is_served(port):
    for path in (
        *("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py"),
        *("/static/%2e%2e%2fapp.py", "/static/..%5capp.py", "/static//etc/passwd"),
        *("/static/%2fetc%2fpasswd", "/static/..%00/app.py", "/../../etc/passwd"),
        *("/templates/base.html", "/static/../templates/base.html"),
        "/runs/..%2f..%2fetc%2fpasswd/x",
    ):
        answer = ask(port, path)
        assert answer.status in (400, 404), path
        assert b"import " not in answer.body
        assert b"root:" not in answer.body
    for path in (
        *("runs/..%2f..%2fetc", "runs/%2e%2e", "checkpoints/..%2f..%2f/1"),
        *("checkpoints/%00/1/record", "tensor?ref=../../etc@1&name=x", "files?path=../../.."),
        *("tensor?path=../../../../etc/passwd&name=x", "files?path=/etc/passwd"),
        "mesh?path=/etc/passwd",
    ):
        assert ask(port, f"/api/v1/{path}").status in (400, 403, 404), path


class Elsewhere(NamedTuple):
    """A server that listens beyond this machine."""

    port: int
    token: str
    log: Path


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    folder = tmp_path_factory.mktemp("elsewhere")
    log = folder / "log"
    stores.empty(folder / "store")
    program = start(folder / "store", log, "--host", "0.0.0.0")
    (line,) = (line for line in log.read_text().splitlines() if "http" in line)
    yield Elsewhere(urlsplit(program.url).port or 0, line.partition("?token=")[2], log)
    program.stop()


def test_beyond_this_machine_a_token_is_needed(elsewhere):
    port, token, _ = elsewhere
    assert len(token) >= 32
    for path in (
        *("/", "/api/v1/runs", "/static/style.css", "/plotly.js", "/?token=", "/?token=wrong"),
        *(f"/?token={token[:-1]}", f"/?token={token}x", f"/?Token={token}"),
    ):
        answer = ask(port, path)
        assert answer.status == 403, path
        assert "set-cookie" not in answer.head
    for wrong in (
        {"Cookie": f"standfast_{port}={token}"},
        {"Cookie": f"standfast_{port}="},
        {"Authorization": "Bearer wrong"},
    ):
        assert ask(port, **wrong).status == 403
    known = {"Authorization": f"Bearer {token}"}
    assert ask(port, **known).status == 200
    # Names and origins are checked all the same.
    assert ask(port, Host=f"{socket.gethostname()}:{port}", **known).status == 200
    assert ask(port, Host=f"192.168.7.7:{port}", **known).status == 200
    for also in (
        {"Host": f"attacker.example:{port}"},
        {"Host": f"192.168.7.7:{port + 1}"},
        {"Origin": "http://attacker.example"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        assert ask(port, **also, **known).status == 403


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address(elsewhere):
    port, token, log = elsewhere
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        answer = client.get(f"/lineage?a=1&token={token}&b=%26")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/lineage?a=1&b=%26"
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert token.lower() not in cookie
        assert client.get("/api/v1/runs").status_code == 200
        assert client.get("/").status_code == 200
        assert client.get(f"/?token={token}").headers["location"] == "/"
    for path in ("//elsewhere.example/", "/%2f/elsewhere.example", "/%5celsewhere.example"):
        head = ask(port, f"{path}?token={token}").head
        assert re.search(r"\nlocation: /[^/\\]", head), path
    assert log.read_text().count(token) == 1, "it is printed once, and never logged"


def test_there_are_no_websockets(small):
    client = Api(small).client
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/v1/runs"):
        pass

"""`standfast ui`: the dashboard of a store, served until somebody ends it."""

from __future__ import annotations

import errno
import importlib.util
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from standfast.display.output import on_terminal
from standfast.errors import BadOption, printable
from standfast.files.paths import check_local
from standfast.files.threads import Thread
from standfast.store import Store

if TYPE_CHECKING:
    import uvicorn

PORT: Final = 7433
_TRIED: Final = 100
"""So many ports from the first on are tried."""
_BACKLOG: Final = 128
_NEEDED: Final = ("starlette", "uvicorn", "jinja2", "plotly")
_PATIENCE: Final = 2
"""So many seconds answers that are under way have when it is told to end."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def serve(
    store: Store,
    *,
    port: int | None,
    host: str,
    open_browser: bool,
    allow_edit: bool,
    files: Path | None,
) -> NoReturn:
    """Serve the dashboard of a store until this process is told to end, and end it."""
    _check_installed()
    from standfast.web.app import make_app

    if files is not None:
        check_local(files)
    if files is not None and not files.is_dir():
        raise BadOption(f"--files {files} is no folder")
    listening = _listen(host, port)
    bound = listening.getsockname()
    token = None if _is_loopback(bound[0]) else secrets.token_urlsafe(24)
    app = make_app(
        store,
        allow_edit=allow_edit,
        token=token,
        hosts=_names(host) if token else {_shown(host, bound[0])},
        files=files.resolve() if files else None,
    )
    with suppress(OSError):  # what is wrong, the pages will say
        store.index.refresh()  # the first time it reads all records
    address = f"http://{_shown(host, bound[0])}:{bound[1]}/"
    whole = f"{address}?token={token}" if token else address
    print(whole, flush=True)
    if open_browser and on_terminal():
        _open(whole)
    _run(app, listening)


def _check_installed() -> None:
    for name in _NEEDED:
        try:
            found = importlib.util.find_spec(name)  # plotly itself would take seconds
        except ValueError:  # somebody put something else in its place
            found = None
        if found is None:
            raise BadOption(
                f"the dashboard needs {name}, which is not installed: "
                f"pip install {' '.join(_NEEDED)}"
            )


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens; raises BadOption where that cannot be."""
    if port is not None:
        return _bound(host, port)
    for each in range(PORT, PORT + _TRIED):
        try:
            found = _bound(host, each)
        except _Taken:
            continue
        if each != PORT:
            print(f"port {PORT} is taken: this is on {each}", file=sys.stderr)
        return found
    return _bound(host, 0)


class _Taken(BadOption):
    """Somebody else listens there."""


def _bound(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BadOption(f"--host {printable(host)}: {error}") from error
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        # What has just ended there no longer counts as somebody who listens.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        why = f"cannot listen at {printable(host)}, port {port}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            raise _Taken(f"{why}; give another --port, or 0 for any that is free") from error
        raise BadOption(why) from error
    listening.setblocking(False)
    return listening


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _shown(host: str, address: str) -> str:
    """The host in an address that can be opened here; of all there are, this machine's name."""
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        return socket.gethostname()
    name = host.strip("[]")
    return f"[{name}]" if ":" in name else name


def _names(host: str) -> set[str]:
    """What this machine may be called by who reaches it from elsewhere."""
    name = host.strip("[]")
    return {f"[{name}]" if ":" in name else name, socket.gethostname(), socket.getfqdn()}


def _open(address: str) -> None:
    import webbrowser

    Thread(webbrowser.open, address)


def _run(app: Any, listening: socket.socket) -> NoReturn:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_PATIENCE,
    )
    server = uvicorn.Server(config)
    with _ending(server, app):
        server.run(sockets=[listening])
    # A thread that still reads for somebody would keep this process, however long it takes.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def _ending(server: uvicorn.Server, app: Any) -> Iterator[None]:
    """Have signals end the server, and no more than that: to be told to end is no failure."""

    def end(number: int, frame: FrameType | None) -> None:
        if server.should_exit:  # whoever asks twice is in a hurry
            os._exit(0)
        server.should_exit = True
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # who is cut off is no error
        app.state.site.watch.end()

    @contextmanager
    def ours() -> Iterator[None]:
        yield

    server.capture_signals = ours  # type: ignore[method-assign]
    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

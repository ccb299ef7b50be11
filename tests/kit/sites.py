"""Another web server on this machine, with pages that are not the dashboard's."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class Site:
    """Serves some texts as HTML, until the end of the `with`; what it does not have is 404."""

    def __init__(self, pages: dict[str, str]) -> None:
        self.pages = pages
        self.asked: list[str] = []
        """The paths that were asked for."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def _handler(site) -> type[BaseHTTPRequestHandler]:  # noqa: N805  (`self` is the handler's)
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                text = site.pages.get(self.path.partition("?")[0])
                self.send_response(404 if text is None else 200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write((text or "").encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing is printed."""

        return Handler

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

"""Who may ask, and what browsers may do with the answers.

A page elsewhere must not read a store through its visitor's browser. Its requests bear another
Origin, or say by Sec-Fetch-Site where they come from; a name of its own that is made to lead here
(DNS rebinding) shows in the Host. Beyond this machine, whoever asks must know a token.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from standfast.web.api.answers import error_answer

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # which plotly needs
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_READING: Final = frozenset({"GET", "HEAD"})
_YEAR: Final = 365 * 86400


class Guard:
    """Lets through what may be asked, and tells browsers what they may do with the answer."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] = (), token: str | None = None) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._token = token
        self._session = secrets.token_urlsafe(32)
        """What a browser that has shown the token is known by."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no websockets here
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._refusal(scope) or self._asked_for_token(scope)
        await (answer or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request is not answered; None if it may be."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0].lower(), scope):
            return PlainTextResponse(
                "This dashboard does not go by the name in the address. Open it by the address "
                "that `standfast ui` has printed.\n",
                403,
            )
        origins = headers.getlist("origin")
        if origins and [f"http://{hosts[0].lower()}"] != [each.lower() for each in origins]:
            return _forbidden(scope, "this was asked by a page from elsewhere")
        site = headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") and not _is_visit(scope, headers):
            return _forbidden(scope, "this was asked by a page from elsewhere")
        return None

    def _is_ours(self, host: str, scope: Scope) -> bool:
        """Whether a Host is this server: by a name of its own, with its port."""
        port = (scope.get("server") or ("", None))[1]
        name, colon, given = host.rpartition(":")
        if not colon or host.endswith("]"):
            name, given = host, "80"
        if given != str(port):
            return False
        if name in LOOPBACK or name in self._hosts:
            return True
        # An address is no name that somebody could let lead here.
        return self._token is not None and _is_address(name)

    def _asked_for_token(self, scope: Scope) -> Response | None:
        """Where a token is needed: the way in for who brings it, a refusal for others."""
        if self._token is None:
            return None
        cookie = f"standfast_{(scope.get('server') or ('', 0))[1]}"
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if _is_same(dict(query).get("token", ""), self._token) and scope["method"] in _READING:
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            # Begun anew from its root: `//elsewhere` would be another machine.
            path = "/" + quote(scope["path"].lstrip("/"))
            answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(
                cookie, self._session, max_age=_YEAR, path="/", httponly=True, samesite="lax"
            )
            return answer
        headers = Headers(scope=scope)
        if _is_same(_cookies(headers).get(cookie, ""), self._session):
            return None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_same(bearer.strip(), self._token):
            return None
        return _forbidden(
            scope, "a token is needed: open the address that `standfast ui` has printed"
        )


def _forbidden(scope: Scope, why: str) -> Response:
    if scope["path"].startswith("/api/"):
        return error_answer("NotAllowed", why, 403)
    return PlainTextResponse(f"{why[0].upper()}{why[1:]}.\n", 403)


def _is_visit(scope: Scope, headers: Headers) -> bool:
    """Whether a person follows a link to one of the pages."""
    return (
        scope["method"] in _READING
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and not scope["path"].startswith(("/api/", "/static/"))
    )


def _cookies(headers: Headers) -> dict[str, str]:
    pairs = (each.partition("=") for each in headers.get("cookie", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _is_same(given: str, secret: str) -> bool:
    """In a time that tells nothing of the secret."""
    return hmac.compare_digest(given.encode(), secret.encode())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True

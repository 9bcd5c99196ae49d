"""Access control, and the headers of all responses.

Any site that the reader visits can send requests to a server on loopback: by a host name that the
site resolves to this machine (DNS rebinding), or by links in its own pages. So a request must name
a known host, must not come from another site's page, and must be GET or HEAD. Numeric addresses
cannot be rebound.

Internal errors give one line here and a plain response, never a traceback.
"""

import re
import socket
import sys
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from hmac import compare_digest
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_PATH, MAX_QUERY = 1_000, 4_000  # letters of an address
MAX_HEADERS = 100
COOKIE = "seatrial-token"
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
ELSEWHERE = (b"cross-site", b"same-site")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class AllowedHosts:
    """The accepted host names. `anywhere`: addresses of other networks, too."""

    names: frozenset[str]
    anywhere: bool = False
    token: str = ""  # required of each request; empty: none

    @classmethod
    def of(
        cls, host: str, names: Iterable[str] = (), *, anywhere: bool = False, token: str = ""
    ) -> "AllowedHosts":
        own = [socket.gethostname()] if anywhere else []
        hosts = ("localhost", host, *names, *own)
        return cls(frozenset(name.lower().rstrip(".") for name in hosts), anywhere, token)

    def accepts(self, host: str) -> bool:
        """Return whether a request with this Host header is accepted."""
        match = HOST.fullmatch(host)
        if not match:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        try:
            return ip_address(name).is_loopback or self.anywhere
        except ValueError:
            return name in self.names


@dataclass(frozen=True)
class AccessControl:
    """Middleware before the application."""

    app: ASGIApp
    door: AllowedHosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": _with_ours(message.get("headers", ()))}
            await send(message)

        try:
            refused = refusal(scope, self.door)
            await (refused or self.app)(scope, receive, answer)
        except Exception as e:
            path = str(scope.get("path"))[:200]
            print(f"seatrial: {path!r} could not be shown: {type(e).__name__}", file=sys.stderr)
            if not begun:
                failed = PlainTextResponse("This page could not be generated.\n", 500)
                await failed(scope, receive, answer)


def refusal(scope: MutableMapping[str, Any], door: AllowedHosts) -> Response | None:
    """Return the response to a request that is refused; None if it is accepted."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 or not door.accepts(hosts[0].decode("latin-1")):
        words = (
            "This server does not accept that host name; seatrial serve --allow NAME adds one.\n"
        )
        return PlainTextResponse(words, 421)
    if scope["method"] not in ("GET", "HEAD"):
        return PlainTextResponse("Only GET and HEAD are supported.\n", 405, {"allow": "GET, HEAD"})
    if len(scope["path"]) > MAX_PATH or len(scope["query_string"]) > MAX_QUERY:
        return PlainTextResponse("The address is too long.\n", 414)
    if len(headers) > MAX_HEADERS:
        return PlainTextResponse("The request headers are too long.\n", 431)
    headers_by_name = dict(headers)
    embedded = headers_by_name.get(b"sec-fetch-mode", b"navigate") != b"navigate"
    if embedded and headers_by_name.get(b"sec-fetch-site") in ELSEWHERE:
        return PlainTextResponse("Requests from other sites are refused.\n", 403)
    return _without_token(Request(scope), door.token) if door.token else None


def _without_token(request: Request, token: str) -> Response | None:
    """Return the response to a request whose cookie or Authorization header lacks the token. A
    request whose address has it gets the cookie, and is redirected to the address without it."""
    held = (request.cookies.get(COOKIE, ""), request.headers.get("authorization", ""))
    if _same(held[0], token) or _same(held[1], f"Bearer {token}"):
        return None
    if not _same(request.query_params.get("token", ""), token):
        words = "This server needs the token that is in the address which seatrial serve prints.\n"
        return PlainTextResponse(words, 401, {"www-authenticate": "Bearer"})
    rest = urlencode([(k, v) for k, v in request.query_params.multi_items() if k != "token"])
    path = f"/{quote(request.url.path.lstrip('/'))}{f'?{rest}' if rest else ''}"
    entered = RedirectResponse(path, 303)
    entered.set_cookie(COOKIE, token, httponly=True, samesite="strict")
    return entered


def _same(given: str, token: str) -> bool:
    return compare_digest(given.encode("utf-8", "replace"), token.encode())


def _with_ours(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Add our headers; a page may have a content security policy of its own."""
    there = list(headers)
    names = {name.lower() for name, _ in there}
    ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    return [*there, *((name, value) for name, value in ours if name not in names)]

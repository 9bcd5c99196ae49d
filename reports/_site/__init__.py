"""`seatrial serve`: a folder of runs as web pages, for a browser on this machine.

The site writes nothing and shows only runs. A run's folder may come from an untrusted source, so
three measures protect its reader: the template engine escapes all values; a content security policy
allows only our own scripts; and no file is opened through a symbolic link (`run_index`). A fourth
protects the server (`access`): requests for an unknown host name, or from another site's page, are
refused.

Starlette, a minimal ASGI framework, renders the pages; uvicorn serves them with h11, a strict HTTP
parser in pure Python.
"""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from secrets import token_urlsafe

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from harness.errors import EXIT_VALID, BadRequest
from harness.text.sanitize import sanitize
from reports._site.access import AllowedHosts
from reports._site.pages import application
from reports._site.run_index import RunIndex

MAX_CONNECTIONS = 400
MAX_HEAD_BYTES = 32_768  # of a request; longer ones are refused
LINGER_S = 1
REQUEST_WITHIN_S = 10.0  # a request must be complete by then
STALLED_WITHIN_S = 60  # a peer must read its answer by then


def serve(
    runs: Path, host: str, port: int, names: Sequence[str] = (), with_token: bool = False
) -> int:
    """Serve until Ctrl-C. Raises BadRequest if the folder does not exist or the address is not
    available."""
    shelf = RunIndex.of(runs)
    token = token_urlsafe(16) if with_token else ""
    with _listening(host, port) as listener:
        taken = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{taken}/{f'?token={token}' if token else ''}"
        readers = "every user of this machine" if _loopback(host) else "every host that reaches it"
        who = "" if token else f"{readers} can read them, unless --token is given; "
        print(sanitize(f"The runs of {runs}: {address} ({who}press Ctrl-C to stop)"), flush=True)
        door = AllowedHosts.of(host, names, anywhere=not _loopback(host), token=token)
        try:
            server(shelf, door).run(sockets=[listener])
        except KeyboardInterrupt:
            print(flush=True)
    return EXIT_VALID


class PromptProtocol(H11Protocol):
    """Ends connections that wait for a request, or for their peer to read, beyond a deadline, so
    that half of a request cannot hold one of the few connections."""

    request_within_s = REQUEST_WITHIN_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        wire: socket.socket = transport.get_extra_info("socket")
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_WITHIN_S * 1000)
        self._start_or_stop()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._start_or_stop()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_or_stop()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _start_or_stop(self) -> None:
        """Start the deadline, or stop it while a request is being answered."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif not answering and self._deadline is None:
            self._deadline = self.loop.call_later(self.request_within_s, self.transport.abort)


def server(shelf: RunIndex, door: AllowedHosts) -> uvicorn.Server:
    """Return the server; it prints nothing about requests."""
    config = uvicorn.Config(
        application(shelf, door),
        http=PromptProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_graceful_shutdown=LINGER_S,
    )
    return uvicorn.Server(config)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as e:
        why = (getattr(e, "strerror", None) or str(e)).partition(" (while attempting")[0]
        raise BadRequest(
            f"cannot listen on {host}, port {port}: {why}; choose another with --host or --port "
            "(--port 0 takes any free port)"
        ) from e


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

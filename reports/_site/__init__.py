"""`seatrial serve`: the folder of runs as a web page, for a browser on this machine.

Nothing is ever written, and nothing but runs is shown. Three walls stand between a run's folder,
which may come from anywhere, and its reader: the template engine escapes every value; a content
security policy lets no page run any script but ours; and no file is opened that a link could have
put elsewhere (`shelf`). A fourth stands before the door (`guard`): who asks by a name that is not
ours, or from another site's page, is turned away.

Pages are made by Starlette, as small as a framework of ASGI can be, and served by uvicorn with h11,
a strict reader of HTTP in pure Python.
"""

import socket
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from harness.errors import EXIT_VALID, BadRequest
from reports._site.guard import Door
from reports._site.pages import application
from reports._site.shelf import Shelf

MOST_CONNECTIONS = 400
MOST_HEAD_BYTES = 32_768  # of a request, before it is turned away
LINGER_S = 1


def serve(runs: Path, host: str, port: int, names: Sequence[str] = ()) -> int:
    """Until Ctrl-C. BadRequest when there is no such folder, or nobody can listen there."""
    shelf = Shelf.of(runs)
    with _listening(host, port) as listener:
        taken = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        print(f"The runs of {runs}: http://{shown}:{taken}/ (press Ctrl-C to stop)", flush=True)
        if not _loopback(host):
            print(
                "seatrial: every host that can reach this machine can read all of these runs",
                file=sys.stderr,
            )
        door = Door.of(host, names, anywhere=not _loopback(host))
        try:
            server(shelf, door).run(sockets=[listener])
        except KeyboardInterrupt:
            print(flush=True)
    return EXIT_VALID


def server(shelf: Shelf, door: Door) -> uvicorn.Server:
    """What answers requests; it says nothing, however strange they are."""
    config = uvicorn.Config(
        application(shelf, door),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
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

"""One node as a process: `python -m clusters.flotilla NODE.toml` until SIGTERM.

stdout carries one line, `ready <role> <node> <ip:port>`, once the node listens. Exit codes are
sysexits': 0 stopped by request, 64 the configuration makes no sense, 69 the address is not to be
had, 70 a fault of ours or of the disk: the node stops rather than limp.
"""

import asyncio
import errno
import sys
import traceback
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from . import config as configuration
from .config import Config, ConfigError
from .events import EventLog
from .ports import Ports, on_stop_request, process_id, real
from .rules import RULES, Rules

USAGE, UNAVAILABLE, SOFTWARE = 64, 69, 70
Main = Callable[[Config, Ports, Rules, Callable[[str], None]], Awaitable[None]]


def run(arguments: list[str], rules: Rules = RULES) -> int:
    """The exit code of a node that ran with this command line."""
    if len(arguments) != 1:
        return _complain("usage: python -m clusters.flotilla NODE.toml", USAGE)
    [path] = arguments
    try:
        config = configuration.loads(real().files.read(path).decode())
        _check(config)
    except OSError as e:
        return _complain(f"{path} can not be read: {e.strerror}", USAGE)
    except (ConfigError, UnicodeDecodeError) as e:
        return _complain(f"{path}: {e}", USAGE)
    ports = real(None if config.seed < 0 else config.seed)
    try:
        return asyncio.run(_live(config, ports, rules))
    except OSError as e:
        if e.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return _complain(f"{config.node}: {e}", SOFTWARE)
        why = f"{config.node} can not listen on {config.address}: {_reason(e)}"
        return _complain(why, UNAVAILABLE)


async def _live(config: Config, ports: Ports, rules: Rules) -> int:
    """Run the role's main; SIGTERM and SIGINT end it in order."""
    loop = asyncio.get_running_loop()
    events = EventLog(config.event_log, config.node, ports)
    loop.set_exception_handler(lambda _, context: _die(config, ports, events, context))
    ports.files.makedirs(config.store)
    work = asyncio.ensure_future(_main_of(config.role)(config, ports, rules, _ready(config)))
    on_stop_request(work.cancel)
    events.write("start", pid=process_id(), role=config.role, address=config.address)
    try:
        await work
    except asyncio.CancelledError:
        events.write("stop")
    except OSError:
        raise
    except Exception as e:
        _die(config, ports, events, {"message": "the node failed", "exception": e})
    return 0


def _main_of(role: str) -> Any:
    """Imported on demand: a nameserver needs no store."""
    return import_module(f".{role}", __package__).main


def _ready(config: Config) -> Callable[[str], None]:
    def ready(address: str) -> None:
        print(f"ready {config.role} {config.node} {address}", flush=True)

    return ready


def _check(config: Config) -> None:
    """What only a role can tell about its configuration."""
    own = config.controller_peers.get(config.controller_id)
    if config.role == "controller" and own not in (None, config.address):
        raise ConfigError(
            f"controllerDLegerPeers has {config.controller_id} at {own}, "
            f"but it listens at {config.address}"
        )
    if config.role == "controller" and config.controller_id not in config.controller_peers:
        peers = ", ".join(config.controller_peers) or "nobody"
        raise ConfigError(
            f"controllerDLegerSelfId is {config.controller_id!r}; it must be one of "
            f"controllerDLegerPeers: {peers}"
        )


def _die(config: Config, ports: Ports, events: EventLog, context: dict[str, Any]) -> None:
    """An exception that nobody expected: record it and stop."""
    exception = context.get("exception")
    why = f"{context['message']}: {exception!r}" if exception else str(context["message"])
    place = "".join(traceback.format_exception(exception)) if exception else ""
    events.write("fatal", why=why, traceback=place)
    ports.exit.fatal(f"{config.node}: {why}")


def _reason(e: OSError) -> str:
    in_use = e.errno == errno.EADDRINUSE
    return "the port is in use" if in_use else "this machine has no such address"


def _complain(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr, flush=True)
    return code

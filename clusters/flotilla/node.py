"""One node as a process: `python -m clusters.flotilla NODE.toml` until SIGTERM.

stdout carries one line, `ready <role> <node> <ip:port>`, once the node listens. Exit codes are
sysexits': 0 stopped by request, 64 the configuration makes no sense, 69 the address is not to be
had, 70 a fault of ours or of the disk: the node stops rather than limp.
"""

import asyncio
import errno
import traceback
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from . import config as configuration
from .config import Config, ConfigError
from .events import EventLog
from .rules import RULES, Rules
from .world.ports import AGAIN_S, Files, Ports, real

USAGE, UNAVAILABLE, SOFTWARE = 64, 69, 70
STARVED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
LISTENS_AGAIN = "BaseSelectorEventLoop._start_serving"  # as asyncio calls it in what it reports
Main = Callable[[Config, Ports, Rules, Callable[[str], None]], Awaitable[None]]


def run(arguments: list[str], rules: Rules = RULES) -> int:
    """The exit code of a node that ran with this command line on this machine."""
    return asyncio.run(serve(arguments, real, rules))


async def serve(
    arguments: list[str], ports_of: Callable[[int | None], Ports], rules: Rules = RULES
) -> int:
    """The exit code of a node that ran with this command line. `ports_of`: a seed -> its world."""
    ports = ports_of(None)
    try:
        config = configure(arguments, ports.files)
    except ConfigError as e:
        ports.process.complain(str(e))
        return USAGE
    return await live(config, ports if config.seed < 0 else ports_of(config.seed), rules)


def configure(arguments: list[str], files: Files) -> Config:
    """The configuration that a command line names. ConfigError: one sentence."""
    if len(arguments) != 1:
        raise ConfigError("usage: python -m clusters.flotilla NODE.toml")
    [path] = arguments
    try:
        config = configuration.loads(files.read(path).decode())
        _check(config)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except (ConfigError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: {e}") from e
    return config


async def live(config: Config, ports: Ports, rules: Rules) -> int:
    """Be this node until asked to stop; the exit code."""
    try:
        return await _live(config, ports, rules)
    except OSError as e:
        if e.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            ports.process.complain(f"{config.node}: {e}")
            return SOFTWARE
        inside = config.controller_in_nameserver
        also = f" and {config.controller_peers[config.controller_id]}" if inside else ""
        why = f"{config.node} cannot listen on {config.address}{also}: {_reason(e)}"
        ports.process.complain(why)
        return UNAVAILABLE


async def _live(config: Config, ports: Ports, rules: Rules) -> int:
    """Run the role's main; a request to stop ends it in order."""
    loop = asyncio.get_running_loop()
    events = EventLog(config.event_log, config.node, ports)
    starved = _Starved(config.node, ports, events)

    def unexpected(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not starved.told(context):
            _die(config, ports, events, context)

    loop.set_exception_handler(unexpected)
    ports.files.makedirs(config.store)
    ready = _ready(config, ports)
    work = asyncio.ensure_future(_main_of(config)(config, ports, rules, ready))
    ports.process.on_stop_request(work.cancel)
    events.write("start", pid=ports.process.pid(), role=config.role, address=config.address)
    try:
        await work
    except asyncio.CancelledError:
        events.write("stop")
    except OSError:
        raise
    except Exception as e:
        _die(config, ports, events, {"message": "the node failed", "exception": e})
    return 0


MAINS = {  # the module with a role's `main`
    "broker": ".broker.broker",
    "controller": ".controllers.controller",
    "nameserver": ".nameserver.nameserver",
    "embedded": ".nameserver.embedded",
}


def _main_of(config: Config) -> Any:
    """Imported on demand: a nameserver needs no store."""
    role = "embedded" if config.controller_in_nameserver else config.role
    return import_module(MAINS[role], __package__).main


def _ready(config: Config, ports: Ports) -> Callable[[str], None]:
    def ready(address: str) -> None:
        ports.process.say(f"ready {config.role} {config.node} {address}")

    return ready


def _check(config: Config) -> None:
    """What only a role can tell about its configuration."""
    inside = config.controller_in_nameserver
    if inside and config.role != "nameserver":
        raise ConfigError(f"enableControllerInNamesrv is for a nameserver, not for a {config.role}")
    if not inside and config.role != "controller":
        return
    if not config.controller_id:
        raise ConfigError("the key controllerDLegerSelfId is missing")
    if not inside and not config.controller_peers:
        return  # it waits until a group adds it
    own = config.controller_peers.get(config.controller_id)
    if own is None:
        peers = ", ".join(config.controller_peers) or "nobody"
        raise ConfigError(
            f"controllerDLegerSelfId is {config.controller_id!r}; it must be one of "
            f"controllerDLegerPeers: {peers}"
        )
    if inside and own == config.address:
        raise ConfigError(
            f"controllerDLegerPeers has {config.controller_id} at {own}, where the nameserver "
            "listens; the controller inside needs a port of its own"
        )
    if not inside and own != config.address:
        raise ConfigError(
            f"controllerDLegerPeers has {config.controller_id} at {own}, "
            f"but it listens at {config.address}"
        )


class _Starved:
    """What is only a lack of descriptors: whoever dials has to wait. asyncio tells of it for each
    that waits, and tries again after a second, even with a listener that was closed meanwhile."""

    def __init__(self, node: str, ports: Ports, events: EventLog) -> None:
        self._node, self._ports, self._events = node, ports, events
        self._quiet_until = 0.0

    def told(self, context: dict[str, Any]) -> bool:
        """Was it that? It is told once in that time: the event log can not be opened either."""
        exception = context.get("exception")
        if isinstance(exception, ValueError) and LISTENS_AGAIN in context["message"]:
            return self._quiet_until > 0
        if "socket" not in context or not isinstance(exception, OSError):
            return False
        if exception.errno not in STARVED:
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._quiet_until:
            self._quiet_until = now_s + AGAIN_S
            self._events.write("starved", why=f"nobody can be let in: {exception.strerror}")
            self._ports.process.complain(f"{self._node} can let nobody in: {exception.strerror}")
        return True


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

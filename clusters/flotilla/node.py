"""One node as a process: `python -m clusters.flotilla NODE.toml` runs until SIGTERM.

stdout has one line, `ready <role> <node> <ip:port>`, once the node listens. Exit codes follow
sysexits.h: 0 stopped by request; 64 the configuration is invalid; 69 the address is not available;
70 an internal error or a disk error. A node stops at an error that it cannot handle.
"""

import asyncio
import errno
import traceback
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from . import config as configuration
from .config import Config, ConfigError
from .container.isolation import InnerFailed
from .events import EventLog
from .ha_machine.machine import PAIR
from .rules import RULES, Rules
from .world.ports import RETRY_S, FileSystem, Ports, real

USAGE, UNAVAILABLE, SOFTWARE = 64, 69, 70
SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
START_SERVING = "BaseSelectorEventLoop._start_serving"  # in asyncio's error reports
Main = Callable[[Config, Ports, Rules, Callable[[str], None]], Awaitable[None]]


def run(arguments: list[str], rules: Rules = RULES) -> int:
    """Run the node of this command line on this machine; return the exit code."""
    return asyncio.run(serve(arguments, real, rules))


async def serve(
    arguments: list[str], ports_of: Callable[[int | None], Ports], rules: Rules = RULES
) -> int:
    """Run the node of this command line; return the exit code. `ports_of`: seed -> ports."""
    ports = ports_of(None)
    try:
        config = configure(arguments, ports.files)
    except ConfigError as e:
        ports.process.print_error(str(e))
        return USAGE
    return await run_node(config, ports if config.seed < 0 else ports_of(config.seed), rules)


def configure(arguments: list[str], files: FileSystem) -> Config:
    """Read the configuration that a command line names. Raises ConfigError."""
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


async def run_node(config: Config, ports: Ports, rules: Rules) -> int:
    """Run this node until it is asked to stop; return the exit code."""
    try:
        return await _run_role(config, ports, rules)
    except OSError as e:
        if e.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            ports.process.print_error(f"{config.node}: {e}")
            return SOFTWARE
        embedded = config.controller_in_nameserver
        also = f" and {config.controller_peers[config.controller_id]}" if embedded else ""
        why = f"{config.node} cannot listen on {config.address}{also}: {_reason(e)}"
        ports.process.print_error(why)
        return UNAVAILABLE


async def _run_role(config: Config, ports: Ports, rules: Rules) -> int:
    """Run the role's main until it is cancelled by a request to stop."""
    loop = asyncio.get_running_loop()
    events = EventLog(config.event_log, config.node, ports)
    shortage = DescriptorShortage(config.node, ports, events)

    def unexpected(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), InnerFailed):
            return  # the container has recorded it and goes on
        if not shortage.report(context):
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


MAINS = {  # role -> module with its `main`
    "broker": ".broker.broker",
    "convertible": ".conversion.convertible_broker",
    "controller": ".controllers.controller",
    "coordinator": ".zk.server",
    "hacontroller": ".ha_machine.controller",
    "nameserver": ".nameserver.nameserver",
    "embedded": ".nameserver.embedded",
    "container": ".container.container",
}


def _main_of(config: Config) -> Any:
    """Import on demand: a nameserver needs no store."""
    role = "embedded" if config.controller_in_nameserver else config.role
    role = "convertible" if role == "broker" and config.convertible else role
    return import_module(MAINS[role], __package__).main


def _ready(config: Config, ports: Ports) -> Callable[[str], None]:
    def ready(address: str) -> None:
        ports.process.print_line(f"ready {config.role} {config.node} {address}")

    return ready


def _check(config: Config) -> None:
    """Check what depends on the role. Raises ConfigError."""
    if config.role == "broker" and (config.raft_log or config.convertible):
        _check_peers(config)
    if config.role == "broker" and config.convertible:
        _check_convertible(config)
    embedded = config.controller_in_nameserver
    if config.role != "container" and config.broker_config_paths:
        raise ConfigError(f"brokerConfigPaths is for a container, not for a {config.role}")
    if embedded and config.role != "nameserver":
        raise ConfigError(f"enableControllerInNamesrv is for a nameserver, not for a {config.role}")
    if config.role == "hacontroller" and not config.zk_servers:
        raise ConfigError("an hacontroller needs zkServers, the addresses for sessions")
    if config.role == "coordinator":
        _check_coordinator(config)
    if not embedded and config.role != "controller":
        return
    if not config.controller_id:
        raise ConfigError("the key controllerDLegerSelfId is missing")
    if not embedded and not config.controller_peers:
        return  # this controller waits until a group adds it
    own = config.controller_peers.get(config.controller_id)
    if own is None:
        peers = ", ".join(config.controller_peers) or "none"
        raise ConfigError(
            f"controllerDLegerSelfId is {config.controller_id!r}; it must be one of "
            f"controllerDLegerPeers: {peers}"
        )
    if embedded and own == config.address:
        raise ConfigError(
            f"controllerDLegerPeers has {config.controller_id} at {own}, where the nameserver "
            "listens; the embedded controller needs its own port"
        )
    if not embedded and own != config.address:
        raise ConfigError(
            f"controllerDLegerPeers has {config.controller_id} at {own}, "
            f"but it listens at {config.address}"
        )


def _check_coordinator(config: Config) -> None:
    """Refuse a coordinator that is not one of its peers. Raises ConfigError."""
    own = config.coordinator_peers.get(config.node)
    if own != config.address:
        where = f"at {own}" if own else "nowhere"
        raise ConfigError(
            f"coordinatorPeers has {config.node} {where}, but it listens at {config.address}"
        )


def _check_peers(config: Config) -> None:
    """Check the Raft group of a broker. Raises ConfigError."""
    me, peers = config.dleger_self_id, config.dleger_peers
    for name in (me, *peers):
        if name[:1] != "n" or not (name[1:].isascii() and name[1:].isdecimal()):
            raise ConfigError(
                f"dLegerSelfId and the ids in dLegerPeers are n0, n1 ...; not {name!r}"
            )
    if peers.get(me) != config.address:
        raise ConfigError(
            f"dLegerPeers must have {me}, this broker, at {config.address}; it has "
            + (", ".join(f"{name} at {address}" for name, address in peers.items()) or "no broker")
        )
    if len(set(peers.values())) < len(peers):
        raise ConfigError("dLegerPeers has one address twice; each broker has one vote")


def _check_convertible(config: Config) -> None:
    """Refuse a broker whose ids in the different modes differ. Raises ConfigError."""
    expected = f"n{config.broker_id}"
    if config.dleger_self_id != expected:
        raise ConfigError(
            f"convertible = true needs dLegerSelfId {expected} for brokerId {config.broker_id}, so "
            f"that the broker has one id in each mode; it is {config.dleger_self_id}"
        )
    if config.zookeeper and not config.zk_servers:
        raise ConfigError("haMode = zookeeper needs zkServers, the addresses for sessions")
    if config.zk_servers and config.total_replicas != PAIR:
        raise ConfigError(
            f"convertible = true with zkServers needs totalReplicas = {PAIR}, a master and a slave "
            f"for mode zookeeper; it is {config.total_replicas}"
        )
    if len(config.dleger_peers) != config.total_replicas:
        raise ConfigError(
            f"convertible = true needs all totalReplicas = {config.total_replicas} brokers in "
            f"dLegerPeers, which has {len(config.dleger_peers)}"
        )


class DescriptorShortage:
    """Reports that connections cannot be accepted for lack of file descriptors or memory.

    Clients have to wait meanwhile. asyncio reports it for each waiting client and tries again after
    a second, even with a listener that was closed in the meantime.
    """

    def __init__(self, node: str, ports: Ports, events: EventLog) -> None:
        self._node, self._ports, self._events = node, ports, events
        self._quiet_until = 0.0

    def report(self, context: dict[str, Any]) -> bool:
        """Return whether asyncio's error report is about a shortage; record it once a second.

        The event log cannot be opened either while descriptors are short.
        """
        exception = context.get("exception")
        if isinstance(exception, ValueError) and START_SERVING in context["message"]:
            return self._quiet_until > 0
        if "socket" not in context or not isinstance(exception, OSError):
            return False
        if exception.errno not in SHORTAGE_ERRNOS:
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._quiet_until:
            self._quiet_until = now_s + RETRY_S
            why = f"cannot accept connections: {exception.strerror}"
            self._events.write("starved", why=why)
            self._ports.process.print_error(f"{self._node} {why}")
        return True


def _die(config: Config, ports: Ports, events: EventLog, context: dict[str, Any]) -> None:
    """Record an unexpected exception and stop."""
    exception = context.get("exception")
    why = f"{context['message']}: {exception!r}" if exception else str(context["message"])
    place = "".join(traceback.format_exception(exception)) if exception else ""
    events.write("fatal", why=why, traceback=place)
    ports.exit.fatal(f"{config.node}: {why}")


def _reason(e: OSError) -> str:
    in_use = e.errno == errno.EADDRINUSE
    return "the port is in use" if in_use else "this machine has no such address"

"""The command line of the operator's tool: words in, an `Order` out, or one sentence why not. Pure.

Options that say where the cluster is come after the command, as those of mqadmin do. Some commands
ask the controllers, some the nameservers, some either; one that lacks its addresses says so.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from .command import Command, Options
from .commands import COMMANDS

PROGRAM = "python -m clusters.flotilla admin"
TIMEOUT_S = 10.0
WHERE = {
    "controllers": ("controllers",),
    "namesrv": ("namesrv",),
    "either": ("controllers", "namesrv"),
    "node": ("node",),
}


class Misused(Exception):
    """The command line makes no sense; the text says why."""


class Help(Exception):
    """Somebody asked for help; the text is it."""


@dataclass(frozen=True)
class Order:
    """A command with its options, and where the cluster is."""

    command: Command
    options: Options
    controllers: tuple[str, ...]
    nameservers: tuple[str, ...]
    timeout_s: float
    json: bool


def understand(words: Sequence[str]) -> Order:
    """Misused, Help."""
    options = _parser(COMMANDS).parse_args(list(words))
    command: Command = options.command
    needed = WHERE[command.needs]
    if not any(getattr(options, name) for name in needed):
        flags = " or ".join(f"--{name}" for name in needed)
        raise Misused(f"{command.name} needs {flags}, as ip:port[,ip:port...]")
    return Order(
        command,
        options,
        options.controllers,
        options.namesrv,
        options.timeout,
        options.json,
    )


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of writing and leaving."""

    def error(self, message: str) -> NoReturn:
        raise Misused(f"{message}; {self.prog} --help tells more")

    def print_help(self, file: IO[str] | None = None) -> NoReturn:  # type: ignore[override]
        raise Help(self.format_help())


def _parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Look at a Flotilla cluster, and give it orders.")
    kinds = _choices(parser)
    groups: dict[str, Any] = {}
    for command in commands:
        group, _, verb = command.name.rpartition(" ")
        if group and group not in groups:
            whole = [c.name.rpartition(" ")[2] for c in commands if c.name.startswith(f"{group} ")]
            groups[group] = _choices(kinds.add_parser(group, help=", ".join(whole)))
        into = groups[group] if group else kinds
        one = into.add_parser(verb, help=command.does, description=command.does)
        for names, how in command.arguments:
            one.add_argument(*names, **how)
        _add_shared(one, command.needs)
        one.set_defaults(command=command)
    return parser


def _choices(parser: argparse.ArgumentParser) -> Any:
    return parser.add_subparsers(metavar="COMMAND", required=True)


def _add_shared(parser: argparse.ArgumentParser, needs: str) -> None:
    parser.set_defaults(controllers=(), namesrv=(), node=())
    where: dict[str, Any] = {"type": addresses, "metavar": "IP:PORT,..."}
    if needs == "node":
        parser.add_argument("--node", help="the nodes that are meant", **where)
    else:
        parser.add_argument("--controllers", help="where controllers are", **where)
        parser.add_argument("--namesrv", help="where nameservers are", **where)
    parser.add_argument("--timeout", type=_seconds, default=TIMEOUT_S, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")


def addresses(text: str) -> tuple[str, ...]:
    """`ip:port[,ip:port...]`."""
    found = tuple(text.split(","))
    for one in found:
        host, _, port = one.rpartition(":")
        if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise argparse.ArgumentTypeError(f"{one!r} is not ip:port")
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 3600")
    return seconds

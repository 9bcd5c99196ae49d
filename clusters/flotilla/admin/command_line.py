"""The command line of the operator's tool, parsed into an `Invocation`. Pure.

Options with the cluster's addresses follow the command, as in mqadmin. Some commands ask the
controllers, some the nameservers, some either.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from . import control, metadata, sets
from .command import AdminCommand, Options

# in the order of the help
COMMANDS: tuple[AdminCommand, ...] = (
    *sets.COMMANDS,
    *control.CONTROLLER_COMMANDS,
    *metadata.COMMANDS,
    *control.CONFIG_COMMANDS,
    *control.CONTAINER_COMMANDS,
)

PROGRAM = "python -m clusters.flotilla admin"
TIMEOUT_S = 10.0
ADDRESS_OPTIONS = {
    "controllers": ("controllers",),
    "namesrv": ("namesrv",),
    "either": ("controllers", "namesrv"),
    "node": ("node",),
}


class UsageError(Exception):
    """The command line is wrong; the text says why."""


class HelpRequest(Exception):
    """The user asked for help; the text of the exception is the help."""


@dataclass(frozen=True)
class Invocation:
    """A command with its options and the addresses of the cluster."""

    command: AdminCommand
    options: Options
    controllers: tuple[str, ...]
    nameservers: tuple[str, ...]
    timeout_s: float
    json: bool


def parse_command_line(arguments: Sequence[str]) -> Invocation:
    """Parse a command line. Raises UsageError, HelpRequest."""
    options = _parser(COMMANDS).parse_args(list(arguments))
    command: AdminCommand = options.command
    needed = ADDRESS_OPTIONS[command.needs]
    if not any(getattr(options, name) for name in needed):
        flags = " or ".join(f"--{name}" for name in needed)
        raise UsageError(f"{command.name} needs {flags}, as ip:port[,ip:port...]")
    return Invocation(
        command,
        options,
        options.controllers,
        options.namesrv,
        options.timeout,
        options.json,
    )


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")

    def print_help(self, file: IO[str] | None = None) -> NoReturn:  # type: ignore[override]
        raise HelpRequest(self.format_help())


def _parser(commands: Sequence[AdminCommand]) -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Inspect and control a Flotilla cluster.")
    kinds = _choices(parser)
    groups: dict[str, Any] = {}
    for command in commands:
        group, _, verb = command.name.rpartition(" ")
        if group and group not in groups:
            verbs = [c.name.rpartition(" ")[2] for c in commands if c.name.startswith(f"{group} ")]
            groups[group] = _choices(kinds.add_parser(group, help=", ".join(verbs)))
        into = groups[group] if group else kinds
        subparser = into.add_parser(verb, help=command.does, description=command.does)
        for names, how in command.arguments:
            subparser.add_argument(*names, **how)
        _add_shared(subparser, command.needs)
        subparser.set_defaults(command=command)
    return parser


def _choices(parser: argparse.ArgumentParser) -> Any:
    return parser.add_subparsers(metavar="COMMAND", required=True)


def _add_shared(parser: argparse.ArgumentParser, needs: str) -> None:
    parser.set_defaults(controllers=(), namesrv=(), node=())
    where: dict[str, Any] = {"type": addresses, "metavar": "IP:PORT,..."}
    if needs == "node":
        parser.add_argument("--node", help="addresses of the nodes", **where)
    else:
        parser.add_argument("--controllers", help="addresses of controllers", **where)
        parser.add_argument("--namesrv", help="addresses of nameservers", **where)
    parser.add_argument("--timeout", type=_seconds, default=TIMEOUT_S, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")


def addresses(text: str) -> tuple[str, ...]:
    """Parse `ip:port[,ip:port...]`."""
    found = tuple(text.split(","))
    for address in found:
        host, _, port = address.rpartition(":")
        if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise argparse.ArgumentTypeError(f"{address!r} is not ip:port")
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 3600")
    return seconds

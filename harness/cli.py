"""`seatrial`: every command, and the one place where an ending becomes an exit code.

    0 valid   1 invalid   2 unknown   254 the request makes no sense   255 the test bed failed

The codes are Jepsen's; click's own never leak, because a 1 for "usage error" would read as "the
cluster lost data". Messages go to standard error, one sentence each, without a traceback;
SEATRIAL_DEBUG=1 shows where a failure of ours came from. Each command is a file under
`harness/commands/`, imported when it is named, so that help is instant.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version

import click

from harness.errors import (
    EXIT_BAD_REQUEST,
    EXIT_BED_FAILED,
    EXIT_UNKNOWN,
    EXIT_VALID,
    SeatrialError,
    UnknownName,
)
from harness.outlet import close_outlets, open_outlets

COMMANDS = ("run", "check", "report", "replay", "list", "doctor", "heal", "suite", "cluster")


class Seatrial(click.Group):
    """The group of commands; each is imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in COMMANDS:
            raise UnknownName("command", cmd_name, COMMANDS)
        command: click.Command = import_module(f"harness.commands.{cmd_name}").command
        return command


@click.group(cls=Seatrial, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("seatrial"), prog_name="seatrial")
def seatrial() -> None:
    """Put a replicated message system through sea trials: raise a real cluster, load it, break it,
    and prove what was lost, reordered or torn."""


def main() -> None:
    """The console script."""
    open_outlets()
    code = exit_code(sys.argv[1:])
    written = close_outlets()
    sys.exit(code if written or code else EXIT_BED_FAILED)


def exit_code(arguments: Sequence[str]) -> int:
    """Carry out one command line; never raises. Not by click's own `main`, whose codes differ."""
    try:
        with seatrial.make_context("seatrial", list(arguments)) as context:
            return int(seatrial.invoke(context) or EXIT_VALID)
    except click.exceptions.Exit as asked:  # --help, --version
        return asked.exit_code
    except BaseException as error:
        return _failed(error)


def _failed(error: BaseException) -> int:
    """Say what went wrong in one sentence; the exit code it stands for."""
    if os.environ.get("SEATRIAL_DEBUG"):
        traceback.print_exception(error)
    match error:
        case SeatrialError():
            _say(str(error))
            return error.exit_code
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return EXIT_BAD_REQUEST
        case click.ClickException():
            _say(_usage(error))
            return EXIT_BAD_REQUEST
        case KeyboardInterrupt() | click.Abort():
            _say("stopped before there was a verdict")
            return EXIT_UNKNOWN
        case SystemExit():
            return error.code if isinstance(error.code, int) else EXIT_BED_FAILED
        case OSError():
            _say(f"this machine refused: {error}")
            return EXIT_BED_FAILED
        case _:
            kind = type(error).__name__
            _say(f"Seatrial itself failed: {kind}: {error} (SEATRIAL_DEBUG=1 shows where)")
            return EXIT_BED_FAILED


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "seatrial"
    sentence = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError):
        return f"{sentence}; `{path} --help` shows what it takes"
    return sentence


def _say(sentence: str) -> None:
    with suppress(OSError):  # a log on a full disk
        click.echo(f"seatrial: {' '.join(sentence.split())}", err=True)

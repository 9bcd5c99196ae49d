"""The one place where an ending becomes an exit code.

    0 valid   1 invalid   2 unknown   254 the request makes no sense   255 the test bed failed

The codes are Jepsen's; click's own never leak, because a 1 for "usage error" would read as "the
cluster lost data". Messages go to standard error, one sentence each, without a traceback;
SEATRIAL_DEBUG=1 shows where a failure of ours came from.
"""

import os
import traceback
from collections.abc import Sequence
from contextlib import suppress

import click
from click.shell_completion import shell_complete

from harness import registry
from harness.cli.commands._group import seatrial
from harness.cli.commands._names import COMPLETION
from harness.cli.console import message, output
from harness.cli.settings_file import default_map
from harness.cli.stdio import close_outlets, open_outlets
from harness.errors import (
    EXIT_BAD_REQUEST,
    EXIT_BED_FAILED,
    EXIT_UNKNOWN,
    EXIT_VALID,
    LITTLE_MEMORY,
    SeatrialError,
)
from harness.text.sanitize import masked, sayable


def ended(arguments: Sequence[str]) -> int:
    """The exit code of one command line, which is carried out; all that it said is written."""
    open_outlets()
    code = exit_code(arguments)
    written = close_outlets()
    return code if written or code else EXIT_BED_FAILED


def exit_code(arguments: Sequence[str]) -> int:
    """Carry out one command line; never raises. Not by click's own `main`, whose codes differ."""
    context: click.Context | None = None
    try:
        if wanted := os.environ.get(COMPLETION):
            return shell_complete(seatrial, {}, "seatrial", COMPLETION, wanted)
        defaults = default_map(seatrial)
        with seatrial.make_context("seatrial", list(arguments), default_map=defaults) as context:
            return int(seatrial.invoke(context) or EXIT_VALID)
    except click.exceptions.Exit as asked:  # --help, --version
        return asked.exit_code
    except BaseException as error:
        return _failed(error, verbose=context is not None and output(context).verbose)


def _failed(error: BaseException, verbose: bool) -> int:
    """Say what went wrong in one sentence; the exit code it stands for."""
    if verbose or os.environ.get("SEATRIAL_DEBUG"):
        click.echo(sayable(masked("".join(traceback.format_exception(error)))), err=True, nl=False)
    match error:
        case SeatrialError():
            return _said(str(error), error.exit_code)
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return EXIT_BAD_REQUEST
        case click.ClickException():
            return _said(_usage(error), EXIT_BAD_REQUEST)
        case KeyboardInterrupt() | click.Abort():
            return _said(f"stopped before there was a verdict{error}", EXIT_UNKNOWN)
        case SystemExit():  # nobody of ours ends like that
            words = f"a library ended the command, with {error.code} (SEATRIAL_DEBUG=1 shows where)"
            return _said(words, EXIT_BED_FAILED)
        case MemoryError():
            return _said(f"{LITTLE_MEMORY}; make the input smaller", EXIT_BED_FAILED)
        case OSError():
            return _said(f"this machine refused: {error}", EXIT_BED_FAILED)
        case _:
            words = f"{registry.blamed(error)} (SEATRIAL_DEBUG=1 shows where)"
            return _said(words, EXIT_BED_FAILED)


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "seatrial"
    sentence = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError):
        return f"{sentence}; `{path} --help` lists its options"
    return sentence


def _said(sentence: str, code: int) -> int:
    with suppress(OSError):  # a log on a full disk
        click.echo(message(f"seatrial: {sentence}"), err=True)
    return code

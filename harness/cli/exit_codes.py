"""Exit codes, and the one-sentence errors of the command line.

    0 valid   1 invalid   2 unknown   254 the request makes no sense   255 the test bed failed

The codes are Jepsen's. click's own are not used: its 1 for a usage error would mean that the
cluster lost data. Messages go to standard error, one sentence each, without a traceback;
SEATRIAL_DEBUG=1 adds the traceback of an internal error.

A command may outlive the readers of its output. After `seatrial run | head`, or when a terminal is
closed or a log collector died, the trial continues with the same verdict and exit code, and further
output is discarded. A full disk is an error: the output was to be kept.
"""

import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

import click
from click.shell_completion import shell_complete

from harness import registry
from harness.cli.commands._group import seatrial
from harness.cli.commands._names import COMPLETION
from harness.cli.console import message, output
from harness.cli.settings_file import default_map
from harness.errors import (
    EXIT_BAD_REQUEST,
    EXIT_BED_FAILED,
    EXIT_UNKNOWN,
    EXIT_VALID,
    OUT_OF_MEMORY,
    SeatrialError,
)
from harness.text.sanitize import mask_secrets, sanitize

GONE = (errno.EPIPE, errno.EIO, errno.EBADF)


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command line, flush its output, and return the exit code."""
    wrap_stdio()
    code = exit_code(arguments)
    written = flush_stdio()
    return code if written or code else EXIT_BED_FAILED


def exit_code(arguments: Sequence[str]) -> int:
    """Run one command line. Never raises; does not use click's `main`, whose codes differ."""
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
        return _report_error(error, verbose=context is not None and output(context).verbose)


def _report_error(error: BaseException, verbose: bool) -> int:
    """Print an error in one sentence, and return its exit code."""
    if verbose or os.environ.get("SEATRIAL_DEBUG"):
        click.echo(
            sanitize(mask_secrets("".join(traceback.format_exception(error)))), err=True, nl=False
        )
    match error:
        case SeatrialError():
            return _print_error(str(error), error.exit_code)
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return EXIT_BAD_REQUEST
        case click.ClickException():
            return _print_error(_usage(error), EXIT_BAD_REQUEST)
        case KeyboardInterrupt() | click.Abort():
            return _print_error(f"stopped before there was a verdict{error}", EXIT_UNKNOWN)
        case SystemExit():  # our code raises none
            words = f"a library ended the command, with {error.code} (SEATRIAL_DEBUG=1 shows where)"
            return _print_error(words, EXIT_BED_FAILED)
        case MemoryError():
            return _print_error(f"{OUT_OF_MEMORY}; make the input smaller", EXIT_BED_FAILED)
        case OSError():
            return _print_error(f"this machine refused: {error}", EXIT_BED_FAILED)
        case _:
            words = f"{registry.blame(error)} (SEATRIAL_DEBUG=1 shows where)"
            return _print_error(words, EXIT_BED_FAILED)


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "seatrial"
    sentence = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError):
        return f"{sentence}; `{path} --help` lists its options"
    return sentence


def _print_error(sentence: str, code: int) -> int:
    with suppress(OSError):  # standard error may be a file on a full disk
        click.echo(message(f"seatrial: {sentence}"), err=True)
    return code


# ---------------------------------------------------------------------------- standard streams


class DiscardingStream(io.TextIOWrapper):
    """A text stream that discards its output once its reader is gone."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as e:
            self._discard_if_gone(e)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as e:
            self._discard_if_gone(e)

    def _discard_if_gone(self, error: OSError) -> None:
        if error.errno not in GONE:
            raise error
        self.silence()

    def silence(self) -> None:
        """Discard all further output."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)


def wrap_stdio() -> None:
    """Replace both streams; output to a stream that is closed is discarded."""
    sys.stdout, sys.stderr = _wrap(sys.stdout), _wrap(sys.stderr)


def flush_stdio() -> bool:
    """Return whether all output was written. The interpreter's flush at exit then succeeds."""
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            written = False
            if isinstance(stream, DiscardingStream):
                stream.silence()
                with suppress(OSError):
                    stream.flush()
    return written


def _wrap(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w")
    return DiscardingStream(
        stream.buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty() or stream is sys.stderr,
    )

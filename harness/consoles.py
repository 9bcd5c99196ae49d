"""Where a command prints: tables on standard output, progress on standard error.

`-q`, `-v` and `--color` hold for one command line and are kept in its click context. A table is as
wide as the terminal, or as its longest line where a program reads it.
"""

import shutil
import sys
from dataclasses import dataclass, replace
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from harness.sayable import sayable

if TYPE_CHECKING:
    from rich.console import Console

NOT_WRAPPED = 10_000  # columns: what reads us is no terminal
COLORS = ("auto", "always", "never")
KEY = "seatrial.output"


@dataclass(frozen=True)
class Output:
    """How much a command prints, and whether in color."""

    quiet: bool = False  # results and errors only
    verbose: bool = False  # each step as a line, and where an error came from
    color: str = "auto"


def output(context: click.Context | None = None) -> Output:
    """The options of this command line; the defaults outside of one."""
    context = context or click.get_current_context(silent=True)
    found = context.find_root().meta.get(KEY) if context else None
    return found if isinstance(found, Output) else Output()


def _choose(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Keep what was chosen, on whichever level of the command line it stands."""
    if value in (None, False):
        return
    name = str(option.name)
    default = context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    if default and getattr(output(), name) != getattr(Output(), name):
        return  # it stands on the command line, before the command
    chosen = replace(output(), **{name: value})
    context.find_root().meta[KEY] = chosen
    if name == "color" and value != "auto":
        context.color = value == "always"


def output_options() -> tuple[click.Option, ...]:
    """`-q`, `-v` and `--color`, for the group and for each of its commands."""
    return (
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_choose,
            help="Print results and errors only.",
        ),
        click.Option(
            ["-v", "--verbose"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_choose,
            help="Print each step as a line, and the traceback of an error.",
        ),
        click.Option(
            ["--color"],
            type=click.Choice(COLORS),
            show_default="auto",
            expose_value=False,
            is_eager=True,
            callback=_choose,
            help="Whether to print in color; auto: on a terminal.",
        ),
    )


def message(sentence: str) -> str:
    """A sentence for standard error: on a terminal its lines break between words only, so that a
    command or a path in it can be copied."""
    plain = sayable(" ".join(sentence.split()))
    if not sys.stderr.isatty():
        return plain
    width = shutil.get_terminal_size().columns
    return fill(plain, width, break_long_words=False, break_on_hyphens=False)


def standard_output() -> "Console":
    """Nothing is wrapped where lines are read by a program."""
    console = _console(stderr=False)
    if not console.is_terminal:
        console.width = NOT_WRAPPED
    return console


def standard_error() -> "Console":
    """For progress: silent with -q."""
    return _console(stderr=True)


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    chosen = output()
    quiet = stderr and chosen.quiet
    if chosen.color == "never":
        return Console(stderr=stderr, highlight=False, quiet=quiet, color_system=None)
    if chosen.color == "always":
        return Console(stderr=stderr, highlight=False, quiet=quiet, color_system="256")
    return Console(stderr=stderr, highlight=False, quiet=quiet)

"""Output of commands: tables on standard output, progress on standard error.

`-q`, `-v` and `--color` apply to one command line and are stored in its click context. A table is
as wide as the terminal, or, where the output is not a terminal, as its longest line.
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from harness.text.sanitize import mask_secrets, sanitize

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from rich.table import Table

NOT_WRAPPED = 10_000  # columns, where the output is not a terminal
COLORS = ("auto", "always", "never")
KEY = "seatrial.output"
LONG_S = 60.0  # a command that takes longer announces it


@dataclass(frozen=True)
class Output:
    """How much a command prints, and whether in color."""

    quiet: bool = False  # results and errors only
    verbose: bool = False  # each step as a line, and tracebacks
    color: str = "auto"


def output(context: click.Context | None = None) -> Output:
    """Return the options of this command line, or the defaults outside of one."""
    context = context or click.get_current_context(silent=True)
    options = context.find_root().meta.get(KEY) if context else None
    return options if isinstance(options, Output) else Output()


def _choose(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Store an option, before or after the command's name."""
    if value in (None, False):
        return
    name = str(option.name)
    default = context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    if default and getattr(output(), name) != getattr(Output(), name):
        return  # given on the command line, before the command
    chosen = replace(output(), **{name: value})
    context.find_root().meta[KEY] = chosen
    if name == "color" and value != "auto":
        context.color = value == "always"


def output_options() -> tuple[click.Option, ...]:
    """Return `-q`, `-v` and `--color`, for the group and for each of its commands."""
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
    """Format a sentence for standard error. On a terminal its lines break between words only, so
    that a command or a path in it can be copied."""
    plain = sanitize(mask_secrets(" ".join(sentence.split())))
    if not sys.stderr.isatty():
        return plain
    width = shutil.get_terminal_size().columns
    return fill(plain, width, break_long_words=False, break_on_hyphens=False)


def wrap_lines(lines: Iterable[str], indent: int) -> Iterator[str]:
    """Wrap lines for a terminal between words, with an indent; elsewhere leave them unchanged."""
    if not sys.stdout.isatty():
        yield from lines
        return
    columns = shutil.get_terminal_size().columns
    for line in lines:
        rest = " " * min(indent if line.startswith(" ") else 0, columns // 3)
        yield fill(
            line,
            columns,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )


def standard_output() -> "Console":
    """Return a console for standard output; off a terminal it does not wrap lines."""
    console = _console(stderr=False)
    if not console.is_terminal:
        console.width = NOT_WRAPPED
    return console


def folded_table(*headings: str) -> "Table":
    """Return a table without lines, whose long cells are folded."""
    from rich.table import Table

    table = Table(title=None, box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def standard_error() -> "Console":
    """Return a console for progress; it is silent with -q."""
    return _console(stderr=True)


def _console(stderr: bool) -> "Console":
    from rich.console import Console as Rich

    class Console(Rich):
        """Removes control characters from all text."""

        def render(self, *renderable: Any) -> "Iterator[Segment]":
            for segment in super().render(*renderable):
                text = segment.text if segment.control else sanitize(segment.text)
                yield segment._replace(text=text)

    chosen = output()
    quiet = stderr and chosen.quiet
    if chosen.color == "never":
        return Console(stderr=stderr, highlight=False, quiet=quiet, color_system=None)
    if chosen.color == "always":
        return Console(stderr=stderr, highlight=False, quiet=quiet, color_system="256")
    return Console(stderr=stderr, highlight=False, quiet=quiet)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show a step, its duration and its current part on a terminal, and nothing elsewhere. The
    yielded function sets the part."""
    console = standard_error()
    if not console.is_terminal or console.quiet:
        yield lambda part: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda part: progress.update(task, description=f"{what}: {part}", refresh=True)


def format_duration(seconds_s: float) -> str:
    """Format an estimate: `75 s`, `13 min`, `2.5 h`."""
    if seconds_s < 90:
        return f"{seconds_s:.0f} s"
    return f"{seconds_s / 60:.0f} min" if seconds_s < 5400 else f"{seconds_s / 3600:.1f} h"


def announce(likely_s: float, what: str = "") -> None:
    """Print how long a command will take, if that is more than a minute."""
    if likely_s > LONG_S and not output().quiet:
        words = (
            f"{what}, about {format_duration(likely_s)} in all"
            if what
            else f"about {format_duration(likely_s)}"
        )
        with suppress(OSError):
            print(message(f"seatrial: this takes a while: {words}"), file=sys.stderr)

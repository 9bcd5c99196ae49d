"""The group of commands. Each is a file here that is imported only if named, so help is fast.

Help texts wrap between words only, not at hyphens of options and names.
"""

import re
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from keyword import iskeyword
from types import ModuleType

import click

from harness.cli.console import output_options
from harness.errors import UnknownName

HYPHEN = re.compile(r"(?<=\S)-(?=\S)")
UNBROKEN = "\N{NON-BREAKING HYPHEN}"  # in the lines while they are wrapped
COMMANDS = (
    "run",
    "check",
    "report",
    "explain",
    "serve",
    "replay",
    "bisect",
    "differ",
    "import",
    "list",
    "doctor",
    "heal",
    "suite",
    "cluster",
    "simulate",
    "hunt",
    "shrink",
    "selftest",
    "completion",
)


class HelpFormatter(click.HelpFormatter):
    def write_text(self, text: str) -> None:
        super().write_text(HYPHEN.sub(UNBROKEN, text))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write options, with defaults that are words without parentheses."""
        kept = [(name, HYPHEN.sub(UNBROKEN, _bare(text))) for name, text in rows]
        super().write_dl(kept, col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(UNBROKEN, "-")


def _bare(text: str) -> str:
    return re.sub(r"default: \(([^()]*)\)", r"default: \1", text)


class HelpContext(click.Context):
    formatter_class = HelpFormatter


class Seatrial(click.Group):
    """The group of commands."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in COMMANDS:
            raise UnknownName("command", cmd_name, COMMANDS)
        return _add_common_options(_module(cmd_name).command)


def _module(name: str) -> ModuleType:
    """Return the module of a command; the file of a Python keyword, or of a name of the standard
    library, ends with an underscore."""
    taken = iskeyword(name) or name in sys.stdlib_module_names
    return import_module(f"harness.cli.commands.{name}{'_' if taken else ''}")


def _add_common_options(command: click.Command) -> click.Command:
    """Add the output options of all commands, and help that shows every default."""
    command.context_class = HelpContext
    if not any(option.name == "quiet" for option in command.params):
        command.params.extend(output_options())
    for option in command.params:
        if isinstance(option, click.Option) and option.is_flag and option.show_default is None:
            option.show_default = "off"
    for within in getattr(command, "commands", {}).values():
        _add_common_options(within)
    return command


@click.group(
    cls=Seatrial, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(version("seatrial"), prog_name="seatrial")
def seatrial() -> None:
    """Test a replicated message system: start a cluster, apply load, inject faults,
    and check what was lost, reordered or corrupted."""


_add_common_options(seatrial)

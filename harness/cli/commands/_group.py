"""The group of commands. Each is a file here, imported when it is named: help is instant."""

from importlib import import_module
from importlib.metadata import version
from keyword import iskeyword
from types import ModuleType

import click

from harness.cli.commands._help import HelpContext
from harness.cli.console import output_options
from harness.errors import UnknownName

COMMANDS = (
    "run",
    "check",
    "report",
    "explain",
    "serve",
    "replay",
    "import",
    "list",
    "doctor",
    "heal",
    "suite",
    "cluster",
    "simulate",
    "shrink",
    "selftest",
    "completion",
)


class Seatrial(click.Group):
    """The group of commands."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in COMMANDS:
            raise UnknownName("command", cmd_name, COMMANDS)
        return _completed(_module(cmd_name).command)


def _module(name: str) -> ModuleType:
    """The command's file; a word of Python's own has an underscore at its end."""
    return import_module(f"harness.cli.commands.{name}{'_' if iskeyword(name) else ''}")


def _completed(command: click.Command) -> click.Command:
    """The command with what all have: output options, and help that says every default."""
    command.context_class = HelpContext
    if not any(option.name == "quiet" for option in command.params):
        command.params.extend(output_options())
    for option in command.params:
        if isinstance(option, click.Option) and option.is_flag and option.show_default is None:
            option.show_default = "off"
    for within in getattr(command, "commands", {}).values():
        _completed(within)
    return command


@click.group(
    cls=Seatrial, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(version("seatrial"), prog_name="seatrial")
def seatrial() -> None:
    """Test a replicated message system: start a cluster, apply load, inject faults,
    and check what was lost, reordered or corrupted."""


_completed(seatrial)

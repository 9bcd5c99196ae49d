"""`seatrial.toml` in the current folder: defaults for the options of commands.

    runs = "/var/lib/seatrial/runs"   # for every command that has --runs
    [run]                             # for `seatrial run` alone; keys are its long options
    hosts = "docker"
    duration = "2m"
    bed = { memory = "512m" }

The command line and the environment take precedence over it, and so do trial files and plans.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from harness.errors import BadRequest, UnknownName
from harness.text import toml_lines as places
from harness.text.parsing import abbreviate, parse_toml, read_text

FILE = Path("seatrial.toml")
BY_COMMAND = dict[str, Any]  # option -> default, command -> the same


def default_map(group: click.Group) -> BY_COMMAND:
    """Read the file, if any, as click's `default_map`. Raises BadRequest with file and line."""
    if not FILE.is_file():
        return {}
    text = read_text(FILE, "the file")
    table = parse_toml(text, str(FILE))
    commands = dict(_commands(group))
    for key, value in table.items():
        if key not in commands:
            _refuse_unknown(key, _known(group, commands), text, (key,))
        elif not isinstance(value, dict):
            raise BadRequest(
                f"{FILE}{places.line_suffix(text, key)}: {key} must be a table of options"
            )
    common = {key: value for key, value in table.items() if key not in commands}
    return {
        **_own_defaults(group, common, text, ()),
        **{
            name: {
                **_defaults_of(command, common, text, ()),
                **_defaults_of(command, table.get(name, {}), text, (name,)),
            }
            for name, command in commands.items()
        },
    }


def _defaults_of(
    command: click.Command, table: Mapping[str, Any], text: str, path: tuple[str, ...]
) -> BY_COMMAND:
    """Return the defaults of a command and its subcommands. Raises BadRequest for unknown keys."""
    within = dict(_commands(command)) if isinstance(command, click.Group) else {}
    if path:
        for key in table:
            if key not in within:
                _refuse_unknown(key, _known(command, within), text, (*path, key))
    own = {key: value for key, value in table.items() if key not in within}
    return {
        **_own_defaults(command, own, text, path),
        **{
            name: {
                **_defaults_of(one, own if not path else {}, text, ()),
                **(_defaults_of(one, table[name], text, (*path, name)) if name in table else {}),
            }
            for name, one in within.items()
        },
    }


def _own_defaults(
    command: click.Command, table: Mapping[str, Any], text: str, path: tuple[str, ...]
) -> BY_COMMAND:
    """Return the defaults for which the command has an option, as click expects them."""
    options = _options(command)
    return {
        str(options[key].name): _checked_value(options[key], value, text, (*path, key))
        for key, value in table.items()
        if key in options
    }


def _checked_value(option: click.Option, value: Any, text: str, path: tuple[str, ...]) -> Any:
    """Check the value by the option's type. Raises BadRequest if it does not fit."""
    where = f"{FILE}{places.line_suffix(text, *path)}: {path[-1]}"
    if isinstance(value, list) and not option.multiple:
        value = ",".join(map(str, value))
    many = option.multiple and not isinstance(value, list)
    try:
        for one in value if isinstance(value, list) else [value]:
            if option.is_flag and not isinstance(one, bool):
                raise BadRequest(f"{where} must be true or false, not {abbreviate(repr(one))}")
            option.type.convert(one, option, None)
    except click.BadParameter as e:
        why = e.message.rstrip(".").replace("integer range", "whole number")
        raise BadRequest(f"{where}: {why}") from e
    except (TypeError, AttributeError) as e:
        raise BadRequest(f"{where} must be text in quotes, not {abbreviate(repr(value))}") from e
    return [value] if many else value


def _commands(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, resilient_parsing=True)
    for name in group.list_commands(context):
        if command := group.get_command(context, name):
            yield name, command


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options by their long names."""
    return {
        opt.removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option)
        for opt in option.opts
        if opt.startswith("--") and opt != "--version"
    }


def _known(command: click.Command, within: Mapping[str, click.Command]) -> set[str]:
    known = {*_options(command), *within}
    for one in within.values():
        known |= _known(one, dict(_commands(one)) if isinstance(one, click.Group) else {})
    return known


def _refuse_unknown(key: str, options: set[str], text: str, path: tuple[str, ...]) -> None:
    if key not in options:
        error = UnknownName("option", key, options)
        raise BadRequest(f"{FILE}{places.line_suffix(text, *path)}: {error}")

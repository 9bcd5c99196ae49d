"""A command of the operator's tool: its name, its arguments, and the function that runs it."""

import argparse
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .cluster_access import ClusterAccess
from .output import CommandOutput

Options = argparse.Namespace
Argument = tuple[tuple[str, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class AdminCommand:
    """`needs`: a key of `command_line.ADDRESS_OPTIONS`, which addresses the command requires."""

    name: str
    does: str
    needs: str
    carry_out: Callable[[ClusterAccess, Options], Awaitable[CommandOutput]]
    arguments: tuple[Argument, ...] = ()


def argument(*names: str, **how: Any) -> Argument:
    """Return the arguments of argparse's `add_argument`."""
    return names, how

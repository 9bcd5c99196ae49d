"""What a command of the operator's tool is: a name, what it asks with, and what it is told."""

import argparse
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .answer import Answer
from .reach import Reach

Options = argparse.Namespace
Argument = tuple[tuple[str, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Command:
    """`needs`: a key of `command_line.WHERE`, which addresses it can not do without."""

    name: str
    does: str
    needs: str
    carry_out: Callable[[Reach, Options], Awaitable[Answer]]
    arguments: tuple[Argument, ...] = ()


def argument(*names: str, **how: Any) -> Argument:
    """As `add_argument` of argparse."""
    return names, how

"""Shell completion of the names of plug-ins."""

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from harness import registry

COMPLETION = "_SEATRIAL_COMPLETE"  # set by a shell that asks for completions

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names_of(kind: str) -> Complete:
    """Complete the last of several names separated by commas."""

    def complete(
        context: click.Context, option: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        names = (name for name in registry.names(kind) if name.startswith(last))
        return [CompletionItem(f"{before}{comma}{name}") for name in names]

    return complete

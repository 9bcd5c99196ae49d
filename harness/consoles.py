"""Standard output as a place for tables: as wide as the terminal, or as the longest line needs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

NOT_WRAPPED = 10_000  # columns: what reads us is no terminal


def standard_output() -> "Console":
    """Nothing is wrapped where lines are read by a program."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = NOT_WRAPPED
    return console

"""Help whose lines break between words only: neither an option nor a name is cut at a hyphen."""

import re
from collections.abc import Iterable

import click

HYPHEN = re.compile(r"(?<=\S)-(?=\S)")
UNBROKEN = "\N{NON-BREAKING HYPHEN}"  # in the lines while they are wrapped


class HelpFormatter(click.HelpFormatter):
    def write_text(self, text: str) -> None:
        super().write_text(HYPHEN.sub(UNBROKEN, text))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Defaults in words have no parentheses of their own."""
        kept = [(name, HYPHEN.sub(UNBROKEN, _bare(text))) for name, text in rows]
        super().write_dl(kept, col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(UNBROKEN, "-")


def _bare(text: str) -> str:
    return re.sub(r"default: \(([^()]*)\)", r"default: \1", text)


class HelpContext(click.Context):
    formatter_class = HelpFormatter

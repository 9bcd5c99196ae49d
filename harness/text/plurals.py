"""Counts, plurals and lists of words for messages."""

from collections.abc import Sequence


def quantity(count: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun: `1 fault`, `2,000 faults`. `plural`: if it is irregular, or a
    verb follows: `quantity(count, "message was", "messages were")`."""
    return f"1 {singular}" if count == 1 else f"{count:,} {plural or singular + 's'}"


def how_often(count: int) -> str:
    """Return `once`, or `3 times`."""
    return "once" if count == 1 else f"{count:,} times"


def ordinal(number: int) -> str:
    """Return `3rd`."""
    teens = number % 100 in (11, 12, 13)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{'th' if teens else ending}"


def and_list(words: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def and_more(count: int) -> str:
    """Return ` (and 3 more)` after the first of a list, or nothing."""
    return f" (and {count:,} more)" if count > 0 else ""

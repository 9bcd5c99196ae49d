"""Quantiles and the tables that benchmarks print: Markdown, as it stands in docs/benchmarks.md."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from importlib.util import find_spec
from math import ceil, isfinite

ROUNDING = 1e-9  # 0.07 of 100 is 7.000000000000001 for a computer


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that so large a share of them does not exceed; nan when there are none."""
    if not len(values):
        return float("nan")
    return float(sorted(values)[max(0, ceil(share * len(values) - ROUNDING) - 1)])


def above_zero(text: str) -> float:
    """Return the number that an option of the command line gives. Raises ArgumentTypeError if it is
    not a finite number above 0, before anything is measured."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not isfinite(value) or value <= 0:
        raise ArgumentTypeError(f"it must be a number above 0, not {text}")
    return value


def needs(*modules: str) -> None:
    """SystemExit, in one sentence, where a peer is not installed: before anything is measured."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        what = " and ".join(missing)
        sys.exit(f"{what} not installed: {sys.executable} -m pip install --group bench")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be."""
    lines = [headings, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(headings))]
    told = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([told[0], rule, *told[1:]])

"""Quantiles and the tables that benchmarks print: Markdown, as it stands in docs/benchmarks.md."""

from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that so large a share of them does not exceed; nan when there are none."""
    if not len(values):
        return float("nan")
    return float(sorted(values)[min(len(values) - 1, int(share * len(values)))])


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be."""
    lines = [headings, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(headings))]
    told = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([told[0], rule, *told[1:]])

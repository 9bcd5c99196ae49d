"""The published trial, scenario by scenario: `python benchmarks/published.py [TABLE [OTHER]]`.

TABLE, docs/rocketmq-trial.tsv when none is named, is what `seatrial suite
suites/rocketmq-2024.toml --record TABLE` writes. A row for each scenario, over the cells of all
configurations of brokers and controllers: counts are sums, and of times in seconds and of shares it
has the least and the greatest of the cells' own figures. Exit code 1: a cell is not as expected.

With OTHER, such as docs/rocketmq-original.tsv, it prints where the two are apart: figures of a
scenario of which all cells of the one are below all cells of the other. Exit code 1: somewhere.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from _figures import table

from harness.cli.differ import FEWEST, Difference, chance
from harness.cli.differ import WORDS as FIGURES
from harness.errors import BadRequest
from harness.suite.record import Record
from harness.suite.store import AS_EXPECTED, WORDS

COUNTS = {
    "injections": "injections",
    "elections": "elections",
    "acknowledged": "acknowledged",
    "lost": "lost",
    "duplicated": "duplicated",
    "compared": "replicas compared",
}
SPANS = {
    "to_ack_s_p50": "fault to ack, p50",
    "to_ack_s_p99": "p99",
    "failure_to_success_s_p50": "failure to success, p50",
    "failure_to_success_s_p99": "p99",
    "success_in_faults": "success in faults",
    "success_quiet": "else",
}
RECORD = Path(__file__).parents[1] / "docs/rocketmq-trial.tsv"
Row = Mapping[str, str]


def scenario_of(row: Row) -> str:
    """Cells are called scenario/switches/controllers."""
    return row["cell"].partition("/")[0]


def shown(name: str, rows: Sequence[Row]) -> list[str]:
    sums = [f"{sum(float(row[figure] or 0) for row in rows):,.0f}" for figure in COUNTS]
    return [name, str(len(rows)), *sums, *(span(rows, figure) for figure in SPANS)]


def span(rows: Sequence[Row], figure: str) -> str:
    found = sorted(float(row[figure]) for row in rows if row[figure])
    if not found:
        return ""
    ends = [f"{value:.3g}" for value in (found[0], found[-1])]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def by_scenario(rows: Sequence[Row]) -> dict[str, list[Row]]:
    scenarios: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        scenarios[scenario_of(row)].append(row)
    return scenarios


def values(rows: Sequence[Row], figure: str) -> list[float]:
    return [float(row[figure]) for row in rows if row[figure]]


def verdicts(rows: Sequence[Row]) -> str:
    """Return how many cells ended how, and with which codes."""
    came = [row["came"].split(", ") for row in rows]
    codes = sorted({code for words in came for code in words[1:]})
    counts = Counter(words[0] for words in came)
    text = ", ".join(f"{word} {count}" for word, count in sorted(counts.items()))
    return f"{text}: {', '.join(codes)}" if codes else text


def beside(names: Sequence[str], tables: Sequence[Sequence[Row]]) -> int:
    """Print where two tables are apart."""
    first, second = map(by_scenario, tables)
    lines, looked = [], 0
    for scenario in (name for name in first if name in second):
        ours, theirs = first[scenario], second[scenario]
        words = [verdicts(rows) for rows in (ours, theirs)]
        if words[0] != words[1]:
            lines.append([scenario, "verdicts", *words, ""])
        for figure in ("lost", *SPANS):
            found = Difference(figure, values(ours, figure), values(theirs, figure))
            looked += found.apart is not None
            if found.apart:
                of_chance = 100 * chance(len(found.first), len(found.second))
                spans = (span(ours, figure), span(theirs, figure))
                lines.append([scenario, FIGURES[figure], *spans, f"{of_chance:.2g} %"])
    print(table(("scenario", "figure", *names, "by chance alone"), lines))
    print(f"\n{looked} figures were compared, those of at least {FEWEST} cells of each")
    return 1 if lines else 0


def main() -> int:
    paths = [Path(name) for name in sys.argv[1:3]] or [RECORD]
    tables: list[list[Row]] = []
    for path in paths:
        try:
            tables.append(list(Record.open(path).rows.values()))
        except BadRequest as e:
            print(f"error: {e}", file=sys.stderr)
            return 2
        if not tables[-1]:
            print(f"error: no cell is recorded in {path}", file=sys.stderr)
            return 2
    if len(tables) > 1:
        return beside([path.name for path in paths], tables)
    (rows,) = tables
    scenarios = by_scenario(rows)
    lines = [shown(name, found) for name, found in scenarios.items()]
    lines.append(shown("all", rows))
    print(table(("scenario", "cells", *COUNTS.values(), *SPANS.values()), lines))
    other = [row["cell"] for row in rows if row["outcome"] != WORDS[AS_EXPECTED]]
    print(
        f"\n{len(rows) - len(other)} of {len(rows)} cells as expected{'; not: ' if other else ''}"
        f"{', '.join(other)}"
    )
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())

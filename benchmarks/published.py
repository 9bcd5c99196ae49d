"""The published trial, scenario by scenario: `python benchmarks/published.py [TABLE.tsv]`.

TABLE.tsv, docs/rocketmq-trial.tsv when none is named, is what `seatrial suite
suites/rocketmq-2024.toml --record TABLE.tsv` writes. A row for each scenario, over the cells of all
configurations of brokers and controllers: counts are sums, and of times in seconds and of shares it
has the least and the greatest of the cells' own figures. Exit code 1: a cell is not as expected.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from _figures import table

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


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORD
    try:
        rows = list(Record.open(path).rows.values())
    except BadRequest as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    if not rows:
        print(f"error: no cell is recorded in {path}", file=sys.stderr)
        return 2
    scenarios: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        scenarios[scenario_of(row)].append(row)
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

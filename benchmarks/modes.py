"""Measures the articles' tables: `python benchmarks/modes.py [--only implementations/raft]`.

The experiments of suites/mode-tables.toml that have no record are run, and recorded in
docs/mode-tables.json; the page docs/mode-tables.md is written from both and from docs/claims.json
when the command ends. The exit code is 1 if an experiment failed.
"""

import sys

from _measuring import ROOT, ClaimMeasuring, chosen, parsed, wanted
from _mode_tables_page import measurements, page, read_tables

from harness.errors import SeatrialError
from harness.suite.claims import read_claims, read_record

SUITE, RECORD, PAGE = (
    ROOT / "suites/mode-tables.toml",
    ROOT / "docs/mode-tables.json",
    ROOT / "docs/mode-tables.md",
)


def write_page() -> None:
    """Write docs/mode-tables.md from the records."""
    file, others = read_claims(SUITE), read_record(ROOT / "docs/claims.json")
    known = measurements(file, read_record(RECORD), others, ROOT)
    PAGE.write_text(page(file, read_tables(SUITE, file.claims), known), encoding="utf-8")


def main() -> int:
    options = parsed(__doc__.splitlines()[0], "docs/mode-tables.md")
    file = read_claims(SUITE)
    tables = read_tables(SUITE, file.claims)
    only = chosen(file.claims, options.only, SUITE)
    names = dict.fromkeys(wanted(file, only))
    if not only:
        figures = (each for table in tables for row in table.rows for each in row.figures.values())
        names |= dict.fromkeys(name for pairs in figures for name in pairs[::2])
    failed: list[str] = []
    if not options.page:
        failed = ClaimMeasuring(SUITE, RECORD).measure(file, names, options)
    if options.list:
        return 0
    write_page()
    for why in failed:
        print(f"not measured: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SeatrialError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(e.exit_code)

"""Measures the claims of suites/claims.toml: `python benchmarks/claims.py [--only H10,H12]`.

Trials run as `seatrial suite suites/claims.toml` runs them, and each result is recorded in
docs/claims.json at once, so the command may be interrupted and repeated. Commands print a JSON
object with their figures as the last line. A trial whose test bed failed is reported, and not
recorded. The page docs/claims.md is written from both files when the command ends; the exit code
is 1 if an experiment failed.
"""

import sys

import modes
from _claims_page import page
from _measuring import ROOT, ClaimMeasuring, chosen, parsed, wanted

from harness.errors import SeatrialError
from harness.suite.claims import read_claims, read_record

CLAIMS, RECORD, PAGE = (
    ROOT / "suites/claims.toml",
    ROOT / "docs/claims.json",
    ROOT / "docs/claims.md",
)


def main() -> int:
    options = parsed(__doc__.splitlines()[0], "docs/claims.md")
    file = read_claims(CLAIMS)
    names = wanted(file, chosen(file.claims, options.only, CLAIMS))
    failed: list[str] = []
    if not options.page:
        failed = ClaimMeasuring(CLAIMS, RECORD).measure(file, names, options)
    if options.list:
        return 0
    PAGE.write_text(page(file, read_record(RECORD), ROOT), encoding="utf-8")
    modes.write_page()  # docs/mode-tables.md has some of these measurements, too
    for why in failed:
        print(f"not measured: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SeatrialError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(e.exit_code)

"""docs/claims.md says what suites/claims.toml and docs/claims.json say, and nothing else."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from harness.suite.claims import (
    ClaimsFile,
    Measurement,
    judge_claim,
    read_claims,
    read_record,
    valid_measurements,
)

ROOT = Path(__file__).resolve().parents[1]
PAGE, RECORD = ROOT / "docs/claims.md", ROOT / "docs/claims.json"
IDS = {f"H{number}" for number in range(1, 42)} | {str(number) for number in range(42, 51)}


@pytest.fixture(scope="module")
def claims() -> ClaimsFile:
    return read_claims(ROOT / "suites/claims.toml")


@pytest.fixture(scope="module")
def rows() -> list[Measurement]:
    return read_record(RECORD)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that generates the page."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield import_module("_claims_page")
    for name in ("_claims_page", "_figures"):
        sys.modules.pop(name, None)


def test_the_page_is_fresh(
    pages: Any, claims: ClaimsFile, rows: list[Measurement], rewrite: bool
) -> None:
    """It is what the two files make of it."""
    text = pages.page(claims, rows, ROOT)
    if rewrite:
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "stale: run python benchmarks/claims.py --page"


def test_every_claim_has_a_row(claims: ClaimsFile) -> None:
    """All hypotheses of the articles and of the issue, each with its verdict and its section."""
    assert {claim.id for claim in claims.claims} == IDS
    page = PAGE.read_text()
    for claim in claims.claims:
        assert f"| [{claim.id}](#claim-{claim.id.lower()})" in page
        assert f"\n### Claim {claim.id}\n" in page


def test_no_verdict_without_a_record(claims: ClaimsFile, rows: list[Measurement]) -> None:
    """Each figure of a claim with a verdict has a measurement with date, load, edition, command."""
    known = valid_measurements(claims, rows, ROOT)
    decided = 0
    for claim in claims.claims:
        if judge_claim(claim, known).word == "not measured":
            continue
        decided += 1
        for name in claim.experiments:
            if name not in claims.tables and not name.startswith("availability/"):
                assert all(m.when and m.edition and m.command for m in known.of[name]), name
    assert decided >= 20


def test_the_page_says_at_which_load_quiet_rows_were_measured(
    pages: Any, claims: ClaimsFile
) -> None:
    """Of each claim that needs a quiet machine: when, and the load; nothing without a record."""
    of = {
        c.name: Measurement(c.name, c.key, {}, 0, "2026-01-02T03:04:05", 17.5, "abc")
        for c in claims.commands
        if c.quiet
    }
    quiet = {claim.id: claim.experiments for claim in claims.claims if claim.quiet}
    assert of
    assert quiet
    for rows, cell in ((of.values(), "2026-01-02T03:04 | 17.5"), ((), "")):
        text = pages.page(claims, rows, ROOT)
        for name, experiments in quiet.items():
            line = re.findall(rf"^\| \[{name}\]\(#claim-\w+\) *\|(.*)\|$", text, re.M)[-1]
            there = bool(of.keys() & {*experiments})
            assert line.strip(" |") == (cell if there else ""), name


def test_the_page_follows_the_record(
    pages: Any, claims: ClaimsFile, rows: list[Measurement]
) -> None:
    """Without records nothing but the recorded table has a verdict; a wrong figure refutes."""

    def verdict(page: str, claim: str) -> str:
        (found,) = re.findall(rf"^### Claim {claim}\n\n.*\n\n\*\*(.*)\*\*$", page, re.M)
        return str(found)

    empty = pages.page(claims, [], ROOT)
    assert all(
        verdict(empty, c.id).startswith("not measured") for c in claims.claims if c.id != "H41"
    )
    assert verdict(pages.page(claims, rows, ROOT), "47") == "confirmed"
    wrong = [
        replace(row, figures={**row.figures, "light": 1e6}) if row.name == "47/bytes" else row
        for row in rows
    ]
    assert verdict(pages.page(claims, wrong, ROOT), "47") == "refuted"

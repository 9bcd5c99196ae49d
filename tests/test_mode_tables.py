"""docs/mode-tables.md says what suites/mode-tables.toml and the records say, and nothing else."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadRequest
from harness.suite.claims import (
    ClaimsFile,
    Measurement,
    Measurements,
    judge_claim,
    read_claims,
    read_record,
)

ROOT = Path(__file__).resolve().parents[1]
SUITE, PAGE = ROOT / "suites/mode-tables.toml", ROOT / "docs/mode-tables.md"
MODULES = ("_mode_tables_page", "_claims_page", "_figures")


@pytest.fixture(scope="module")
def suite() -> ClaimsFile:
    return read_claims(SUITE)


@pytest.fixture(scope="module")
def rows() -> list[Measurement]:
    return read_record(ROOT / "docs/mode-tables.json")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that generates the page."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield import_module("_mode_tables_page")
    for name in MODULES:
        sys.modules.pop(name, None)


def known(pages: Any, suite: ClaimsFile, rows: list[Measurement]) -> Measurements:
    others = read_record(ROOT / "docs/claims.json")
    found: Measurements = pages.measurements(suite, rows, others, ROOT)
    return found


def page(pages: Any, suite: ClaimsFile, rows: list[Measurement]) -> str:
    tables = pages.read_tables(SUITE, suite.claims)
    return str(pages.page(suite, tables, known(pages, suite, rows)))


def test_the_page_agrees_with_the_records(
    pages: Any, suite: ClaimsFile, rows: list[Measurement], rewrite: bool
) -> None:
    """It is what the suite and both records make of it, and no measured value is missing."""
    text = page(pages, suite, rows)
    if rewrite:
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "stale: run python benchmarks/modes.py --page"
    assert " ? " not in text


def test_what_is_not_measured_has_its_reason(
    pages: Any, suite: ClaimsFile, rows: list[Measurement]
) -> None:
    """A statement without a figure says why in the suite; a record that is absent is no reason."""
    found = known(pages, suite, rows)
    for claim in suite.claims:
        verdict = judge_claim(claim, found)
        assert verdict.word != "not measured" or claim.missing, (claim.id, verdict.text)


def test_a_wrong_value_turns_the_verdict(
    pages: Any, suite: ClaimsFile, rows: list[Measurement]
) -> None:
    """Verdicts are computed: planted values refute, and without a record there is no verdict."""

    def verdict(rows: list[Measurement], claim: str) -> str:
        (found,) = (each for each in suite.claims if each.id == claim)
        return judge_claim(found, known(pages, suite, rows)).word

    def planted(name: str, figure: str, value: float) -> list[Measurement]:
        return [
            replace(row, figures={**row.figures, figure: value}) if row.name == name else row
            for row in rows
        ]

    slave, copies = "replication/asynchronous/advantage-1", "replicas/one/cost"
    assert verdict(rows, slave) == verdict(rows, copies) == "confirmed"
    assert verdict(planted("slave-dead/asynchronous", "success_in_faults", 0.5), slave) == "refuted"
    assert verdict(planted("copies", "one", 2.0), copies) == "refuted"
    assert verdict([], copies) == "not measured"
    changed = [replace(row, key="another trial") for row in rows]
    assert verdict(changed, slave) == "not measured"


def test_each_cell_of_a_table_has_a_statement(
    pages: Any, suite: ClaimsFile, tmp_path: Path
) -> None:
    """A cell without a claim, a claim without a cell, and a strange column are refused."""
    first = suite.claims[0]
    with pytest.raises(BadRequest, match="no claim is about the cell"):
        pages.read_tables(SUITE, [first])
    with pytest.raises(BadRequest, match="no table has the cell implementations/raft/cost"):
        pages.read_tables(SUITE, [*suite.claims, replace(first, id="implementations/raft/cost-2")])
    path = tmp_path / "strange.toml"
    path.write_text(SUITE.read_text().replace("\ncopies = [", "\ncost = ["))
    with pytest.raises(BadRequest, match="no measured column is called cost"):
        pages.read_tables(path, suite.claims)
    for old, new, says in (
        ("\nkey = ", "\nkeys = ", "article 1: a key is missing or unknown: .*'keys'"),
        ("\ntitle = ", "\ntitel = ", "article 1: a key is missing or unknown: .*'titel'"),
        ('"cold-backup", "rto_s"', '"rto_s"', "RTO needs pairs of experiment and figure"),
    ):
        path.write_text(SUITE.read_text().replace(old, new))
        with pytest.raises(BadRequest, match=says):
            pages.read_tables(path, suite.claims)


def test_an_experiment_of_the_other_suite_is_not_defined_twice(tmp_path: Path) -> None:
    """A suite names the experiments of the one beside it, and may not have one of that name."""
    trial = '[[trial]]\nrun = "messages"\nname = "kill"\nexpect = "valid"\n'
    (tmp_path / "one.toml").write_text(trial)
    other = tmp_path / "other.toml"
    other.write_text('also = "one.toml"\n' + trial)
    with pytest.raises(BadRequest, match=r"kill is in one.toml, too"):
        read_claims(other)
    claim = '[[claim]]\nid = "A"\nclaim = "a"\nsource = "a"\nexperiment = "a"\n'
    check = '[[claim.check]]\nof = "kill"\nfigure = "lost"\nat_most = 0\n'
    other.write_text('also = "one.toml"\n' + trial.replace("kill", "pause") + claim + check)
    assert [check.of for check in read_claims(other).claims[0].checks] == ["kill"]

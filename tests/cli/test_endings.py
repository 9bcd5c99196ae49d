"""How endings add up, and what a suite makes of them."""

import json
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from harness.cli.options import Request
from harness.cli.session import RunEnd, say, worst
from harness.history.faults_and_events import ClusterEvent
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Judgement, Reason, Result, Verdict
from harness.suite.execution import TimeSpent, row_of
from harness.suite.expected import ExpectedRun, FigureBound
from harness.suite.figures import NAMES, of_events, struck
from harness.suite.figures import figures as figures_of
from harness.suite.store import (
    AS_EXPECTED,
    NOT_AS_EXPECTED,
    UNDECIDED,
    SuiteRow,
    verdict_of,
)
from harness.suite.suite_file import read_suite
from harness.trial import Trial

NS = 10**9
LOST = Finding("LOST_ACKED", 3, "3 acknowledged messages are lost", "no-loss")
DOUBLE = Finding("DUPLICATED_RETRY", 2, "2 messages are stored twice", "")


def ending(word: str, *findings: Finding, error: str = "") -> RunEnd:
    reasons = (Reason("NO_LOAD", "nothing happened"),) if word == "unknown" else ()
    result = Result("loss", findings, reasons)
    return RunEnd(1, None, Verdict(Judgement(word), word, reasons, (result,)), error)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (ending("valid"), 0),
        (ending("valid", DOUBLE), 0),
        (ending("invalid", LOST), 1),
        (ending("unknown"), 2),
        (ending("unknown", error="the disk is full"), 255),
        (ending("valid", error="the disk is full"), 255),
        (ending("invalid", LOST, error="the disk is full"), 1),
        (RunEnd(1, error="no cluster came up"), 255),
    ],
)
def test_the_code_of_one_ending(end: RunEnd, code: int) -> None:
    """Proven loss stands even when the bed failed later; without proof a failed bed is 255."""
    assert end.exit_code == code


def test_the_worst_of_several() -> None:
    """invalid, then a failed bed, then unknown, then valid, in whatever order they came."""
    for order in permutations((0, 1, 2, 255)):
        assert worst(order) == 1
    assert worst([0, 2, 255]) == 255
    assert worst([0, 2, 0]) == 2
    assert worst([0, 0]) == 0


@pytest.mark.parametrize(
    ("expected", "codes", "end", "outcome"),
    [
        ("valid", (), ending("valid"), AS_EXPECTED),
        ("valid", (), ending("invalid", LOST), NOT_AS_EXPECTED),
        ("valid", (), ending("unknown"), UNDECIDED),
        ("invalid", ("LOST_ACKED",), ending("invalid", LOST), AS_EXPECTED),
        ("invalid", ("REORDERED",), ending("invalid", LOST), NOT_AS_EXPECTED),
        ("invalid", ("LOST_ACKED",), ending("valid"), NOT_AS_EXPECTED),
        ("invalid", (), ending("unknown"), UNDECIDED),
        ("unknown", (), ending("unknown"), AS_EXPECTED),
        ("unknown", (), ending("valid"), NOT_AS_EXPECTED),
        ("valid", (), ending("valid", error="the disk is full"), UNDECIDED),
        ("valid", (), RunEnd(1, error="no cluster came up"), UNDECIDED),
        ("valid", (), ending("invalid", LOST, error="the disk is full"), NOT_AS_EXPECTED),
        ("invalid", ("LOST_ACKED",), ending("invalid", LOST, error="x"), UNDECIDED),
        ("unknown", (), ending("unknown", error="the disk is full"), UNDECIDED),
    ],
)
def test_a_run_against_what_was_expected(
    expected: str, codes: tuple[str, ...], end: RunEnd, outcome: int
) -> None:
    """The right invalid has the right finding; a run that proved nothing decides nothing."""
    assert ExpectedRun(Request(Trial()), Judgement(expected), codes).compare(end) == outcome


def test_a_suite_can_expect_that_all_findings_are_excused() -> None:
    """Unknown for this reason is as expected and called so; for another it decides nothing."""
    expected = ExpectedRun(Request(Trial()), Judgement.UNKNOWN, excused=True)
    verdict = ending("unknown").verdict
    assert verdict is not None
    dark = RunEnd(1, None, replace(verdict, reasons=(Reason("EXCUSED", "all 3 were held"),)))
    assert expected.wanted == "excused"
    assert expected.compare(dark) == AS_EXPECTED
    assert expected.compare(ending("unknown")) == UNDECIDED
    assert expected.compare(ending("valid")) == NOT_AS_EXPECTED
    assert expected.compare(ending("invalid", LOST)) == NOT_AS_EXPECTED
    assert row_of(expected, 1, dark, "", TimeSpent(1.0)).came == "excused"
    assert row_of(expected, 1, ending("unknown"), "", TimeSpent(1.0)).came == "unknown"
    assert ExpectedRun(Request(Trial()), Judgement.VALID).compare(dark) == UNDECIDED


@pytest.mark.parametrize(
    "code",
    [
        "NODE_GONE",
        "DISK_FULL",
        "NOT_HEALED",
        "FAULT_NOT_OBSERVED",
        "FAULTS_MISSING",
        "CHECKER_FAILED",
    ],
)
def test_a_loss_that_something_else_may_have_caused_is_not_the_expected_one(code: str) -> None:
    """It was to be lost by the plan's faults; where nobody was to lose anything it is a loss."""
    verdict = ending("invalid", LOST).verdict
    assert verdict is not None
    doubtful = RunEnd(1, None, replace(verdict, reasons=(Reason(code, "it went otherwise"),)))
    asked = Request(Trial())
    control = ExpectedRun(asked, Judgement.INVALID, ("LOST_ACKED",))
    assert control.compare(doubtful) == UNDECIDED
    assert ExpectedRun(asked, Judgement.VALID).compare(doubtful) == NOT_AS_EXPECTED
    row = row_of(control, 1, doubtful, "", TimeSpent(1.0))
    assert row.came == f"invalid, LOST_ACKED, {code}"


def test_what_was_found_is_told_though_the_bed_failed_later() -> None:
    """A loss, and why the run ended early."""
    broken = ending("invalid", LOST, error="the disk is full")
    row = row_of(ExpectedRun(Request(Trial()), Judgement.VALID), 1, broken, "", TimeSpent(1.0))
    assert row.came == "invalid, LOST_ACKED; the disk is full"


@pytest.mark.parametrize(
    ("figures", "outcome", "against"),
    [
        ({"lost": 0.0, "acknowledged": 10.0}, AS_EXPECTED, ()),
        ({"lost": 1.0, "acknowledged": 10.0}, NOT_AS_EXPECTED, ("lost 1",)),
        ({"lost": 0.0, "acknowledged": 9.5}, NOT_AS_EXPECTED, ("acknowledged 9.5",)),
        ({"lost": 0.0}, UNDECIDED, ("acknowledged is unknown",)),
        ({"lost": 1.0}, NOT_AS_EXPECTED, ("lost 1", "acknowledged is unknown")),
    ],
)
def test_figures_are_within_their_bounds(
    figures: dict[str, float], outcome: int, against: tuple[str, ...]
) -> None:
    """The bound itself is within; what nobody counted proves nothing."""
    bounds = FigureBound("lost", 0.0), FigureBound("acknowledged", 10.0, most=False)
    expected = ExpectedRun(Request(Trial()), Judgement.VALID, bounds=bounds)
    assert expected.wanted == "valid, lost <= 0, acknowledged >= 10"
    assert expected.compare(ending("valid"), figures) == outcome
    assert expected.against(ending("valid"), figures) == against
    assert expected.compare(ending("unknown"), figures) == UNDECIDED


def test_a_recovery_that_never_came_is_beyond_every_bound(tmp_path: Path) -> None:
    """And is kept as what it is, which is no number of JSON's."""
    times = {"faults": [{"to_ack_s": 1.0}, {"to_ack_s": None}]}
    told = Verdict(Judgement.VALID, "", (), (Result("availability", stats=times),))
    bounds = FigureBound("to_ack_s_p50", 1.0), FigureBound("to_ack_s_p99", 1e9)
    expected = ExpectedRun(Request(Trial()), Judgement.VALID, bounds=bounds)
    row = row_of(expected, 1, RunEnd(1, RunDir(tmp_path), told), "", TimeSpent(60.0))
    assert (row.outcome, row.beside) == (NOT_AS_EXPECTED, ("to_ack_s_p99 never",))
    assert row.figures["to_ack_s_p50"] == 1.0
    assert json.dumps(row.plain()["figures"]["to_ack_s_p99"], allow_nan=False) == '"inf"'
    assert SuiteRow.read(json.loads(json.dumps(row.plain()))) == row


def test_every_figure_that_may_be_bounded_is_one_that_is_told() -> None:
    """And the other way round."""
    logged = ClusterEvent(1, "broker-1", "set", {"brokerName": "a", "set": [1]})
    pair = [ClusterEvent(2, "hacontroller-1", "machine", {"state": "ASYNC"})]
    pair += [ClusterEvent(t, "broker-1", kind) for t, kind in ((3, "held"), (4, "released"))]
    by_events = of_events([logged, *pair])
    told = {*figures_of(Verdict(Judgement.VALID, "", (), ())), *by_events, "per_s"}
    machine = {"brokerName": "a", "seq": 1, "state": "SINGLE"}
    told |= {*struck([ClusterEvent(1, "hacontroller-1", "machine", machine)], [])}
    assert told == set(NAMES)
    counted = {"operations": {"send": {"invoke": 10, "ok": 7, "info": 1, "fail": 2}}}
    seen = Verdict(Judgement.VALID, "", (), (Result("coverage", stats=counted),))
    assert figures_of(seen)["failed_sends"] == 3


def test_a_page_is_no_part_of_raising_a_cluster(tmp_path: Path) -> None:
    """Of a minute: thirty seconds under way, ten of judging, five of its page, fifteen around."""
    run = RunDir(tmp_path)
    run.update_state(load_began_ns=10 * NS, load_ended_ns=35 * NS, collected_ns=40 * NS)
    end = RunEnd(1, run, None, "", checked_s=10.0)
    row = row_of(ExpectedRun(Request(Trial()), Judgement.VALID), 1, end, "", TimeSpent(60.0, 5.0))
    assert (row.around_s, row.checked_s, row.page_s) == (15.0, 10.0, 5.0)


def test_a_suite_fails_before_it_is_undecided() -> None:
    """One wrong verdict outweighs any number of missing ones."""
    assert verdict_of([AS_EXPECTED, UNDECIDED, NOT_AS_EXPECTED]) == 1
    assert verdict_of([AS_EXPECTED, UNDECIDED]) == 2
    assert verdict_of([AS_EXPECTED]) == 0


def test_a_suite_file(tmp_path: Path) -> None:
    """A trial file is looked for beside the suite first; seeds make one run each."""
    (tmp_path / "calm.toml").write_text("seed = 5\nduration_s = 9\n")
    suite = tmp_path / "suite.toml"
    suite.write_text(
        '[[trial]]\nrun = "calm.toml"\nexpect = "valid"\nseeds = "1..2"\n'
        '[[trial]]\nrun = "calm.toml"\nwith = { profile = "x" }\nexpect = "invalid"\n'
        'findings = ["LOST_ACKED"]\n'
    )
    first, second, third = read_suite(suite)
    assert [run.request.trial.seed for run in (first, second, third)] == [1, 2, 5]
    assert first.request.trial.duration_s == 9.0
    assert (third.request.trial.profile, third.findings) == ("x", ("LOST_ACKED",))


def test_a_remark_that_a_full_disk_refuses_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said between runs is for whoever can read it."""
    said = False
    with suppress(OSError), Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        say("Spark is begun anew")
        said = True
    assert said

"""Several runs in one command: what they came to is told at the end, however they ended."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import session
from harness.cli.options import Request
from harness.cli.session import ReportOptions, RunEnd
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Judgement, Result, Verdict
from harness.trial import Trial

LOST = Finding("LOST_ACKED", 3, "3 acknowledged messages are lost", "no-loss")
INVALID = Verdict(Judgement.INVALID, "Invalid: lost.", (), (Result("loss", (LOST,)),))
VALID = Verdict(Judgement.VALID, "Valid: all is there.", (), (Result("loss"),))

Series = Callable[..., int]


class Engines:
    """No Spark: nothing is judged here."""

    def ready(self) -> Any:
        return None


@pytest.fixture
def series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Series:
    """`series([ending or error, ...], Shown(...))`: the exit code of runs that ended so."""

    def carried_out(ends: list[RunEnd | BaseException], shown: ReportOptions) -> int:
        told = iter(ends)

        def run_one(asked: Request, runs: Path, spark: Any) -> RunEnd:
            end = next(told)
            if isinstance(end, BaseException):
                raise end
            return end

        monkeypatch.setattr(session, "run_one", run_one)
        requests = [Request(Trial(seed=seed)) for seed in range(1, len(ends) + 1)]
        engines: Any = Engines()
        return session.run_series(requests, tmp_path, engines, shown)

    return carried_out


def ended(folder: Path, seed: int, verdict: Verdict) -> RunEnd:
    return RunEnd(seed, RunDir(folder / f"run-{seed}"), verdict)


@pytest.mark.parametrize(("verdict", "code"), [(INVALID, 1), (VALID, 2)])
def test_a_series_that_is_stopped_keeps_what_is_there(
    series: Series,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verdict: Verdict,
    code: int,
) -> None:
    """Ctrl-C before the second run's load: no third run; the table tells of both, and the worst
    decides, where a run that was stopped is unknown."""
    stop = KeyboardInterrupt("; removed by: seatrial heal x")
    ends = [ended(tmp_path, 1, verdict), stop, ended(tmp_path, 3, INVALID)]
    assert series(ends, ReportOptions(page=False)) == code
    said = capsys.readouterr()
    assert f"2 runs: 1 {verdict.verdict.value}, 1 no verdict" in said.out
    assert "stopped before there was a verdict; removed by: seatrial heal x" in said.err


def test_a_series_that_is_stopped_is_json_all_the_same(
    series: Series, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for each run that was begun."""
    ends = [ended(tmp_path, 1, INVALID), KeyboardInterrupt()]
    assert series(ends, ReportOptions(as_json=True, page=False)) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert first["verdict"]["verdict"] == "invalid"
    assert (second["seed"], second["verdict"]) == (2, None)
    assert second["error"] == "stopped before there was a verdict"


def test_a_page_that_is_not_waited_for_takes_no_verdict_away(
    series: Series,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C while it is made."""

    def stop(ending: RunEnd, shown: ReportOptions) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "render", stop)
    assert series([ended(tmp_path, 1, INVALID), ended(tmp_path, 2, VALID)], ReportOptions()) == 1
    said = capsys.readouterr()
    assert "1 run: 1 invalid" in said.out
    assert "stopped before its page was made" in said.err


def test_a_table_shows_errors_as_they_are(
    series: Series, capsys: pytest.CaptureFixture[str]
) -> None:
    """An address or a path in brackets is no markup."""
    errors = ["ssh: [fd00::2] refused", "the disk [/tmp/x] is full", "[red]x"]
    assert series([RunEnd(1, error=error) for error in errors], ReportOptions()) == 255
    told = capsys.readouterr().out
    assert all(error in told for error in errors)

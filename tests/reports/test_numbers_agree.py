"""A number of a run is the same on its page, in its summary, and in the list."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers import availability
from harness import registry
from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder
from harness.judge.verdict import Finding, Judgement, Reason, Result, Verdict
from harness.suite import figures
from reports import _format, _recovery, page, summary, terminal
from reports._run import RunView, read_run
from reports._site.compare import compare_runs
from reports._site.run_list import read_row

Written = Callable[..., RunDir]
REGISTER = """\
{:type :invoke, :f :write, :value [1 3], :process 0, :time 1000000}
{:type :ok, :f :write, :value [1 3], :process 0, :time 4000000}
{:type :invoke, :f :read, :value [1 nil], :process 1, :time 5000000}
{:type :ok, :f :read, :value [1 3], :process 1, :time 7000000}
{:type :invoke, :f :write, :value [1 4], :process 0, :time 8000000}
{:type :fail, :f :write, :value [1 4], :process 0, :time 9000000}
{:type :invoke, :f :write, :value [1 5], :process 0, :time 9500000}
{:type :info, :f :write, :value [1 5], :process 0, :time 9600000}
{:type :invoke, :f :write, :value [1 6], :process 2, :time 9700000}
"""
S = 1_000_000_000

LATE = Reason("CHECKER_TIMEOUT", "the checker loss did not finish within 600 s")
UNREAD = Reason("NO_FINAL_READ", "3 messages were acknowledged in queues that nobody read")


def with_result(told: RunView, result: Result) -> RunView:
    """The same run with one checker's result in place of that checker's own."""
    others = [r for r in told.verdict.checkers if r.checker != result.checker]
    return replace(told, verdict=replace(told.verdict, checkers=(result, *others)))


@pytest.mark.parametrize(
    ("reasons", "found", "listed", "told", "note"),
    [
        ((), False, 0, "0", "acknowledged, then gone"),
        ((LATE,), False, None, "0?", "not sure: CHECKER_TIMEOUT"),
        ((UNREAD,), False, None, "0?", "not all queues could be read back"),
        ((UNREAD, LATE), True, 3, "3?", "not all queues could be read back"),
    ],
)
def test_what_nobody_could_count_is_not_nothing(
    written: Written,
    lost: Finding,
    reasons: tuple[Reason, ...],
    found: bool,
    listed: int | None,
    told: str,
    note: str,
) -> None:
    """A checker that did not finish may report no findings; those that it reports count."""
    run = written()
    result = Result("loss", (lost,) if found else (), reasons)
    verdict = Verdict(Judgement.UNKNOWN, "Unknown: it was late.", reasons, (result,))
    run.verdict_file.write_text(verdict.to_json())
    (number,) = (n for n in _format.key_numbers(read_run(run)) if n.name == "lost")
    assert (number.value, number.note) == (told, note)
    assert read_row(run.path).lost == listed


@pytest.mark.parametrize(
    ("times", "usual", "drawn"),
    [
        ((1.0, 2.0), "1.5 s", "kill: median 1.5 s of 2"),
        ((1.0, 2.0, None), "2 s", "kill: median 2 s of 3, 1 never"),
        ((1.0, None, None), "never", "kill: median never of 3, 2 never"),
    ],
)
def test_a_median_counts_what_never_came(
    written: Written, times: Sequence[float | None], usual: str, drawn: str
) -> None:
    """In the drawing as among the numbers."""
    told = read_run(written())
    stats: Any = told.stats("availability")
    base = next(fault for fault in stats["faults"] if fault["kind"] == "kill")
    faults = [{**base, "fault": n, "to_ack_s": time} for n, time in enumerate(times)]
    table = {**stats, "faults": faults, "times": availability._summary(faults)}
    told = with_result(told, Result("availability", stats=json.loads(json.dumps(table))))
    (number,) = (n for n in _format.key_numbers(told) if n.name == "fault to next acknowledgement")
    assert number.value == usual
    spread = _recovery.spreads(told)[0]
    assert spread.summary.endswith(drawn)
    assert ('class="never"' in spread.drawing) == (None in times)
    assert ('class="median"' in spread.drawing) == (usual != "never")


def test_a_fault_is_one_however_many_broker_sets_it_hit(written: Written) -> None:
    """It hurt as long as the set that was hit worst: a row, a dot, and one time in each median."""
    told = read_run(written())
    stats: Any = told.stats("availability")
    base = next(fault for fault in stats["faults"] if fault["kind"] == "kill")
    fine = {"to_ack_s": 1.0, "failed": False, "failure_to_success_s": None, "silence_s": 0.5}
    faults = [
        {**base, **fine, "fault": 0, "set": "a"},
        {**base, **fine, "fault": 0, "set": "b", "to_ack_s": 3.0, "silence_s": 4.0},
        {**base, **fine, "fault": 1, "set": "a", "to_ack_s": 2.0, "only_after_healing": True},
        {**base, **fine, "fault": 1, "set": "b", "failed": True, "failure_to_success_s": 0.25},
    ]
    table = {**stats, "faults": faults, "times": availability._summary(faults)}
    told = with_result(told, Result("availability", stats=json.loads(json.dumps(table))))
    first, second, _ = (row["times"] for row in _recovery.fault_rows(told))
    assert (first.to_ack, first.silence, first.failure_to_success, first.late) == (
        *("3 s", "4 s", "", False),
    )
    assert (second.to_ack, second.failure_to_success, second.late) == ("2 s", "250 ms", True)
    numbers = {number.name: number for number in _format.key_numbers(told)}
    assert numbers["fault to next acknowledgement"].value == "2.5 s"
    assert numbers["fault to next acknowledgement"].note == "median; worst 3 s"
    assert numbers["failure to next success"].value == "250 ms"
    spread = _recovery.spreads(told)[0]
    assert spread.summary.endswith("kill: median 2.5 s of 2")
    assert spread.drawing.count("<circle") == 2
    lines = re.findall(r"^\| (\d+) \| kill.*", summary.markdown(told), re.MULTILINE)
    assert lines == ["0", "1"]
    told.run.verdict_file.write_text(told.verdict.to_json())
    assert read_row(told.run.path).rto_s == 2.5


@pytest.mark.parametrize(
    ("state", "rate"),
    [
        ({"load_began_ns": 2 * S, "load_ended_ns": 12 * S}, 70.0),  # not the 38 s that were planned
        ({"load_began_ns": 2 * S}, None),
        ({"load_began_ns": 2 * S, "load_ended_ns": 2 * S}, None),
        ({"load_began_ns": "soon", "load_ended_ns": 2 * S}, None),
    ],
)
def test_what_a_second_brought_is_of_the_load_as_it_was(
    written: Written, state: dict[str, Any], rate: float | None
) -> None:
    """In a suite's nights as in the list: of seconds in which there was load."""
    run = written()
    run.update_state(**state)
    told = with_result(read_run(run), Result("loss", stats={"acknowledged": 700}))
    run.verdict_file.write_text(told.verdict.to_json())
    assert read_row(run.path).rate == rate
    assert figures.measured(run, told.verdict).get("per_s") == rate


def test_every_format_tells_operations_where_there_are_no_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was never answered is of unknown outcome, too."""
    path = tmp_path / "register.edn"
    path.write_text(REGISTER)
    recording = registry.load("importer", "jepsen-register")(path)
    run = _folder.write(recording, path, "jepsen-register", tmp_path / "register")
    verdict = Verdict(Judgement.VALID, "Valid: all of it.", (), (Result("registers"),))
    run.verdict_file.write_text(verdict.to_json())
    (number,) = (n for n in _format.key_numbers(read_run(run)) if n.name == "operations done")
    assert (number.value, number.note) == ("2", "1 refused, 2 of unknown outcome")
    terminal.render(run)
    assert "operations done  2  1 refused, 2 of unknown" in capsys.readouterr().out
    assert f"| operations done | 2 | {number.note} |" in summary.markdown(read_run(run))
    assert f'<div class="note">{number.note}</div>' in page.page_html(read_run(run))
    told = [
        pair.one
        for pair in compare_runs(read_run(run), read_run(run)).numbers
        if pair.name == number.name
    ]
    assert told == [f"2 ({number.note})"]


def test_a_send_that_was_never_answered_is_of_unknown_outcome(written: Written) -> None:
    """Also the sends of a client process that was killed."""
    told = read_run(written())
    sends = {"invoke": 10, "ok": 5, "fail": 2, "info": 1}
    stats: Any = {**told.stats("availability"), "sends": sends}
    told = with_result(told, Result("availability", stats=stats))
    (number,) = (n for n in _format.key_numbers(told) if n.name == "acknowledged")
    assert (number.value, number.note) == ("5", "2 refused, 3 unknown")


def test_where_nothing_was_sent_nobody_says_that_none_was_acknowledged(written: Written) -> None:
    """A register has no messages: neither on its page nor in the list."""
    told = read_run(written())
    stats: Any = {**told.stats("availability"), "sends": dict.fromkeys(("invoke", "ok"), 0)}
    told = with_result(told, Result("availability", stats=stats))
    told.run.verdict_file.write_text(told.verdict.to_json())
    assert "acknowledged" not in {number.name for number in _format.key_numbers(told)}
    assert read_row(told.run.path).acknowledged is None

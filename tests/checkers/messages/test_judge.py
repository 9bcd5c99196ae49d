"""Judging: checkers are kept apart, the contract is applied, and the verdict is one sentence."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from types import SimpleNamespace
from typing import Any

import pytest

from harness import registry
from harness.errors import BedFailed
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.judge import judge
from harness.judge.verdict import Finding, Judgement, Reason, Result, Verdict
from harness.operation import NONE
from harness.trial import DEMANDS, Trial

LOST = Finding("LOST_ACKED", 3, "3 acknowledged messages were lost", "no-loss")
UNREAD = Finding("UNREAD_ACKED", 2, "2 more were never delivered to group-0", "at-least-once")
MESSAGE_CHECKERS = ("loss", "phantom", "duplicates", "order", "offsets", "linearizable")
SPARK: Any = SimpleNamespace(
    sparkContext=SimpleNamespace(cancelAllJobs=lambda: None),
    conf=SimpleNamespace(get=lambda name: "local[1]"),
)


@pytest.fixture
def sound(written: Callable[..., History]) -> History:
    return written("send 1 ok@0\npoll 1@0\nread 1@0\nstored 1@0\ndrained")


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Every checker is this function."""

    def answer(check: Callable[..., Any]) -> None:
        monkeypatch.setattr(registry, "load", lambda kind, name: check)

    return answer


def with_faults(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every history has these faults."""
    real = History.read

    def read(history: History, table: str) -> Any:
        return rows if table == "faults" else real(history, table)

    monkeypatch.setattr(History, "read", read)


def concluded(history: History, *findings: Finding, **trial: Any) -> Verdict:
    return judge.conclude([Result("loss", findings)], history, Trial(**trial))


def test_a_finding_that_the_contract_demands_against_is_invalid(sound: History) -> None:
    """The default contract demands no loss."""
    verdict = concluded(sound, LOST)
    assert verdict.verdict is Judgement.INVALID
    assert verdict.sentence == "Invalid: 3 acknowledged messages were lost."


def test_the_sentence_has_the_findings_in_words(sound: History) -> None:
    """The first three in full, the others by their codes; a damaged body comes first, whichever
    checker found it."""
    order = Finding("REORDERED", 4, "4 messages stand in the wrong order", "order-per-queue")
    moved = Finding("OFFSET_MOVED", 5, "5 messages moved", "order-per-queue")
    assert concluded(sound, LOST, UNREAD, order, moved).sentence == (
        "Invalid: 3 acknowledged messages were lost; 2 more were never delivered to group-0 "
        "(UNREAD_ACKED); 4 messages stand in the wrong order (REORDERED); also OFFSET_MOVED 5."
    )
    damaged = Finding("CORRUPTED", 1, "1 message was read with another body", "integrity")
    results = [Result("loss", (LOST,)), Result("phantom", (damaged,))]
    verdict = judge.conclude(results, sound, Trial())
    assert verdict.sentence == (
        "Invalid: 1 message was read with another body; 3 acknowledged messages were lost "
        "(LOST_ACKED)."
    )
    assert verdict.first_finding == damaged


@pytest.mark.parametrize(
    ("plan", "applied", "says"),
    [
        ("", None, "no fault was injected"),
        ("[[fault]]\nkind = 'kill'\nat_s = 1\nfor_s = 1\n", None, "none of 1 planned faults took"),
        ("[[fault]]\nkind = 'kill'\nat_s = 1\nfor_s = 1\n", 5, ""),
    ],
)
@pytest.mark.parametrize("findings", [(), (LOST,)])
def test_a_run_that_broke_nothing_says_so(
    written: Callable[..., History],
    plan: str,
    applied: int | None,
    says: str,
    findings: tuple[Finding, ...],
) -> None:
    """Whatever the verdict is; a recording of others says nothing of the kind."""
    columns = (0, "kill", "{}", "", "{}", 1, 1, 4, applied, applied, 6, 7, "installed", "{}")
    history = written("send 1 ok@0\nread 1@0\ndrained", faults=[columns] if plan else [])
    journal = TableJournal(history.run.journal, "notes", "runner")
    journal.append((1, NONE, NONE, "load"))
    journal.close()
    history.run.plan_file.write_text(plan)
    sentence = concluded(History.open(history.run), *findings).sentence
    assert (says.casefold() in sentence.casefold()) if says else ("took" not in sentence)
    history.run.update_state(imported={"file": "x"})
    assert "fault" not in concluded(History.open(history.run), *findings).sentence


def test_a_warning_leads_what_is_valid_and_follows_what_is_not(sound: History) -> None:
    """Such as that nothing succeeded for most of the load."""
    warned = Result("coverage", stats={"warning": "no send was acknowledged for 28 of 30 s"})
    proved = Result("loss", stats={"proved": "all 7 messages are in the log"})
    assert judge.conclude([proved, warned], sound, Trial()).sentence == (
        "Valid: no send was acknowledged for 28 of 30 s; all 7 messages are in the log."
    )
    verdict = judge.conclude([Result("loss", (LOST,)), warned], sound, Trial())
    assert verdict.sentence == (
        "Invalid: 3 acknowledged messages were lost. No send was acknowledged for 28 of 30 s."
    )


def test_where_a_clock_moved_nothing_that_rests_on_time_convicts(sound: History) -> None:
    """Compared again after the last operation: further off than its error, or not asked; what is
    lost is lost on any clock."""
    clock = {"offset_ns": 10**9, "error_ns": 5_000_000}
    stale = Finding("NOT_LINEARIZABLE", 1, "no order explains the reads", "linearizable")
    for off_ns, doubtful in ((4_999_999, False), (5_000_001, True), (None, True)):
        sound.run.update_state(clocks={"client-1": {**clock, "off_ns": off_ns}})
        history = History.open(sound.run)
        found = [Result("registers", (stale,)), Result("loss")]
        verdict = judge.conclude(found, history, Trial())
        assert verdict.verdict is (Judgement.UNKNOWN if doubtful else Judgement.INVALID)
        assert [r.code for r in verdict.reasons] == ["CLOCKS_DOUBTFUL"] * doubtful
        assert verdict.checkers[0].findings[0].code == "NOT_LINEARIZABLE"
        assert concluded(history, LOST).verdict is Judgement.INVALID
    sound.run.update_state(clocks={"client-1": clock})
    assert not judge.conclude([], History.open(sound.run), Trial()).reasons


def test_a_weaker_contract_permits_and_says_so(sound: History) -> None:
    """Permitted only because the trial says so, and the sentence tells it."""
    contract = tuple(demand for demand in DEMANDS if demand != "no-loss")
    verdict = concluded(sound, LOST, contract=contract)
    assert verdict.verdict is Judgement.VALID
    assert verdict.checkers[0].findings[0].permitted
    assert "Permitted, because the trial's contract does not demand it: LOST_ACKED 3" in (
        verdict.sentence
    )


def test_naming_a_fault_in_the_plan_excuses_nothing(sound: History) -> None:
    """What counts is what was observed, not what was planned."""
    sound.run.plan_file.write_text('[[fault]]\nkind = "power"\nat_s = 1.0\nfor_s = 1.0\n')
    assert concluded(sound, LOST).verdict is Judgement.INVALID


def test_no_contract_waives_integrity(sound: History) -> None:
    """A message that nobody sent convicts under the empty contract."""
    phantom = Finding("PHANTOM_NEVER_SENT", 1, "1 message came out unsent", "integrity")
    assert concluded(sound, phantom, contract=()).verdict is Judgement.INVALID


def test_what_only_informs_never_convicts(sound: History) -> None:
    """A finding without a demand is neither a conviction nor permitted."""
    verdict = concluded(sound, replace(LOST, demand=""))
    assert verdict.verdict is Judgement.VALID
    assert not verdict.checkers[0].findings[0].permitted


def test_a_crashed_checker_hides_nobody_elses_result(
    sound: History, answering: Callable[[Callable[..., Any]], None]
) -> None:
    """CHECKER_FAILED is unknown; a certain finding of another checker still convicts."""

    def crash(history: History, trial: Trial, spark: Any) -> Result:
        raise ZeroDivisionError("oops")

    answering(crash)
    crashed = judge.run_checker("order", sound, Trial(), SPARK)
    assert [r.code for r in crashed.reasons] == ["CHECKER_FAILED"]
    assert "ZeroDivisionError: oops" in crashed.reasons[0].message
    alone = judge.conclude([crashed], sound, Trial())
    both = judge.conclude([crashed, Result("loss", (LOST,))], sound, Trial())
    assert (alone.verdict, both.verdict) == (Judgement.UNKNOWN, Judgement.INVALID)


@pytest.mark.spark
def test_a_killed_python_process_of_spark_is_named(
    sound: History, answering: Callable[[Callable[..., Any]], None], spark: Any
) -> None:
    def crash(history: History, trial: Trial, spark: Any) -> Result:
        killed = spark.range(1).mapInArrow(lambda rows: os.kill(os.getpid(), SIGKILL), "id long")
        killed.toArrow()
        raise AssertionError("it was not killed")

    answering(crash)
    (reason,) = judge.run_checker("order", sound, Trial(), spark).reasons
    assert reason.code == "CHECKER_FAILED"
    assert reason.message.startswith("a Python process of Spark ended while the checker order ran")


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (Result("order", (replace(LOST, code="LOST_ODDLY"),)), "finding LOST_ODDLY"),
        (Result("order", reasons=(Reason("NO_LUCK", "none"),)), "reason NO_LUCK"),
    ],
)
def test_a_code_that_is_not_declared_is_a_failure(
    sound: History,
    answering: Callable[[Callable[..., Any]], None],
    result: Result,
    what: str,
) -> None:
    """A checker that gives a code which its PLUGIN does not declare has failed."""
    answering(lambda history, trial, spark: result)
    failed = judge.run_checker("order", sound, Trial(), SPARK)
    assert [reason.code for reason in failed.reasons] == ["CHECKER_FAILED"]
    assert f"gave the {what}, which its PLUGIN does not declare" in failed.reasons[0].message
    assert not failed.findings


@pytest.fixture
def hangs(answering: Callable[[Callable[..., Any]], None]) -> Iterator[None]:
    """Every checker hangs until the end of the test."""
    release = threading.Event()

    def hang(history: History, trial: Trial, spark: Any) -> Result:
        release.wait(60)
        return Result("order")

    answering(hang)
    yield
    release.set()


@pytest.mark.usefixtures("hangs")
def test_a_checker_without_end_is_given_up_on(sound: History) -> None:
    """CHECKER_TIMEOUT, and the run's judgement goes on."""
    result = judge.run_checker("order", sound, Trial(), SPARK, budget_s=0.01)
    assert [r.code for r in result.reasons] == ["CHECKER_TIMEOUT"]


@pytest.mark.usefixtures("hangs")
def test_a_checker_without_end_on_a_cluster_without_executors_ends_the_check(
    sound: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other checkers would wait as long."""

    def none_answers(session: Any, witness: Path) -> None:
        assert (session, witness) == (SPARK, sound.run.probe_path)
        raise BedFailed("no executor answered")

    monkeypatch.setattr(judge, "check_executors", none_answers)
    with pytest.raises(BedFailed, match="no executor answered"):
        judge.run_checker("order", sound, Trial(), SPARK, budget_s=0.01)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"ended": False}, "INTERRUPTED"),
        ({"interrupted": True}, "INTERRUPTED"),
        ({"error": "no such tool"}, "BED_FAILED"),
    ],
)
def test_a_run_that_did_not_end_well_proves_nothing(
    written: Callable[..., History], state: dict[str, Any], code: str
) -> None:
    """Unknown with a reason, unless a finding is certain."""
    history = written("send 1 ok@0", **state)
    verdict = judge.conclude([Result("loss")], history, Trial())
    assert verdict.verdict is Judgement.UNKNOWN
    assert [r.code for r in verdict.reasons] == [code]
    assert judge.conclude([Result("loss", (LOST,))], history, Trial()).verdict == "invalid"


def test_what_follows_from_a_run_that_was_cut_short_is_no_reason(
    written: Callable[..., History],
) -> None:
    """Of course a fault is missing, and a success after it; what has other causes stays."""
    codes = ("FAULTS_MISSING", "NO_OK_AFTER", "NO_LOAD", "FAULT_NOT_OBSERVED")
    lacking = Result("coverage", reasons=tuple(Reason(code, "why") for code in codes))
    history = written("send 1 ok@0", error="no such tool", ended=False)
    verdict = judge.conclude([lacking], history, Trial())
    assert [r.code for r in verdict.reasons] == ["BED_FAILED", "INTERRUPTED", "FAULT_NOT_OBSERVED"]
    whole = judge.conclude([lacking], written("send 1 ok@0"), Trial())
    assert [r.code for r in whole.reasons] == list(codes)


def test_a_damaged_journal_is_a_reason(sound: History) -> None:
    """What can be read is judged; what is missing may have been anything."""
    (path,) = sound.files["ops"]
    path.write_bytes(path.read_bytes()[:-300])
    verdict = judge.conclude([Result("loss")], History.open(sound.run), Trial())
    assert [r.code for r in verdict.reasons] == ["JOURNAL_DAMAGED"]
    damage = "Unknown: the file ops-client-1-000.arrows is readable up to row 0"
    assert verdict.sentence.startswith(damage)


def test_the_same_reason_is_given_once(sound: History) -> None:
    """Two checkers that miss the same thing say it once."""
    why = Reason("NO_LOAD", "there was no load")
    results = [Result("loss", reasons=(why,)), Result("order", reasons=(why,))]
    assert judge.conclude(results, sound, Trial()).reasons == (why,)


def test_checking_twice_gives_the_same_bytes(written: Callable[..., History]) -> None:
    """From the journal, and again when it is sealed: verdict.json is equal byte for byte."""
    text = "send 1 ok@0\nsend 2 ok@1\nread 1@0 9@5\npoll 1@0\nstored 1@0\ndrained"
    run = written(text, crews=2).run
    trial = replace(Trial(), checkers=MESSAGE_CHECKERS)
    run.trial_file.write_text(trial.to_toml())
    verdicts = []
    for _ in range(2):
        history = History.open(run)
        results = [judge.run_checker(name, history, trial, None) for name in MESSAGE_CHECKERS]  # type: ignore[arg-type]
        verdicts.append(judge.conclude(results, history, trial).to_json())
        judge.seal(run)
    assert verdicts[0] == verdicts[1]
    found = {f["code"] for c in json.loads(verdicts[0])["checkers"] for f in c["findings"]}
    assert {"LOST_ACKED", "PHANTOM_NEVER_SENT"} <= found


def test_the_trial_chooses_its_checkers() -> None:
    """Named in the trial, or else the workload's."""
    assert judge.checkers_of(Trial(checkers=("loss",))) == ("loss",)
    assert set(MESSAGE_CHECKERS) <= set(judge.checkers_of(Trial()))


def test_a_fault_that_could_not_be_healed_makes_the_run_unknown(
    sound: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever checkers are asked: what came after it happened in another world."""
    schema = sound.read("faults").schema
    healing = {"state": "failed", "error": "broker-1 did not answer"}
    row = {"id": 0, "kind": "pause", "observation": json.dumps({"healing": healing})}
    rows = schema.empty_table().from_pylist([row], schema)
    with_faults(rows, monkeypatch)
    verdict = concluded(sound)
    assert verdict.verdict is Judgement.UNKNOWN
    assert [reason.code for reason in verdict.reasons] == ["NOT_HEALED"]
    assert "fault 0 (pause) could not be healed: broker-1 did not answer" in verdict.sentence

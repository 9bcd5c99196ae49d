"""The story of a run that failed: its content, its order, and what it leaves out."""

from dataclasses import replace
from pathlib import Path

import pytest
import sinking

from harness.campaign.simulation import SeedOutcome
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Verdict
from harness.operation import NONE
from reports._stories.cluster_events import BrokerNames, cluster_moments
from reports._stories.story import explain, failing_run_story


@pytest.fixture(scope="module")
def sunk(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    outcome: SeedOutcome = sinking.sunk(Path(tmp_path_factory.mktemp("story")) / "run")
    return outcome


def history(sunk: SeedOutcome) -> History:
    return History.open(sunk.run)


def verdict(sunk: SeedOutcome) -> Verdict:
    assert sunk.verdict
    return sunk.verdict


def timed(lines: list[str]) -> list[float]:
    return [float(line.split()[0]) for line in lines if line[:9].strip().replace(".", "").isdigit()]


def test_the_message_the_faults_and_the_cluster_are_told_in_order(sunk: SeedOutcome) -> None:
    """From how things stood at first to the law and the verdict; times are the plan's."""
    lines = failing_run_story(history(sunk), verdict(sunk))
    text = "\n".join(lines)
    assert lines[0].startswith("The message is number ")
    assert lines[1].startswith("In seconds since the load began. At first set-1 has the master ")
    assert timed(lines) == sorted(timed(lines))
    in_order = (
        " fault 0: pause, controller-",
        " sends the message to orders-",
        " acknowledges the message: offset ",
        " fault 3: kill, broker-",
        " master of set-1: epoch 2, SyncStateSet broker-",
        " fault 3 ends: broker-",
        " cuts its log from ",
        "In the end no log holds the message, of broker-1, broker-2, broker-3.",
        "Violated: an acknowledged message stays in the log.",
        verdict(sunk).sentence,
    )
    places = [text.find(words) for words in in_order]
    assert -1 not in places
    assert places == sorted(places)
    assert " fault 2: partition (isolate, from slave), broker-" in text
    assert any(line.startswith("    1.500  fault 3: kill") for line in lines)
    assert "the broker with id" not in text


def test_what_tells_least_is_left_out_first(sunk: SeedOutcome) -> None:
    """The message is left out last; the number of omitted events is printed."""
    lines = failing_run_story(history(sunk), verdict(sunk), limit=3)
    assert len(timed(lines)) == 3
    assert "sends the message" in lines[2]
    assert "acknowledges the message" in lines[3]
    assert "less relevant events omitted" in "\n".join(lines)


def test_the_message_is_told_as_explain_tells_it(sunk: SeedOutcome) -> None:
    """Its moments and its end, in the same words: there is one teller."""
    story = explain(sunk.run)
    assert story
    text = "\n".join(failing_run_story(history(sunk), verdict(sunk)))
    its = [step.text for step, _ in story.moments if "the message" in step.text]
    assert len(its) >= 2
    assert story.final_state
    assert not [words for words in (story.subject, *its, *story.final_state) if words not in text]


def test_a_finding_about_an_object_is_told_by_its_operations(sunk: SeedOutcome) -> None:
    """Values of an object are no messages."""
    convicted = verdict(sunk).first_finding
    assert convicted
    evidence = ({"key": "3", "value": convicted.evidence[0]["value"], "op": 1},)
    finding = Finding("NOT_LINEARIZABLE", 1, "no order explains it", "linearizable", evidence)
    result = replace(verdict(sunk).checkers[0], findings=(finding,))
    lines = failing_run_story(history(sunk), replace(verdict(sunk), checkers=(result,)))
    assert lines[0] == "It is about key 3."
    assert [line for line in lines if " begins op 1: " in line]
    assert "the message" not in "\n".join(lines)


def test_a_finding_about_no_message_is_told_without_one(sunk: SeedOutcome) -> None:
    """Around its own time."""
    evidence = ({"at_s": 3.0, "node": "broker-1"},)
    finding = Finding("ONE_MASTER", 1, "an epoch had two masters", "integrity", evidence)
    assert finding.first_moment_s == 3.0
    result = replace(verdict(sunk).checkers[0], findings=(finding,))
    text = "\n".join(failing_run_story(history(sunk), replace(verdict(sunk), checkers=(result,))))
    assert "the message" not in text
    assert "fault 3: kill" in text
    assert "Violated: no message is made up or changed, and replicas hold the same." in text


@pytest.mark.parametrize(
    ("phases", "known"),
    [
        ({"load": 100}, True),
        ({"load": 100, "healed": 200, "drain": 250}, True),
        ({"load": 100, "drain": 310, "collected": 400}, True),
        ({"load": 100, "drain": 200, "collected": 300}, False),
    ],
)
def test_what_nodes_told_counts_until_they_are_taken_down(
    tmp_path: Path, phases: dict[str, int], known: bool
) -> None:
    """A run that was killed, or that its test bed failed, never came to that: all of it counts."""
    run = RunDir(tmp_path)
    run.write_names({"keys": [], "nodes": ["broker-2"], "processes": {}})
    events = TableJournal(run.journal, "events", "runner")
    events.append((305, "broker-2", "exit", '{"code": 70, "pid": 7}'))
    events.close()
    notes = TableJournal(run.journal, "notes", "runner")
    for phase, t in phases.items():
        notes.append((t, NONE, NONE, phase))
    notes.close()
    history = History.open(run)
    words = [moment.text for moment in cluster_moments(history, BrokerNames.of(history), 100)]
    assert words == ["broker-2 ends with exit code 70"] * known

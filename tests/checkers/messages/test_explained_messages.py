"""Each kind of finding about messages, explained: what the history says is what the story says."""

from typing import Any

import pytest

from harness.history.rundir import RunDir
from harness.judge.judge import judge_small
from harness.judge.verdict import Verdict
from reports._stories.story import explain

HISTORIES = {
    "LOST_ACKED": """
        send 1 ok@0
        send 2 ok@1
        send 3 ok@2
        poll 1@0 3@2
        read 1@0 3@2
        stored 1@0 3@2
        drained
    """,
    "DUPLICATED": """
        send 1 ok@0
        read 1@0 1@1
        stored 1@0 1@1
        drained
    """,
    "DUPLICATED_BY_RETRY": """
        send 1 ok@0 x3
        read 1@0 1@1
        stored 1@0 1@1
        drained
    """,
    "REORDERED": """
        send 1 ok@5 [10..20]
        send 2.2 ok@4 [30..40]
        read 2.2@4 1@5
        stored 2.2@4 1@5
        drained
    """,
    "OFFSET_CONFLICT": """
        send 1 ok@0
        send 2 ok@1
        poll 1@0
        poll 2@0
        stored 1@0 2@1
    """,
    "OFFSET_GAP": """
        send 1 ok@0
        send 2 ok@1
        send 3 ok@2
        read 1@0 2@1 3@2
        stored 1@0 3@2
    """,
    "OFFSET_MOVED": """
        send 1 ok@0
        read 1@4
        stored 1@4
        drained
    """,
    "PHANTOM_REFUSED": """
        send 1 fail
        read 1@0
        stored 1@0
        drained
    """,
    "PHANTOM_NEVER_SENT": """
        send 1 ok@0
        read 1@0 7@1
        stored 1@0 7@1
        drained
    """,
    "PHANTOM_VANISHED": """
        send 1 ok@0
        send 2 info
        poll 1@0 2@1
        read 1@0
        stored 1@0
        drained
    """,
}
SAYS = {
    "LOST_ACKED": (
        "process 0 sends the message to orders-0",
        "the cluster acknowledges the message: offset 1",
        "reader 0 reads past offset 1 of orders-0: it receives message 3 of producer 0 at 2",
        "consumer 0 of group-0 reads past offset 1 of orders-0",
        "In the end no log holds the message, of broker-1, broker-2.",
        "in the end no replica holds it",
    ),
    "DUPLICATED": (
        "reader 0 reads the message from orders-0 at offset 0",
        "reader 0 reads the message from orders-0 at offset 1",
        "It was sent in 1 attempt, and acknowledged; "
        "readers received it from orders-0 at 0 and orders-0 at 1.",
    ),
    "DUPLICATED_BY_RETRY": ("at attempt 3", "It was sent in 3 attempts, and acknowledged"),
    "REORDERED": (
        "Message A is number 1 of producer 0",
        "Message B is number 2 of producer 2",
        "the cluster acknowledges message A: offset 5",
        "process 2 sends message B to orders-0",
        "Message A was acknowledged or read by 0.020 s of the run, before message B was sent at "
        "0.030 s, but message A is at offset 5 of orders-0, behind message B at 4.",
    ),
    "OFFSET_CONFLICT": (
        "consumer 0 of group-0 receives message A from orders-0 at offset 0",
        "consumer 0 of group-0 receives message B from orders-0 at offset 0",
        "Conclusion: Offset 0 of orders-0 was that of message A and message B.",
    ),
    "OFFSET_GAP": (
        "The message is number 2 of producer 0",
        "reader 0 reads the message from orders-0 at offset 1",
        "In the end no log holds the message, of broker-1, broker-2.",
    ),
    "OFFSET_MOVED": (
        "the cluster acknowledges the message: offset 0",
        "reader 0 reads the message from orders-0 at offset 4",
        "readers received it from orders-0 at 4",
    ),
    "PHANTOM_REFUSED": (
        "the message is refused",
        "It was sent in 1 attempt, and refused; readers received it",
    ),
    "PHANTOM_NEVER_SENT": (
        "reader 0 reads the message from orders-0 at offset 1",
        "No send of it is recorded; readers received it from orders-0 at 1",
    ),
    "PHANTOM_VANISHED": (
        "the message is not answered: the outcome is unknown",
        "consumer 0 of group-0 receives the message from orders-0 at offset 1",
        "in the end no replica holds it",
    ),
}


def judged(history: Any) -> RunDir:
    judge_small(history)
    run: RunDir = history.run
    return run


@pytest.mark.parametrize("code", HISTORIES)
def test_the_story_says_what_the_history_says(written: Any, code: str) -> None:
    """Who did what, in whose words, and the conclusion from it."""
    story = explain(judged(written(HISTORIES[code])), code)
    assert story
    text = "\n".join(story.lines())
    assert not [words for words in SAYS[code] if words not in text], text
    assert [m["t"] for m in story.plain()["moments"]] == sorted(step.t for step, _ in story.moments)


def test_whatever_a_checker_finds_can_be_explained(written: Any) -> None:
    """Every witness of every finding of a history that is broken in many ways."""
    history = written("\n".join(HISTORIES.values()))
    run = judged(history)
    found = [f for r in Verdict.read(run.verdict_file).checkers for f in r.findings]
    assert len({f.code for f in found}) > 5
    for finding in found:
        for number in range(1, len(finding.evidence) + 1):
            story = explain(run, f"{finding.code}:{number}")
            assert story
            assert story.conclusion
            assert story.moments or finding.code == "OFFSET_GAP"  # nobody was told of it


def test_of_a_gap_however_wide_the_first_offsets_are_looked_for(written: Any) -> None:
    """One garbled offset makes a gap wider than any memory; whose messages stood there is told of
    its first few."""
    wide = """
        send 1 ok@0
        send 2 ok@1
        send 3 ok@2
        read 1@0 2@1 3@2
        stored 1@0 3@1099511627776
    """
    story = explain(judged(written(wide)), "OFFSET_GAP")
    assert story
    text = "\n".join(story.lines())
    assert "Message A is number 2 of producer 0" in text
    assert "Message B is number 3 of producer 0" in text


def test_a_fault_that_was_on_is_named(written: Any) -> None:
    """Beside the moment, and in the conclusion, with whom it hit."""
    row = (0, "pause", "{}", "master", '{"master": ["broker-1"]}', 0, 0)
    times = (1_000_000, 1_000_000, 1_000_000, 900_000_000, 900_000_000)
    fault = (*row, *times, "installed", "{}")
    story = explain(judged(written(HISTORIES["LOST_ACKED"], faults=[fault])), "LOST_ACKED")
    assert story
    acked = [on for step, on in story.moments if "acknowledges" in step.text]
    assert acked == [(0,)]
    assert "while fault 0 (pause on broker-1) was on" in story.conclusion

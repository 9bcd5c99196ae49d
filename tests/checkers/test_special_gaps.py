"""Delayed, prepared and popped messages: what a missing row can explain, or a message in another
queue, convicts no system."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadRequest
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.operation import F, Type, ops_row
from harness.trial import Trial
from harness.workloads.pop import workload

S = 1_000_000_000
READ = (F.READ, Type.OK, 50, {"value": 1, "offset": 0, "pos": 0})
ALONE = '{"key": 0, "from": 0}'  # a final reader's note: it read the whole queue
POPPED = [f'{{"key": {key}, "group": "group-0"}}' for key in (0, 1)]  # notes of a consumer
KEYS = ["orders-0", "orders-1"]
Rows = tuple[tuple[F, Type, int, dict[str, int]], ...]


def recorded(folder: Path, rows: Rows, *drained: str, **state: Any) -> History:
    """Return a history: operations with their times in s, in queue 0 if they name none, and notes
    at 60 s."""
    run = RunDir(folder)
    folder.mkdir()
    run.trial_file.write_text(Trial().to_toml())
    keys, role = KEYS[: len(drained)], {"broker-1": "broker"}
    run.write_names({"keys": keys, "nodes": [*role], "roles": role})
    run.update_state(ended=True, interrupted=False, **state)
    ops = [ops_row(t * S, 0, f, kind, f, **{"key": 0, **more}) for f, kind, t, more in rows]
    notes = [(2 * S, -1, -1, "drain"), *((60 * S, 0, -1, f"DRAINED {note}") for note in drained)]
    for table, some in (("ops", ops), ("notes", notes)):
        journal = TableJournal(run.journal, table, "client-1")
        for row in some:
            journal.append(row)
        journal.close()
    return History.open(run)


@pytest.mark.parametrize(
    ("checker", "code", "rows", "note"),
    [
        (
            "delays",
            "DELAY_LOST",
            (
                (F.DELAY, Type.INVOKE, 1, {"value": 1, "arg": 1000}),
                (F.DELAY, Type.OK, 2, {"value": 1}),
            ),
            ALONE,
        ),
        (
            "delays",
            "DELIVERED_EARLY",
            (
                (F.DELAY, Type.INVOKE, 1, {"value": 1, "arg": 90000}),
                (F.DELAY, Type.OK, 2, {"value": 1, "attempts": 1}),
                READ,
            ),
            ALONE,
        ),
        ("halves", "HALF_SEEN", ((F.PREPARE, Type.INVOKE, 1, {"value": 1}), READ), ALONE),
        (
            "halves",
            "ROLLED_BACK_SEEN",
            (
                (F.PREPARE, Type.INVOKE, 1, {"value": 1}),
                (F.DECIDE, Type.INVOKE, 3, {"value": 1, "arg": 0}),
                READ,
            ),
            ALONE,
        ),
        (
            "halves",
            "COMMIT_LOST",
            (
                (F.PREPARE, Type.INVOKE, 1, {"value": 1}),
                (F.DECIDE, Type.INVOKE, 3, {"value": 1, "arg": 1}),
                (F.DECIDE, Type.OK, 4, {"value": 1}),
            ),
            ALONE,
        ),
        (
            "halves",
            "HALF_STUCK",
            ((F.PREPARE, Type.INVOKE, 1, {"value": 1}), (F.PREPARE, Type.OK, 2, {"value": 1})),
            ALONE,
        ),
        ("pops", "POP_LOST", (READ,), '{"key": 0, "group": "group-0"}'),
        (
            "pops",
            "POP_TOO_SOON",
            (
                (F.POP, Type.INVOKE, 3, {"arg": 9000}),
                (F.POP, Type.OK, 4, {"value": 1, "offset": 0, "pos": 0}),
                (F.POP, Type.OK, 5, {"value": 1, "offset": 0, "pos": 0}),
            ),
            '{"key": 0, "group": "group-0"}',
        ),
    ],
)
def test_what_a_missing_row_can_explain_is_a_doubt(
    tmp_path: Path, checker: str, code: str, rows: Rows, note: str
) -> None:
    """The same rows convict where the recording is complete."""
    check = import_module(f"checkers.{checker}").check
    whole = check(recorded(tmp_path / "whole", rows, note), Trial(), None)
    assert code in [finding.code for finding in whole.findings if finding.demand]
    torn = check(recorded(tmp_path / "torn", rows, note, gaps=True), Trial(), None)
    assert code not in [finding.code for finding in torn.findings]
    assert "OPERATIONS_UNRECORDED" in [reason.code for reason in torn.reasons]
    assert "proved" not in torn.stats or code == "DELIVERED_EARLY"  # which loses nothing


def given(at_s: int, **where: int) -> Rows:
    """Return a POP that gave message 1."""
    row = {"value": 1, "offset": 0, "pos": 0, **where}
    return (F.POP, Type.INVOKE, at_s, {"arg": 1000, **where}), (F.POP, Type.OK, at_s + 1, row)


ACKED = (F.ACK, Type.INVOKE, 20, {"value": 1, "offset": 0, "key": 1})
ACKED_TOO = (F.ACK, Type.OK, 21, {"value": 1, "offset": 0, "key": 1})


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ((*given(3), *given(18, key=1), ACKED, ACKED_TOO), []),
        ((READ, *given(18, key=1), ACKED, ACKED_TOO), []),
        ((*given(3), *given(18, key=1)), ["POP_LOST"]),
        ((*given(3),), ["POP_LOST"]),
    ],
)
def test_a_message_may_be_given_again_in_another_queue(
    tmp_path: Path, rows: Rows, found: list[str], exclusive: bool
) -> None:
    """An acting master sent it to another broker set. It is lost if nothing acknowledged it there
    either."""
    ordered = tuple(sorted(rows, key=lambda row: row[2]))
    history = recorded(tmp_path / "run", ordered, *POPPED)
    result = import_module("checkers.pops").check(
        history, Trial(load={"exclusive": exclusive}), None
    )
    assert [(finding.code, finding.count) for finding in result.findings] == [
        (code, 1) for code in found
    ]
    assert not result.reasons or "NO_POPS_ACKNOWLEDGED" in [each.code for each in result.reasons]


def test_a_message_is_not_lost_while_another_queue_may_have_it(tmp_path: Path) -> None:
    """Consumers did not pop from that queue to its end."""
    other = (F.ACK, Type.OK, 9, {"value": 2, "offset": 0, "key": 1})
    history = recorded(tmp_path / "run", (*given(3), other), POPPED[0], '{"key": 1, "from": 0}')
    result = import_module("checkers.pops").check(history, Trial(), None)
    assert not result.findings
    assert "NO_FINAL_POP" in [each.code for each in result.reasons]


@pytest.mark.parametrize("kind", ["escaped", "preonline"])
def test_a_message_that_escaped_may_be_given_again(tmp_path: Path, kind: str) -> None:
    """The other set does not know each acknowledgement."""
    acked = (F.ACK, Type.OK, 9, {"value": 1, "offset": 0})
    history = recorded(tmp_path / "run", (*given(3), acked, *given(18)), *POPPED)
    journal = TableJournal(RunDir(tmp_path / "run").journal, "events", "runner")
    journal.append((7 * S, "broker-1", kind, "{}"))
    journal.close()
    history = History.open(history.run)
    [finding] = import_module("checkers.pops").check(history, Trial(), None).findings
    assert (finding.code, bool(finding.demand)) == ("POP_ACKED_AGAIN", kind != "escaped")


@pytest.mark.parametrize("checker", ["loss", "redelivery"])
def test_consumers_that_pop_are_not_judged_as_ones_that_poll(checker: str) -> None:
    """Groups of the workload pop poll nothing, so all messages would count as not delivered."""
    workload(Trial(workload="pop")).check_options()
    judged = workload(Trial(workload="pop", checkers=("pops", checker)))
    with pytest.raises(BadRequest, match=f"the checker {checker} judges consumers that poll"):
        judged.check_options()

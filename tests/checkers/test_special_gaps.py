"""Delayed, prepared and popped messages: what a missing row can explain convicts no system."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.operation import F, Type, ops_row
from harness.trial import Trial

S = 1_000_000_000
READ = (F.READ, Type.OK, 50, {"value": 1, "offset": 0, "pos": 0})
ALONE = '{"key": 0, "from": 0}'  # a final reader's note: it read the whole queue
Rows = tuple[tuple[F, Type, int, dict[str, int]], ...]


def recorded(folder: Path, rows: Rows, note: str, **state: Any) -> History:
    """Return a history of one queue: operations with their times in s, and a note at 60 s."""
    run = RunDir(folder)
    folder.mkdir()
    run.trial_file.write_text(Trial().to_toml())
    run.write_names({"keys": ["orders-0"], "nodes": ["broker-1"], "roles": {"broker-1": "broker"}})
    run.update_state(ended=True, interrupted=False, **state)
    ops = [ops_row(t * S, 0, f, kind, f, 0, **more) for f, kind, t, more in rows]
    notes = [(2 * S, -1, -1, "drain"), (60 * S, 0, -1, f"DRAINED {note}")]
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

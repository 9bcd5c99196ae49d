"""Spark's part in the shared pass: it spreads the work and changes no number."""

from pathlib import Path

import pytest

from checkers._run.run_facts import facts
from checkers._run.timeline import KEYS
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.operation import NONE, F, Type
from harness.spark import session as engine
from harness.trial import Trial

MS = 1_000_000


def recorded(path: Path) -> RunDir:
    """Two writers, of which one rolled its journal in the middle of its operations."""
    run = RunDir(path / "run")
    run.journal.mkdir(parents=True)
    run.trial_file.write_text(Trial().to_toml())
    run.write_names({"keys": ["k-0"], "nodes": [], "roles": {}})
    run.update_state(ended=True)
    notes = TableJournal(run.journal, "notes", "runner")
    for t, text in ((0, "load"), (900, "healed"), (1000, "drain"), (1100, "ended")):
        notes.append((t * MS, None, None, text))
    notes.close()
    for writer in (1, 2):
        pad = (NONE,) * 8
        rows = [
            row
            for n in range(500)
            for row in (
                (2 * n * MS, 0, 1000 * writer + n, Type.INVOKE, F.SEND, 0, *pad),
                (2 * n * MS + 30 * MS, 0, 1000 * writer + n, 1 + n % 3, F.SEND, 0, *pad),
            )
        ]
        rows.sort()
        for half in (rows[:500], rows[500:]) if writer == 1 else (rows,):
            journal = TableJournal(run.journal, "ops", f"client-{writer}")
            for row in half:
                journal.append(row)
            journal.close()
    return run


@pytest.mark.spark
def test_spark_and_one_process_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether in one task, in several, or without Spark: the same cells."""
    run = recorded(tmp_path)
    here = facts(History.open(run), Trial(), None).timeline
    assert here.total(F.SEND, Type.OK) == 334
    assert here.worst_ms() == 30.0
    assert sum(n or 0 for n in here.quantiles_ms([1.0])) == pytest.approx(30, rel=0.05)
    with engine.session() as spark:
        for one_task_bytes in (16 << 20, 0):
            monkeypatch.setattr("checkers._spark.spark_stages.ONE_TASK_BYTES", one_task_bytes)
            there = facts(History.open(run), Trial(), spark).timeline
            for name in (*KEYS, "n", "lo", "hi"):
                assert there._columns[name].tolist() == here._columns[name].tolist(), name

"""Sealing changes the form of a history and never its content."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.seal import seal
from harness.operation import NONE


def a_run(path: Path, rows: int = 1000) -> RunDir:
    run = RunDir(path)
    journal = TableJournal(run.journal, "ops", "client-1")
    for n in range(rows):
        journal.append((n, 1, n, 1, 1, 3, n, NONE, n, NONE, NONE, 2, 0, 1))
    journal.close()
    notes = TableJournal(run.journal, "notes", "client-1")
    notes.append((1, NONE, NONE, "load"))
    notes.close()
    return run


def test_a_sealed_history_reads_as_before(tmp_path: Path) -> None:
    """The same rows in the same order, and the journal is gone while its counter stays."""
    run = a_run(tmp_path)
    before = History.open(run).read("ops")
    seal(run)
    history = History.open(run)
    assert history.read("ops").equals(before)
    assert not list(run.journal.glob("*.arrows"))
    assert {(c.rows, c.counted) for c in history.counts} == {(1000, 1000), (1, 1)}
    assert not history.damage


def test_sealing_twice_changes_nothing(tmp_path: Path) -> None:
    """And a journal left behind by a crash between the two steps only disappears."""
    run = a_run(tmp_path)
    stream = run.journal / "ops-client-1-000.arrows"
    content = stream.read_bytes()
    seal(run)
    sealed = {path.name: path.read_bytes() for path in run.history.iterdir()}
    stream.write_bytes(content)
    assert len(History.open(run).files["ops"]) == 1
    seal(run)
    assert {path.name: path.read_bytes() for path in run.history.iterdir()} == sealed
    assert not stream.exists()


def test_integers_are_delta_encoded_in_row_groups_of_128k(tmp_path: Path) -> None:
    """The form that was measured best for reading."""
    run = a_run(tmp_path, rows=150_000)
    seal(run)
    metadata = pq.read_metadata(run.history / "ops-client-1-000.parquet")
    groups = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert groups == [131_072, 150_000 - 131_072]
    column = metadata.row_group(0).column(0)
    assert "DELTA_BINARY_PACKED" in column.encodings
    assert column.compression == "ZSTD"


def test_a_damaged_journal_is_left_as_it_is(tmp_path: Path) -> None:
    """Otherwise the next check would not know that anything is missing."""
    run = a_run(tmp_path)
    stream = run.journal / "ops-client-1-000.arrows"
    stream.write_bytes(stream.read_bytes()[:-700])
    seal(run)
    seal(run)
    assert stream.exists()
    assert not (run.history / "ops-client-1-000.parquet").exists()
    (reason,) = History.open(run).damage
    assert reason.code == "JOURNAL_DAMAGED"


@pytest.mark.parametrize("sealed", [False, True])
def test_a_file_that_is_missing_is_damage(tmp_path: Path, sealed: bool) -> None:
    """Its counter tells of it where a copy of the run is not whole; one without rows is no loss."""
    run = a_run(tmp_path)
    run.update_state(ended=True)
    TableJournal(run.journal, "ops", "client-2").close()
    if sealed:
        seal(run)
    assert History.open(run).complete
    for path in [
        *run.path.glob("*/ops-client-2-*.[ap]*"),
        *run.path.glob("*/ops-client-1-*.[ap]*"),
    ]:
        path.unlink()
    history = History.open(run)
    assert not history.complete
    assert history.gaps == {"ops"}
    (reason,) = history.damage
    assert "ops-client-1-000" in reason.message
    assert "its writer counted 1000 rows" in reason.message


def test_a_gap_in_the_numbers_of_a_writers_files_is_damage(tmp_path: Path) -> None:
    """The counter may be lost as well."""
    run = a_run(tmp_path)
    for at in (2, 3, 4):
        notes = TableJournal(run.journal, "notes", "client-1")
        notes.append((at, NONE, NONE, "again"))
        notes.close()
    assert not History.open(run).damage
    for number in (1, 2):
        for path in run.journal.glob(f"notes-client-1-{number:03}.*"):
            path.unlink()
    (reason,) = History.open(run).damage
    assert "notes-client-1-001" in reason.message


def test_a_journal_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    """Sealing a live run takes nothing away from its writers."""
    run = a_run(tmp_path)
    live = TableJournal(run.journal, "ops", "client-2")
    seal(run)
    assert (run.journal / "ops-client-2-000.arrows").exists()
    live.close()
    seal(run)
    assert not (run.journal / "ops-client-2-000.arrows").exists()


def test_foreign_files_in_the_journal_are_not_touched(tmp_path: Path) -> None:
    """Only tables are sealed."""
    run = a_run(tmp_path)
    foreign = run.journal / "holiday-photos-000.arrows"
    foreign.write_bytes(b"x")
    seal(run)
    assert foreign.exists()


@pytest.mark.parametrize("sealed", [False, True])
def test_phases_and_notes_are_read_from_either_form(tmp_path: Path, sealed: bool) -> None:
    """Checks accept journals and sealed files, so a crashed run can still be judged."""
    run = a_run(tmp_path)
    if sealed:
        seal(run)
    history = History.open(run)
    assert history.phases == {"load": 1}
    assert [note.text for note in history.notes["load"]] == ["load"]
    assert history.interrupted

"""The ledger: what is still in the world."""

from pathlib import Path

from nemesis import Entry, Ledger, open_entries

CUT = Entry(0, "partition", ("broker-1",), {"shape": "isolate"})
KILL = Entry(1, "kill", ("broker-2",), {})


def test_what_was_not_closed_is_open(tmp_path: Path) -> None:
    """Newest first, since that is the order to undo it in."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for entry in (CUT, KILL):
        ledger.intend(entry)
    assert open_entries(path) == (KILL, CUT)
    ledger.close_entry(1)
    assert open_entries(path) == (CUT,)
    ledger.close_entry(0)
    ledger.close()
    assert open_entries(path) == ()


def test_a_torn_line_is_no_entry(tmp_path: Path) -> None:
    """A crash while writing leaves an intent that was not acted upon."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.intend(CUT)
    ledger.close()
    path.write_bytes(path.read_bytes() + b'{"is": "intent", "id": 1, "ki')
    assert open_entries(path) == (CUT,)


def test_no_ledger_no_entries(tmp_path: Path) -> None:
    """A run that never broke anything has nothing to heal."""
    assert open_entries(tmp_path / "none") == ()

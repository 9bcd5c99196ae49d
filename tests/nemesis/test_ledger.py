"""The ledger: what is still in the world."""

import resource
from pathlib import Path

import pytest

from nemesis import FaultLedger, LedgerEntry, ledger_damage, open_entries

CUT = LedgerEntry(0, "partition", ("broker-1",), {"shape": "isolate"})
KILL = LedgerEntry(1, "kill", ("broker-2",), {})


def test_what_was_not_closed_is_open(tmp_path: Path) -> None:
    """Newest first, since that is the order to undo it in."""
    path = tmp_path / "ledger.jsonl"
    ledger = FaultLedger(path)
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
    ledger = FaultLedger(path)
    ledger.intend(CUT)
    ledger.close()
    path.write_bytes(path.read_bytes() + b'{"is": "intent", "id": 1, "ki')
    assert open_entries(path) == (CUT,)


def test_no_ledger_no_entries(tmp_path: Path) -> None:
    """A run that never broke anything has nothing to heal."""
    assert open_entries(tmp_path / "none") == ()


def test_what_follows_a_torn_line_is_read(tmp_path: Path) -> None:
    """Whoever heals what a crash left closes it in the same file."""
    path = tmp_path / "ledger.jsonl"
    FaultLedger(path).intend(CUT)
    path.write_bytes(path.read_bytes() + b'{"is": "intent", "id": 1, "ki')
    FaultLedger(path).close_entry(0)
    assert open_entries(path) == ()
    assert not ledger_damage(path)


def test_a_line_that_the_disk_takes_in_part_is_no_intent(tmp_path: Path) -> None:
    """As on a full disk: the caller gets an error, nothing is left of the line, and what is
    written later can be read."""
    path = tmp_path / "ledger.jsonl"
    ledger = FaultLedger(path)
    ledger.intend(CUT)
    before = path.read_bytes()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, unlimited[1]))
    try:
        with pytest.raises(OSError, match="ledger"):
            ledger.intend(KILL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert path.read_bytes() == before
    ledger.intend(KILL)
    assert open_entries(path) == (KILL, CUT)
    assert not ledger_damage(path)


@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe\0", b"[1, 2]", b'"x"', b"hello = = 1", b"", b"[" * 100_000, b'{"id": 1}', b"\0"],
)
def test_an_unknown_line_is_damage(tmp_path: Path, line: bytes) -> None:
    """What can be read still counts."""
    path = tmp_path / "ledger.jsonl"
    FaultLedger(path).intend(CUT)
    path.write_bytes(path.read_bytes() + line + b"\n")
    assert open_entries(path) == (CUT,)
    assert ledger_damage(path) == f"{path} line 2 is neither an intent nor a closing"

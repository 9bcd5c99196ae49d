"""The runner's journals: what is told to those who watch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.run.trial_run import JournalRecorder


def test_an_alarm_is_told_logged_and_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To who watches, in the log, and in the history."""
    told: list[Mapping[str, Any]] = []
    record = JournalRecorder(tmp_path, lambda: 0, told.append)
    record.alarm("NOT HEALED: fault 3")
    record.close()
    assert told == [{"alarm": "NOT HEALED: fault 3"}]
    assert capsys.readouterr().err == "NOT HEALED: fault 3\n"
    assert any(b"NOT HEALED" in path.read_bytes() for path in tmp_path.iterdir())

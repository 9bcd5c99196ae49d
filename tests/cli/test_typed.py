"""What a user is told to type can be typed."""

import sys
from pathlib import Path

import pytest

from harness.cli import prog_name as typed


@pytest.mark.parametrize(
    ("called", "on_path", "told"),
    [
        (".venv/bin/seatrial", False, ".venv/bin/seatrial"),
        (".venv/bin/seatrial", True, "seatrial"),
        ("pytest", False, "seatrial"),
    ],
)
def test_the_command_is_told_as_it_can_be_found(
    called: str, on_path: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plain name only where the PATH has it, else the script that was called, from here."""
    script = tmp_path / "seatrial"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path) if on_path else str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / called)])
    assert typed.seatrial() == told

"""Which code something was made with: as it was at first, and whether it is another by now."""

from functools import cache
from pathlib import Path

import pytest

from harness.text import code_hash as module
from harness.text.code_hash import code_changed, code_hash


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in the place of ours, and a file of it."""
    file = tmp_path / "nemesis" / "kill.py"
    file.parent.mkdir()
    file.write_text("FOR_S = 1\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "_state_at_start", cache(module._state_now))
    return file


def test_code_is_what_it_was_at_first(code: Path) -> None:
    """Whatever of it is asked for, and however late: rows of one suite have one hash."""
    first = code_hash()
    assert not code_changed()
    before = code.read_text()
    code.write_text("FOR_S = 2\n")
    assert code_changed()
    assert code_hash() == first
    code.write_text(before)
    assert not code_changed()


def test_a_file_that_comes_or_goes_is_a_change(code: Path) -> None:
    """Also one that goes while it is looked at, as an editor's do; what is no code is none."""
    code_hash()
    (code.parent / "notes.txt").touch()
    assert not code_changed()
    more = code.with_name("pause.py")
    more.touch()
    assert code_changed()
    more.unlink()
    assert not code_changed()
    more.symlink_to("nowhere.py")
    assert not code_changed()
    code.unlink()
    assert code_changed()

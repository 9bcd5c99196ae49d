"""Raft's core by scripts, section by section: see `tests/labs/flotilla/raft_script.py`.

Each transcript in `scripts/` records every message, write and commit. `Raft` is the extended paper,
`thesis` Ongaro's dissertation.
"""

import pytest
from raft_script import FOLDER, run

SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.txt"))
WITH_WRONG_RULES = {"figure-8-careless", "two-changes-hasty"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, rewrite: bool) -> None:
    """The transcript is as reviewed, and breaks no law, unless the script uses a wrong rule."""
    path = FOLDER / f"{name}.txt"
    transcript = run(path.read_text())
    if rewrite:
        path.write_text(transcript)
    assert transcript == path.read_text(), f"run pytest with --rewrite and review {path.name}"
    assert ("LAW BROKEN" in transcript) is (name in WITH_WRONG_RULES)


def test_all_scripts_are_here() -> None:
    assert len(SCRIPTS) >= 16

"""The tutorial is true: its files are written, its commands typed and its output compared, page by
page, each in an empty folder, with the real command.

What other tests run is not run again: `ELSEWHERE` says where.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import lessons
import pytest

PAGES = ("first-trial", "first-bug", "first-checker", "first-system")
ELSEWHERE = {
    "make demo": ".ci",
    ".venv/bin/seatrial run messages --profile unsafe-default"
    " --plan suites/plans/isolate-then-kill.toml": "tests/trials/test_profile_plans.py",
}
MINUTE, ENOUGH = "--time 1m", "--time 10m"  # what a search needs that ends by itself
LONGEST_S = 800
VERDICTS = (0, 1, 2)  # a command that makes no sense, or cannot, ends with another code


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.bed
def test_the_pages_commands_do_what_they_say(root: Path, tmp_path: Path, name: str) -> None:
    """Whoever types what stands there sees what stands there."""
    clone = tmp_path / "clone"
    clone.mkdir()
    outer = Path(sys.executable).parent
    environment = lessons.workshop(clone, outer, os.environ)
    for step in lessons.steps((root / "docs" / "tutorial" / f"{name}.md").read_text()):
        if step.file:
            path = clone / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
        said = "".join(_said(command, clone, environment) for command in step.commands)
        for expected in step.says:
            lacking = lessons.missing(expected, said)
            assert not lacking, f"{step.commands} does not say {lacking!r} where it should:\n{said}"


def _said(command: str, clone: Path, environment: Mapping[str, str]) -> str:
    if command in ELSEWHERE:
        return ""
    ran = subprocess.run(
        ["sh", "-c", command.replace(MINUTE, ENOUGH)],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert ran.returncode in VERDICTS, f"{command}\n{ran.stdout}"
    return ran.stdout


def test_what_is_run_elsewhere_is(root: Path) -> None:
    """Nothing is left out that no page has, or for which nobody else is there."""
    told = {
        command
        for name in PAGES
        for step in lessons.steps((root / "docs" / "tutorial" / f"{name}.md").read_text())
        for command in step.commands
    }
    assert set(ELSEWHERE) <= told
    assert all((root / where).exists() for where in ELSEWHERE.values())


def test_every_page_of_the_tutorial_is_walked(root: Path) -> None:
    """None is added without being read here."""
    assert {path.stem for path in (root / "docs" / "tutorial").glob("*.md")} == set(PAGES)


@pytest.mark.parametrize(
    ("expected", "said", "lacking"),
    [
        ("lost 0", "lost        17  gone", ""),
        ("VALID   All 1,234 are\n   in the log", "x VALID All 9 are in\nthe log", ""),
        ("VALID", "INVALID", "VALID"),
        ("1 kill\n...\nreport runs/...-a/r.html", "1 kill\nreport runs/2026-a/r.html", ""),
        ("b\na", "a\nb", "a"),
        ("fault 0 (kill)", "fault 0 kill", "fault 0 (kill)"),
    ],
)
def test_output_is_compared(expected: str, said: str, lacking: str) -> None:
    """Any number, any white space, in this order."""
    assert lessons.missing(expected, said) == lacking

"""Text of a run is shown and never obeyed: by terminals, by Markdown; and secrets are not shown."""

import json
import shutil
from pathlib import Path

import hostile_runs
import page_lab
import pytest
from hostile_runs import LETTERS

from harness.campaign.simulation import simulate
from harness.cli.console import message, standard_output
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.runs import write_run
from harness.judge.judge import judge_small
from harness.text.sanitize import UNPRINTABLE, mask_secrets
from harness.trial import Trial
from reports import page, summary
from reports._run import read_run

CODE = (
    "x**\n\n# Approved\n\n![p](https://evil.example/p.png) [click](https://evil.example) "
    "<img src=x onerror=1> www.evil.example @everybody `\n\n**y"
)
SECRETS = ("hunter2hunter2", "abc.def-ghi", "s3cret pass")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "run"
    simulate(page_lab.SOUND, page_lab.PLAN, folder)
    return folder


def test_markdown_of_codes_and_reasons(base: Path, tmp_path: Path) -> None:
    """A run.json brings reasons, and `check` takes them into the verdict: they stay text."""
    run = RunDir(tmp_path / "run")
    shutil.copytree(base, run.path)
    run.update_state(reasons=[{"code": CODE, "message": CODE}])
    judge_small(History.open(run))
    path = summary.render(run)
    assert path is not None
    text = path.read_text()
    assert "Approved" in text
    assert not [line for line in text.splitlines() if line.startswith("# ")]
    for markup in ("![p](", "[click](", "<img", "https://", "www.evil", " @everybody", "**x**"):
        assert markup not in text.replace("\\" + markup, ""), markup


def test_letters_that_terminals_and_readers_obey(base: Path, tmp_path: Path) -> None:
    """None of them in the page, on a console, or in a message."""
    run = RunDir(hostile_runs.made(base, tmp_path / "run", tmp_path, "letters", keep=("run.json",)))
    assert not UNPRINTABLE.search(page.page_html(read_run(run)))
    assert not UNPRINTABLE.search(message(f"a sentence about {LETTERS}"))


def test_tables_on_a_console(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever prints: names in cells and in plain lines."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column(Text(LETTERS))
    table.add_row(Text(LETTERS))
    console = standard_output()
    console.print(table)
    console.print(LETTERS, markup=False)
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert not UNPRINTABLE.search(shown)


def test_secrets_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of Spark's addresses, passwords, and values of variables that are secret by name."""
    monkeypatch.setenv("MY_API_TOKEN", SECRETS[0])
    monkeypatch.setenv("DB_PASSWORD", SECRETS[2])
    monkeypatch.setenv("MODE_TOKEN", "short")
    words = [
        *("check", "--spark", f"sc://host:15002/;use_ssl=true;token={SECRETS[1]};user_id=me"),
        *(f"https://me:{SECRETS[1]}@host/", "--load", f"password={SECRETS[1]},rate=3"),
        *(SECRETS[0], f"x {SECRETS[2]}"),
    ]
    monkeypatch.setattr("sys.argv", ["seatrial", *words])
    run = write_run(Trial(), "", _folder(tmp_path))
    run.update_state(error=f"no answer from sc://h/;token={SECRETS[1]}")
    text = (run.path / "run.json").read_text()
    assert not [secret for secret in SECRETS if secret in text + message(" ".join(words))]
    state = json.loads(text)
    assert state["command"][2] == "sc://host:15002/;use_ssl=true;token=***;user_id=me"
    assert state["command"][5] == "password=***,rate=3"
    assert (
        mask_secrets("a short sentence with keys=3, --keys 4")
        == "a short sentence with keys=3, --keys 4"
    )


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"

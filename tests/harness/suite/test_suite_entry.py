"""A suite file that makes no sense is refused in a sentence: file, line, entry, key and reason."""

from pathlib import Path

import pytest

from harness.cli.options import Request
from harness.errors import BadRequest
from harness.shrink.scaling import Scale, scale_request
from harness.suite.command import SuiteRequest, run_suite
from harness.suite.suite_file import read_suite
from harness.trial import Trial

VALID = '[[trial]]\nexpect = "valid"\n'
LOST = '[[trial]]\nexpect = "invalid"\n'


def _suite(folder: Path, text: str) -> Path:
    path = folder / "suite.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must have"),
        ("x = 1\n", "must have"),
        ("trial = 3\n", "must have"),
        ("trial = [1]\n", "suite.toml line 1: trial 1 must be a table, .* not 1"),
        ("[[trial]\n", "line 1"),
        ('[[trial]]\nrun = "messages"\n', "line 1: trial 1: expect must be"),
        ('[[trial]]\nexpect = "green"\n', "trial 1: expect must be"),
        ('[[trial]]\nexpect = ["valid"]\n', "trial 1: expect must be"),
        (VALID + VALID + 'sedes = "1"\n', "line 3: trial 2: unknown key 'sedes'; known: at_least"),
        (VALID + 'seeds = "x"\n', "trial 1: seeds"),
        (VALID + 'seeds = "1"\nwith = { seed = 7 }\n', "trial 1: seeds and the trial's own seed"),
        (VALID + "with = 3\n", "trial 1: with must be a table of the trial's fields, not 3"),
        (VALID + "with = [1]\n", "trial 1: with must be a table"),
        (VALID + 'with = { sytem = "x" }\n', "trial 1: with: unknown key 'sytem'"),
        (VALID + 'with = { plan = "no.toml" }\n', "trial 1: the plan file no.toml does not exist"),
        (VALID + 'run = ["messages"]\n', r"trial 1: run must be .*, not \['messages'\]"),
        (VALID + "name = 3\n", "trial 1: name must be a string, not 3"),
        (VALID + "matrix = false\n", "trial 1: matrix must be tables that read like"),
        (VALID + "matrix = []\n", "trial 1: matrix must be tables that read like"),
        (LOST + 'findings = "LOST_ACKED"\n', "findings must be a list of codes such as LOST_ACK"),
        (LOST + "findings = [3]\n", r"findings must be a list of codes .*, not \[3\]"),
        (VALID + 'findings = ["LOST_ACKED"]\n', 'expect must be "invalid", not "valid"'),
        (
            VALID + 'name = "a"\n' + LOST + 'name = "a"\n',
            r"line 4: trial 2: 'a' is the name of .* line 1: trial 1, too; choose another",
        ),
        (
            VALID + "at_most = { losses = 0 }\n",
            r"trial 1: at_most: unknown figure 'losses' \(did you mean lost\?\)",
        ),
        (VALID + 'at_least = { lost = "0" }\n', "at_least.lost must be a number, not '0'"),
        (VALID + "at_most = { lost = true }\n", "at_most.lost must be a number, not True"),
        (VALID + "at_most = 3\n", "at_most must be a table that reads like { lost = 0 }, not 3"),
        (
            LOST + 'findings = ["LOST_ACKD"]\n',
            "findings: unknown finding 'LOST_ACKD' .did you",
        ),
        (
            VALID + "at_most = { lost = 1 }\nat_least = { lost = 2 }\n",
            "trial 1: no lost is at_most 1 and at_least 2; correct one of them",
        ),
        (VALID + 'with = { plan = "" }\n', "trial 1: plan: no plan file given"),
        ("[scale]\nby = inf\n" + VALID, "scale: by must be a positive number"),
        (
            '[scale]\nby = 0.5\nsetting = "x"\n' + VALID + 'with = { settings = { x = "y" } }\n',
            "trial 1: settings.x is to be scaled, so it must be a number, not 'y'",
        ),
    ],
)
def test_a_broken_suite_file_says_where(tmp_path: Path, text: str, says: str) -> None:
    """Whatever stands where something else belongs."""
    with pytest.raises(BadRequest, match=says):
        read_suite(_suite(tmp_path, text))


def test_a_cell_of_a_matrix_is_named(tmp_path: Path) -> None:
    """The entry alone would not say which of its runs."""
    text = VALID + 'name = "n"\n[trial.matrix.size]\none = {}\ntwo = { seed = "x" }\n'
    with pytest.raises(BadRequest, match="trial 1, n/two: with: seed must be a whole number"):
        read_suite(_suite(tmp_path, text))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Not shown as a traceback."""
    path = tmp_path / "suite.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadRequest, match="is not text in UTF-8"):
        read_suite(path)


def test_a_run_that_can_not_be_is_named_before_anything_is_run(tmp_path: Path) -> None:
    """A name that nobody registered; the first run is not made."""
    text = '[[trial]]\nrun = "messages"\nexpect = "valid"\n'
    suite = _suite(tmp_path, text + text.replace("messages", "massages"))
    runs = tmp_path / "runs"
    with pytest.raises(
        BadRequest, match=r"suite\.toml line 4: trial 2: unknown workload or trial 'massages'"
    ):
        run_suite(SuiteRequest(suite), runs)
    assert not runs.exists()


def test_names_may_be_equal_where_seeds_differ(tmp_path: Path) -> None:
    """They are the same trial again; and what nobody named is numbered."""
    named = VALID + 'name = "a"\nseeds = "1..2"\n' + LOST + 'name = "a"\nseeds = "3"\n'
    cells = read_suite(_suite(tmp_path, named + VALID + VALID))
    assert [cell.title for cell in cells] == ["a", "a", "a", "messages", "messages #2"]


def test_no_two_runs_have_one_name(tmp_path: Path) -> None:
    """Not even where somebody gives the name that a number would have made."""
    cells = read_suite(_suite(tmp_path, VALID + VALID + 'name = "messages"\n' + VALID))
    cells += read_suite(_suite(tmp_path, VALID * 2 + VALID + 'name = "messages #2"\n'))
    assert [cell.title for cell in cells] == [
        *("messages", "messages #2", "messages #3"),
        *("messages", "messages #3", "messages #2"),
    ]


def test_a_setting_that_is_a_number_is_scaled() -> None:
    """Also one that is written without a point."""
    asked = scale_request(Request(Trial(settings={"x": 2})), Scale(0.5, "x"))
    assert asked.trial.settings == {"x": 1.0}


def test_a_record_that_can_not_be_written_is_told_before_anything_is_run(tmp_path: Path) -> None:
    """A run costs minutes, and its figures would be lost."""
    text = '[[trial]]\nrun = "messages"\nwith = { hosts = "simulated" }\nexpect = "valid"\n'
    asked = SuiteRequest(_suite(tmp_path, text), record=tmp_path / "missing" / "it.tsv")
    with pytest.raises(BadRequest, match=r"no record can be written to .*missing/it.tsv"):
        run_suite(asked, tmp_path / "runs")
    assert not list((tmp_path / "runs").iterdir())

"""A suite file's cells: who they are, what they are called, and at which pace they go."""

from pathlib import Path

import pytest

from harness.errors import BadRequest
from harness.suite.suite_file import HostsOverride, read_suite, select_runs

MATRIX = """
[scale]
by = 0.5
setting = "timeScale"

[[trial]]
run = "messages"
name = "safe"
with = { duration_s = 20.0, settings = { timeScale = 1.0 } }
expect = "valid"
[trial.matrix.profile]
one = { profile = "allack-min1" }
two = { profile = "allack-min2" }
[trial.matrix.controllers]
dledger = {}
jraft = { settings = { controllerType = "jraft" } }

[[trial]]
run = "messages"
with = { profile = "unsafe-default" }
seeds = "1..2"
expect = "invalid"

[[trial]]
run = "messages"
with = { profile = "unsafe-default" }
expect = "invalid"
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.toml"
    path.write_text(MATRIX)
    return path


def test_every_cell_of_a_matrix_is_a_run(suite: Path) -> None:
    """Its name is made of its rows, its trial of their fields; tables merge by key."""
    cells = read_suite(suite)
    assert [cell.title for cell in cells] == [
        *("safe/one/dledger", "safe/one/jraft", "safe/two/dledger", "safe/two/jraft"),
        *("messages unsafe-default", "messages unsafe-default", "messages unsafe-default #2"),
    ]
    last = cells[3].request.trial
    assert (last.name, last.profile) == ("two-jraft", "allack-min2")
    assert last.settings == {"timeScale": 0.5, "controllerType": "jraft"}
    assert last.duration_s == 10.0
    assert len({(cell.key) for cell in cells}) == 7


def test_a_suite_goes_to_other_hosts(suite: Path) -> None:
    """Every run, with the options of those hosts in place of its own, and with that in its name."""
    cells = read_suite(suite, place=HostsOverride("docker", {"network": "x"}))
    assert {cell.request.trial.hosts for cell in cells} == {"docker"}
    assert cells[0].request.trial.bed == {"network": "x"}
    assert cells[0].title == "safe/one/dledger on docker"


def test_another_pace_is_another_run(suite: Path) -> None:
    """It is said in the name, so that numbers of both are kept apart."""
    own, true = read_suite(suite)[0], read_suite(suite, 1.0)[0]
    assert true.title == "safe/one/dledger at 1"
    assert true.request.trial.duration_s == 20.0
    assert own.key != true.key
    few = read_suite(suite, 1.0, 0.1)[0]
    assert few.title == "safe/one/dledger at 1 for 0.1"
    assert few.key != true.key


def test_some_of_a_suite_are_chosen_by_their_names(suite: Path) -> None:
    """Any word that stands in it; one that stands in none is refused, and all are named."""
    cells = read_suite(suite)
    assert [cell.title for cell in select_runs(cells, ["two/jraft", "one"])] == [
        *("safe/one/dledger", "safe/one/jraft", "safe/two/jraft"),
    ]
    assert select_runs(cells, []) == cells
    with pytest.raises(BadRequest, match=r"'three'; there are: .*safe/one/dledger"):
        select_runs(cells, ["one", "three"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[trial.matrix]\nx = 1\n", r"matrix must read like \[trial.matrix.AXIS\]"),
        ("[trial.matrix.x]\n", "matrix must read like"),
        ("[trial.matrix.x]\na = 1\n", "matrix.x.a must be a table of fields"),
        ("matrix = 3\n", r"matrix must be tables that read like \[trial.matrix.AXIS\]"),
        ("[scale]\nbye = 1\n", "scale: unknown key 'bye'; known: by, setting, share"),
        ("[scale]\nby = 0\n", "scale: by must be a positive number"),
        ("[scale]\nby = true\n", "scale: by must be a positive number"),
        ("[scale]\nsetting = 1\n", "scale: setting must be"),
        ("[scale]\nshare = 2\n", "share must be at most 1"),
    ],
)
def test_a_broken_matrix_or_scale_says_where(tmp_path: Path, text: str, says: str) -> None:
    """The entry and the key are named, before anything is started."""
    path = tmp_path / "suite.toml"
    path.write_text(f'[[trial]]\nexpect = "valid"\n{text}')
    with pytest.raises(BadRequest, match=says):
        read_suite(path)

"""What a suite leaves out is told: runs on hosts that are not here, and runs nobody asked for."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from suite_rows import row

from harness.cli.options import Request
from harness.errors import BedFailed
from harness.judge.verdict import Judgement
from harness.suite.command import unavailable
from harness.suite.execution import SuiteRun, SuiteState, repeated_runs
from harness.suite.expected import ExpectedRun
from harness.suite.store import UNDECIDED
from harness.suite.suite_file import select_runs
from harness.suite.view import conclusion, details, junit, plain
from harness.trial import Trial

NO_DOCKER = "no docker hosts here: no engine answers"


def _turns(*hosts: str) -> tuple[SuiteRun, ...]:
    trials = [Trial(name=f"on-{kind}", hosts=kind) for kind in hosts]
    return repeated_runs([ExpectedRun(Request(trial), Judgement.VALID) for trial in trials], 1)


def _state(asked: Sequence[SuiteRun], **fields: object) -> SuiteState:
    """A suite of which the first run is done."""
    rows = {asked[0].key: row(asked[0].cell.title)}
    return SuiteState(Path("night.toml"), tuple(asked), rows, **fields)  # type: ignore[arg-type]


def test_runs_on_hosts_that_are_not_here_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Docker engine can be found: the simulated run is made; alone, the other is refused."""
    monkeypatch.setenv("DOCKER_HOST", "bogus")
    asked = _turns("simulated", "docker")
    left_out = unavailable(asked, tmp_path)
    assert list(left_out) == [asked[1].key]
    assert left_out[asked[1].key].startswith("no docker hosts here: ")
    with pytest.raises(BedFailed, match="DOCKER_HOST=bogus"):
        unavailable(asked[1:], tmp_path)
    assert list(unavailable(asked[1:], tmp_path, has_results=True)) == [asked[1].key]
    assert unavailable([], tmp_path) == {}


def test_what_is_left_out_is_a_row_and_a_sentence() -> None:
    """The suite has come to its end, and proves less than it was to. The reason is told once."""
    asked = _turns("simulated", "docker")
    state = _state(asked, absent={asked[1].key: NO_DOCKER})
    assert state.complete
    assert state.exit_code == UNDECIDED
    assert [one.came for one in state.table] == ["valid", "no docker hosts here"]
    assert conclusion(state) == (
        "1 of 2 runs of night.toml ended as expected; "
        "1 were skipped, because their hosts are not available here"
    )
    assert f"skipped: 1 run, because there are {NO_DOCKER}" in details(state, ())
    assert plain(state, ())["left_out"] == ["on-docker"]
    assert 'skipped="1"' in junit(state)


def test_what_was_left_out_is_not_what_the_suite_was_too_early_for() -> None:
    """Both are counted."""
    asked = _turns("simulated", "docker", "local")
    state = _state(asked, absent={asked[1].key: NO_DOCKER}, early="the budget is spent")
    assert not state.complete
    assert "; 1 were not run: the budget is spent; 1 were skipped" in conclusion(state)


def test_runs_that_nobody_asked_for_are_counted_by_their_hosts() -> None:
    """A green part of a suite does not look like all of it."""
    cells = tuple(turn.cell for turn in _turns("simulated", "docker", "local", "ssh"))
    picked = select_runs(cells, ["simulated", "ssh"])
    state = _state(repeated_runs(picked, 1), excluded=tuple(c for c in cells if c not in picked))
    told = "--only skipped 2 runs of the suite (1 on docker, 1 on local)"
    assert conclusion(state).endswith(told)
    assert plain(state, ())["not_asked_for"] == ["on-docker", "on-local"]

"""What we ship to run: every trial of every suite makes sense before the night."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from harness.cli.options import request
from harness.run.launch import make_plan
from harness.suite.expected import ExpectedRun
from harness.suite.suite_file import read_suite
from harness.trial import Trial
from nemesis import load

SUITES = Path(__file__).resolve().parents[2] / "suites"
PUBLISHED = SUITES / "rocketmq-2024.toml"
DETECTIONS = 3  # times that a silent broker may go unnoticed: the least that a fault must last


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_trial_of_a_suite_has_a_plan(
    path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan fits the system's detection time, the load's duration and what its hosts can."""
    monkeypatch.chdir(root)
    cells = read_suite(path)
    plans = [make_plan(cell.request.trial, cell.request.plan_text) for cell in cells]
    for cell, plan in zip(cells, plans, strict=True):
        drawn = set(cell.request.trial.faults) - {"noop"}  # which alone draws nothing
        wants_none = not cell.request.trial.plan and not drawn
        assert ("kind = " in plan) != wants_none, cell.title
    assert len({(cell.title, cell.request.trial.seed) for cell in cells}) == len(cells)


TRIALS = SUITES / "trials"


@pytest.mark.parametrize("path", sorted(TRIALS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_trial_file_is_run_at_night(path: Path, root: Path) -> None:
    """A trial that is never run will not stay correct."""
    assert Trial.from_toml(path.read_text(), str(path))
    assert path.name in (root / "suites/nightly.toml").read_text()


def test_the_demo_breaks_things_in_every_way_within_a_minute(root: Path) -> None:
    """`make demo` shows one fault of each kind."""
    trial = request(str(root / "suites/trials/demo.toml"), {}).trial
    plan = make_plan(trial)
    assert trial.duration_s == 60
    for kind in ("kill", "pause", "partition", "loss"):
        assert f'kind = "{kind}"' in plan


# ------------------------------------------------------------------------------ the published trial


def injections(cell: ExpectedRun) -> int:
    return len(load(cell.request.plan_text or "").faults)


def test_the_published_trial_has_48_cells(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve scenarios, two configurations, two kinds of controllers; at least 15 injections each,
    each of which lasts long enough to be noticed."""
    monkeypatch.chdir(root)
    cells = read_suite(PUBLISHED)
    axes = [Counter(words) for words in zip(*(c.title.split("/") for c in cells), strict=True)]
    assert [(len(axis), set(axis.values())) for axis in axes] == [(12, {4}), (2, {24}), (2, {24})]
    assert min(map(injections, cells)) >= 15
    for cell in cells:
        trial = cell.request.trial
        assert trial.settings["timeScale"] == 0.1
        assert trial.compare_replicas
        detection_s = 15.0 * trial.settings["timeScale"]
        for fault in load(cell.request.plan_text or "").faults:
            assert fault.for_s >= DETECTIONS * detection_s


def test_at_the_authors_pace_it_has_the_authors_injections(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute of fault and a minute of recovery for an hour; five times makes their 7,200."""
    monkeypatch.chdir(root)
    cells = read_suite(PUBLISHED, 1.0)
    assert sum(map(injections, cells)) * 5 == 7_200
    for cell in cells:
        assert cell.request.trial.settings["timeScale"] == 1.0
        faults = load(cell.request.plan_text or "").faults
        assert {fault.for_s for fault in faults} == {60.0}
        begins = sorted(fault.at_s for fault in faults)
        gaps = {later - begin - 60.0 for begin, later in pairwise(begins)}
        assert gaps == {60.0}

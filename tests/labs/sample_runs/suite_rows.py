"""Rows and states of suites that were not run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cli.options import Request
from harness.judge.verdict import Judgement
from harness.suite.execution import SuiteRun, SuiteState, repeated_runs
from harness.suite.expected import ExpectedRun
from harness.suite.store import AS_EXPECTED, SuiteRow
from harness.trial import Trial

VALID = SuiteRow("calm", 1, 1, "valid", AS_EXPECTED, "valid", took_s=30.0, around_s=3.0)


def turn(name: str = "calm", seed: int = 1, number: int = 1) -> SuiteRun:
    """A run that is asked for."""
    asked = Request(Trial(name=name, seed=seed))
    return SuiteRun(ExpectedRun(asked, Judgement.VALID, (), name), number)


def row(name: str = "calm", **fields: Any) -> SuiteRow:
    """What a run came to: as was expected, unless told otherwise."""
    return replace(VALID, name=name, **fields)


def suite_state(*rows: SuiteRow, **fields: Any) -> SuiteState:
    """A suite with these rows, in their order."""
    asked = repeated_runs([turn(one.name, one.seed).cell for one in rows], 1)
    done = {each.key: one for each, one in zip(asked, rows, strict=True)}
    return SuiteState(Path("suites/night.toml"), asked, done, **fields)

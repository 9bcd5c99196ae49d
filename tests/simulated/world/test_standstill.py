"""A world in which cluster or clients hang has failed: slowness is no explanation in
virtual time.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusters.systems.flotilla.client import FlotillaClient
from harness.campaign.simulation import (
    STOPPED,
    SeedOutcome,
    judge_simulated,
    simulate,
    standstill_codes,
)
from harness.history.reader import History
from harness.judge.verdict import Judgement, Verdict
from harness.shrink.simulated import failing_case
from harness.trial import Trial

TRIAL = Trial(
    hosts="simulated",
    nodes={"controller": 1, "broker": 2, "client": 1, "nameserver": 1},
    duration_s=3.0,
    short_faults=True,
    faults=("pause",),
    recover_within_s=5.0,
    settings={"timeScale": 0.8},
    load={"rate": 20.0, "queues": 1, "producers": 1, "consumers": 1, "concurrency": 2},
)
PLAN = 'fault = [{ kind = "pause", at_s = 1.0, for_s = 0.2, target = "one slave" }]'


def hanging(folder: Path, what: str, from_s: float, monkeypatch: pytest.MonkeyPatch) -> SeedOutcome:
    """The trial with clients whose calls do not return from some time on."""
    real = getattr(FlotillaClient, what)

    def call(self: FlotillaClient, *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        began_s = self.__dict__.setdefault("began_s", loop.time())
        return loop.create_future() if loop.time() > began_s + from_s else real(self, *args)

    monkeypatch.setattr(FlotillaClient, what, call)
    return simulate(TRIAL, PLAN, folder)


def test_producers_that_hang_fail_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No send has returned since the fault, so none is started any more."""
    made = hanging(tmp_path / "run", "send", 1.05, monkeypatch)
    assert made.failure == ("NOT_RECOVERED",)


def test_consumers_that_hang_fail_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster serves, and the final phase never comes; the run can be shrunk. If the contract
    does not demand that it goes on, or if the run was interrupted, it proves nothing."""
    made = hanging(tmp_path / "run", "poll", 2.0, monkeypatch)
    assert made.failure == ("NO_FINAL_READ",)
    assert made.why.startswith("all faults were healed, and it stood still: ")
    assert failing_case(made.run).trial.name == TRIAL.name
    history, verdict = History.open(made.run), made.verdict
    assert isinstance(verdict, Verdict)
    assert verdict.verdict is Judgement.UNKNOWN
    ended = replace(history, state={**history.state, "interrupted": True})
    assert standstill_codes(ended, verdict) == ()
    made.run.trial_file.write_text(replace(TRIAL, contract=("no-loss",)).to_toml())
    assert standstill_codes(History.open(made.run), verdict) == ()


def test_an_operation_is_counted_once(tmp_path: Path) -> None:
    """However many rows it has: its invocation, its end, and each message that it read."""
    made = simulate(replace(TRIAL, duration_s=0.5), "", tmp_path / "run")
    rows = History.open(made.run).read("ops").select(["op", "type"]).to_pylist()
    assert made.operations == len({row["op"] for row in rows}) < len(rows)


def test_a_world_in_which_nothing_is_left_to_happen_has_stopped(tmp_path: Path) -> None:
    """Its folder says neither that it ended nor why not."""
    made = simulate(replace(TRIAL, duration_s=0.5), "", tmp_path / "run")
    assert not made.failure
    made.run.update_state(ended=False)
    assert judge_simulated(made.run).failure == (STOPPED,)

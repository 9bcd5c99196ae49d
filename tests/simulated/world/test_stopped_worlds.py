"""Observations of a world count, however the world ended."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from clusters.hosts._world.world import Livelock
from harness.campaign.simulation import STOPPED, judge_simulated
from harness.errors import BedFailed
from harness.history.reader import History
from harness.history.runs import write_run
from harness.run.parent_pipe import no_parent
from harness.run.runner import run_in_hosts
from harness.run.trial_run import TrialRun
from harness.trial import Trial

NODES = {"controller": 1, "broker": 2, "nameserver": 1, "client": 1}
TRIAL = Trial(hosts="simulated", system="flotilla", workload="messages", nodes=NODES)


async def raises(trial_run: TrialRun) -> None:
    raise RuntimeError("a fault of ours")


async def spins(trial_run: TrialRun) -> None:
    hosts: Any = trial_run.hosts
    hosts._world.fail(Livelock("the world spins"))
    await asyncio.get_running_loop().create_future()


async def is_late(trial_run: TrialRun) -> None:
    async with trial_run.deadlines.required("waiting forever", within_s=1.0):
        await asyncio.get_running_loop().create_future()


async def stands_still(trial_run: TrialRun) -> None:
    raise BedFailed("the bed failed")


@pytest.mark.parametrize("ends", [raises, spins, is_late, stands_still])
def test_what_was_broken_until_then_stays_broken(
    tmp_path: Path, ends: Callable[[TrialRun], Awaitable[None]]
) -> None:
    """By an exception, by a guard of the world, by a deadline, by its hosts."""

    async def story(trial_run: TrialRun) -> None:
        async with trial_run.nodes_started() as bed:
            await trial_run.start_cluster(bed)
            hosts: Any = trial_run.hosts
            nonsense = {"peer": "10.0.0.1:1", "why": "half a frame"}
            hosts._laws.read_event(trial_run.now_ns(), "broker-1", "senseless", nonsense)
            await ends(trial_run)

    run = write_run(TRIAL, "", tmp_path)
    run_in_hosts(run, story, no_parent)
    told = History.open(run).events
    [watched] = [event for event in told if event.kind == "laws-watched"]
    assert watched.fields["looked"]["ONE_LEADER"] >= 1
    assert judge_simulated(run).failure == (STOPPED, "UNACCEPTABLE")


def test_nothing_was_broken(tmp_path: Path) -> None:
    """Then the world's end is the only result."""

    async def story(trial_run: TrialRun) -> None:
        async with trial_run.nodes_started() as bed:
            await trial_run.start_cluster(bed)
            await raises(trial_run)

    run = write_run(TRIAL, "", tmp_path)
    run_in_hosts(run, story, no_parent)
    assert judge_simulated(run).failure == (STOPPED,)

"""Observations of a world count, however the world ended."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from clusters.hosts._world.world import Livelock
from harness.campaign.simulation import STOPPED, judge_simulated
from harness.errors import BedFailed
from harness.history.faults_and_events import events
from harness.history.reader import History
from harness.history.runs import begun
from harness.run.parent_pipe import alone
from harness.run.runner import carry_out
from harness.run.trial_run import Voyage
from harness.trial import Trial

NODES = {"controller": 1, "broker": 2, "nameserver": 1, "client": 1}
TRIAL = Trial(hosts="simulated", system="flotilla", workload="messages", nodes=NODES)


async def raises(voyage: Voyage) -> None:
    raise RuntimeError("a fault of ours")


async def spins(voyage: Voyage) -> None:
    hosts: Any = voyage.hosts
    hosts._world.fail(Livelock("the world spins"))
    await asyncio.get_running_loop().create_future()


async def is_late(voyage: Voyage) -> None:
    async with voyage.must(1.0, "waiting for ever"):
        await asyncio.get_running_loop().create_future()


async def stands_still(voyage: Voyage) -> None:
    raise BedFailed("the bed failed")


@pytest.mark.parametrize("ends", [raises, spins, is_late, stands_still])
def test_what_was_broken_until_then_stays_broken(
    tmp_path: Path, ends: Callable[[Voyage], Awaitable[None]]
) -> None:
    """By an exception, by a guard of the world, by a deadline, by its hosts."""

    async def story(voyage: Voyage) -> None:
        async with voyage.raised() as bed:
            await voyage.started(bed)
            hosts: Any = voyage.hosts
            nonsense = {"peer": "10.0.0.1:1", "why": "half a frame"}
            hosts._laws.read_event(voyage.now_ns(), "broker-1", "senseless", nonsense)
            await ends(voyage)

    run = begun(TRIAL, "", tmp_path)
    carry_out(run, story, alone)
    told = events(History.open(run).read("events"))
    [watched] = [event for event in told if event.kind == "laws-watched"]
    assert watched.fields["looked"]["ONE_LEADER"] >= 1
    assert judge_simulated(run).failure == (STOPPED, "UNACCEPTABLE")


def test_nothing_was_broken(tmp_path: Path) -> None:
    """Then the world's end is the only result."""

    async def story(voyage: Voyage) -> None:
        async with voyage.raised() as bed:
            await voyage.started(bed)
            await raises(voyage)

    run = begun(TRIAL, "", tmp_path)
    carry_out(run, story, alone)
    assert judge_simulated(run).failure == (STOPPED,)

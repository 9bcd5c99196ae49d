"""Code that never gives the world its turn back ends the world, and it is said where it was."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from clusters.hosts._simulated import stuck
from clusters.hosts._simulated.network import Network
from clusters.hosts._simulated.process import Host, Process
from clusters.hosts._simulated.world import Livelock, World

HERE = Path(__file__).name
MOST_ROUNDS = 1_000_000_000


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck, "STUCK_S", 0.05)


def test_a_loop_without_an_end_is_left() -> None:
    """Though it holds on to whatever goes wrong in it."""

    async def whole(process: Process) -> int:
        await asyncio.sleep(1.5)
        for _ in range(MOST_ROUNDS):
            try:
                sum(range(100))
            except Exception:
                continue
        return 0

    world = World(1)
    Host(world, Network(world), "a", "10.0.0.1").start("p", whole)
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(Livelock, match=rf"spins: one event at 1\.5.* never ends.*{HERE}:\d+"):
        world.run()
    world.close()
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert sys.exc_info()[0] is None


def test_a_busy_world_is_let_go_on() -> None:
    """Many events, each with some work."""
    world = World(1)
    for at_ns in range(2_000):
        world.at(at_ns, sum, range(20_000))  # many times what one event may take, in all
    world.run()
    assert world.events == 2_000

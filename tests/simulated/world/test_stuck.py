"""Code that never returns ends the world, with a message that names its place."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from clusters.hosts._world import guards
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import Livelock, World

HERE = Path(__file__).name
MOST_ROUNDS = 1_000_000_000


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "STUCK_S", 0.05)


def test_a_loop_without_an_end_is_left() -> None:
    """Although it catches every exception."""

    async def whole(process: SimProcess) -> int:
        await asyncio.sleep(1.5)
        for _ in range(MOST_ROUNDS):
            try:
                sum(range(100))
            except Exception:
                continue
        return 0

    world = World(1)
    SimHost(world, SimNetwork(world), "a", "10.0.0.1").start("p", whole)
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

"""The control plane may fail as a whole: brokers with a master serve without it.

All controllers of a simulated cluster are killed, stopped, cut off or hard to reach, for several
times as long as any of their timeouts. Clients must not notice.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from simulated_fleet import BROKER_SET, Fleet, Sailor, acknowledged

SENDS, EVERY_S = 400, 0.01  # longer than it takes to declare a broker dead
LOST = 0.8
Fault = Callable[[Sailor], AbstractAsyncContextManager[None]]

FLAVOURS = pytest.mark.parametrize("flavour", ["dledger", "jraft"])


@asynccontextmanager
async def killed(sailor: Sailor) -> AsyncIterator[None]:
    names = sailor.fleet.nodes("controller")
    for name in names:
        await sailor.kill(name)
    yield
    for name in names:
        await sailor.start(name)


@asynccontextmanager
async def paused(sailor: Sailor) -> AsyncIterator[None]:
    processes = [sailor.fleet.process(name) for name in sailor.fleet.nodes("controller")]
    for process in processes:
        assert process
        sailor.world.after(0, process.pause)
    yield
    for process in processes:
        assert process
        sailor.world.after(0, process.resume)


@asynccontextmanager
async def cut_off(sailor: Sailor) -> AsyncIterator[None]:
    """From all other nodes, but not from each other."""
    network = sailor.fleet.network
    for source, sink in links(sailor):
        network.cut(source, sink)
    yield
    for source, sink in links(sailor):
        network.heal(source, sink)


@asynccontextmanager
async def restarted_and_cut_off(sailor: Sailor) -> AsyncIterator[None]:
    """They know no broker's heartbeats when the first ones arrive."""
    async with cut_off(sailor):
        async with killed(sailor):
            pass
        yield


@asynccontextmanager
async def hard_to_reach(sailor: Sailor) -> AsyncIterator[None]:
    """Four of five packets are lost, in each direction."""
    network = sailor.fleet.network
    for source, sink in links(sailor):
        network.link(source, sink).loss = LOST
    yield
    for source, sink in links(sailor):
        network.link(source, sink).loss = 0.0


def links(sailor: Sailor) -> Iterator[tuple[str, str]]:
    """Between controllers and all others, in both directions."""
    hosts = {name: aboard.node.address for name, aboard in sailor.fleet.aboard.items()}
    inner = [hosts[name] for name in sailor.fleet.nodes("controller")]
    for outer in hosts.values():
        if outer not in inner:
            for controller in inner:
                yield outer, controller
                yield controller, outer


def elections(sailor: Sailor) -> int:
    """Return the number of elections; the first one founds the set."""
    fleet = sailor.fleet
    rows = [row for name in fleet.nodes("controller") for row in fleet.events(name, "election")]
    return max(int(row["epoch"]) for row in rows)


def sail(flavour: str, seed: int, scenario: Callable[[Sailor], Awaitable[None]]) -> None:
    async def story(sailor: Sailor) -> None:
        await scenario(sailor)

    Fleet(seed, settings={"controllerType": flavour}).sail(story)


@FLAVOURS
@pytest.mark.parametrize("fault", [killed, paused, cut_off, restarted_and_cut_off])
def test_no_send_fails_without_controllers(fault: Fault, flavour: str) -> None:
    """Nor when they return: missed heartbeats are no reason to depose a master."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        async with fault(sailor):
            during = await sailor.send(SENDS, EVERY_S)
        after = await sailor.send(SENDS, EVERY_S)
        assert len(acknowledged(during)) == len(acknowledged(after)) == SENDS
        await sailor.healthy()
        assert set(await sailor.read_all()) == {*during, *after}
        assert elections(sailor) == 1

    sail(flavour, 4, scenario)


@FLAVOURS
def test_what_is_acknowledged_beside_controllers_that_are_hard_to_reach_stays(flavour: str) -> None:
    """They may hear some brokers and not others, and depose a master that they do not hear. Sends
    in progress may fail; acknowledged ones are there in the end."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        async with hard_to_reach(sailor):
            during = await sailor.send(SENDS, EVERY_S)
        await sailor.healthy()
        after = await sailor.send(50)
        assert len(acknowledged(after)) == 50
        assert acknowledged(during) | acknowledged(after) <= set(await sailor.read_all())

    sail(flavour, 4, scenario)


@FLAVOURS
@pytest.mark.parametrize("who", ["a slave", "the master", "all"])
def test_brokers_restarted_meanwhile_come_back_with_the_controllers(who: str, flavour: str) -> None:
    """They wait for the controllers, elect no master by themselves, and then serve again with
    everything that was acknowledged."""

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        master = now.masters[BROKER_SET]
        brokers = sailor.fleet.nodes("broker")
        slaves = [name for name in brokers if name != master]
        victims = {"a slave": slaves[:1], "the master": [master], "all": brokers}[who]
        before = await sailor.send(50)
        async with killed(sailor):
            for name in victims:
                await sailor.kill(name)
            await asyncio.sleep(0.5)
            for name in victims:
                await sailor.start(name)
            await asyncio.sleep(3.0)
            alone = (await sailor.cluster_state()).masters.get(BROKER_SET)
            assert alone == (master if master not in victims else None)
        await sailor.healthy()
        after = await sailor.send(50)
        assert len(acknowledged(after)) == 50
        assert acknowledged(before) | acknowledged(after) <= set(await sailor.read_all())

    sail(flavour, 3, scenario)

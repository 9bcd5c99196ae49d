"""A simulated broker set seen by a raw client: one send, one status, and links to cut.

stage = await Stage.of(sailor)         # once the set is whole
with stage.cut_off("broker-2"):        # it loses all other brokers
    assert (await stage.send()).status is Status.FLUSH_SLAVE_TIMEOUT
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from simulated_fleet import BROKER_SET, TOPIC, Sailor, eventually

from clusters.flotilla.net.connection import FrameConnection, RejectingHandler, dial
from clusters.flotilla.net.wire import Json, Op, SendReply, SendRequest

ANSWER_WITHIN_S = 30.0  # of the virtual clock


class Stage:
    """A broker set, its master, and its slaves in the order of their names."""

    def __init__(self, sailor: Sailor, master: str) -> None:
        self.sailor, self.fleet, self.master = sailor, sailor.fleet, master
        self.brokers = self.fleet.nodes("broker")
        self.slaves = [name for name in self.brokers if name != master]
        self.controllers = self.fleet.nodes("controller")
        self._links: dict[str, FrameConnection] = {}

    @classmethod
    async def of(cls, sailor: Sailor) -> "Stage":
        return cls(sailor, (await sailor.healthy()).masters[BROKER_SET])

    # asking

    async def send(
        self, to: str = "", topic: str = TOPIC, queue: int = 0, body: bytes = b"b"
    ) -> SendReply:
        """Send one message to a broker, by default the master. Return the answer."""
        link = await self._link(to or self.master)
        packed = SendRequest(topic, queue, b"k", body).pack()
        return SendReply.unpack(await link.call(Op.SEND, packed, ANSWER_WITHIN_S))

    async def wave(self, count: int) -> list[SendReply]:
        """Send this many messages to the master at once."""
        await self._link(self.master)
        return await asyncio.gather(*(self.send(body=b"wave %d" % n) for n in range(count)))

    async def _link(self, name: str) -> FrameConnection:
        if name not in self._links or not self._links[name].is_open:
            self._links[name] = await dial(self.fleet.address(name), RejectingHandler(), 1.0)
        return self._links[name]

    async def describe(self, name: str) -> Json:
        return await self.sailor.admin.describe(self.fleet.address(name))

    async def members(self) -> list[str]:
        """Return the SyncStateSet as the master knows it, by name."""
        ids = {(await self.describe(n))["controllerBrokerId"]: n for n in self._living()}
        return [ids.get(i, f"broker {i}") for i in (await self.describe(self.master))["set"]]

    async def until_members(self, *wanted: str) -> None:
        async def look() -> bool:
            return set(await self.members()) == set(wanted)

        await eventually(look)

    async def holders(self, end: int) -> list[str]:
        """Return the brokers that have the log up to there."""
        return [n for n in self._living() if (await self.describe(n))["maxOffset"] >= end]

    async def abreast(self) -> None:
        """Wait until all brokers are up and have the master's log."""

        async def look() -> bool:
            end = (await self.describe(self.master))["maxOffset"]
            return len(await self.holders(end)) == len(self.brokers)

        await self.sailor.healthy()
        await eventually(look)

    def _living(self) -> list[str]:
        return [name for name in self.brokers if self.fleet.process(name) is not None]

    # breaking

    @contextmanager
    def cut_off(self, *names: str) -> Iterator[None]:
        """Cut these off from all other brokers and from each other, silently."""
        with self.parted(names, self.brokers):
            yield

    @contextmanager
    def parted(self, ones: tuple[str, ...], others: list[str]) -> Iterator[None]:
        network, address = self.fleet.network, self.fleet.aboard
        links = {
            (address[a].node.address, address[b].node.address)
            for one in ones
            for other in others
            for a, b in ((one, other), (other, one))
            if one != other
        }
        for source, sink in sorted(links):
            network.cut(source, sink)
        try:
            yield
        finally:
            for source, sink in sorted(links):
                network.heal(source, sink)

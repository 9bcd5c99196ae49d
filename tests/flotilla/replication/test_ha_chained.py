"""Thirty trials of one failover after the other, with the logs of all replicas compared at the end.

Each is a seed: a master that is killed, cut off from the controllers in one direction or both, with
load or without any (elections that leave empty epochs), and slaves killed while they cut their log.
Whole clusters in a simulated world (apache/rocketmq#6344, #9689, #6505, #9942, #10666, #4800).
"""

import asyncio
from random import Random

import pytest
from simulated_fleet import BROKER_SET, HOME, Fleet, Sailor, acknowledged, eventually
from table_sizes import examples

from clusters.flotilla.store import record
from clusters.flotilla.store.record import RecordHeader

ROUNDS = 4
FIRST_SEGMENT = f"{HOME}/store/commitlog/{0:020d}"


class Storm:
    """Faults from a seed, one round after the other."""

    def __init__(self, sailor: Sailor, seed: int) -> None:
        self._sailor, self._fleet = sailor, sailor.fleet
        self._luck = Random(seed)
        self.acknowledged: set[bytes] = set()
        self.rounds = 0

    async def round(self) -> None:
        """Force an election, under load or in an idle cluster."""
        old = (await self._sailor.healthy()).masters[BROKER_SET]
        fault = self._luck.choice([self._killed, self._cut_off, self._deaf, self._mute])
        if self._luck.random() < 0.4:
            await fault(old)
        else:
            sending = asyncio.ensure_future(self._sailor.send(120, every_s=0.02))
            await asyncio.sleep(self._luck.uniform(0, 0.3))
            await fault(old)
            self.acknowledged |= acknowledged(await sending)
        self.rounds += 1

    async def _killed(self, old: str) -> None:
        await self._sailor.kill(old)
        await self._sailor.new_master(old)
        await self._back(old)

    async def _cut_off(self, old: str) -> None:
        await self._isolated(old, out=True, into=True)

    async def _deaf(self, old: str) -> None:
        """The controllers' messages do not reach the master; they hear it, and see no reason to
        elect."""
        await self._isolated(old, out=False, into=True)

    async def _mute(self, old: str) -> None:
        await self._isolated(old, out=True, into=False)

    async def _isolated(self, old: str, *, out: bool, into: bool) -> None:
        """The master is cut off from the controllers; its links to slaves and clients stay."""
        network, me = self._fleet.network, self._host(old)
        others = [self._host(name) for name in self._fleet.nodes("controller")]
        for other in others:
            if out:
                network.cut(me, other)
            if into:
                network.cut(other, me)
        await asyncio.sleep(self._luck.uniform(2, 4))
        for other in others:
            network.heal(me, other)
            network.heal(other, me)
        if self._luck.random() < 0.5:
            await self._killed_while_cutting(old)

    async def _killed_while_cutting(self, name: str) -> None:
        """The old master is killed while it cuts, if it gets there and has something to cut."""
        seen = len(self._fleet.events(name, "log-case"))
        for _ in range(200):
            if len(self._fleet.events(name, "log-case")) > seen:
                await self._sailor.kill(name)
                await self._sailor.start(name)
                return
            await asyncio.sleep(0.005)

    async def _back(self, name: str) -> None:
        await self._sailor.start(name)
        if self._luck.random() < 0.5:
            await self._killed_while_cutting(name)

    def _host(self, name: str) -> str:
        return self._fleet.aboard[name].node.address


def entries(fleet: Fleet, broker: str) -> tuple[bytes, list[RecordHeader]]:
    """Return the records of its log, as they are on its disk."""
    content = fleet.aboard[broker].disk.file(FIRST_SEGMENT)
    data = content.read(content.size, 0)
    found = list(record.entries(data, 0))
    return data[: found[-1].end], found


def assert_dense(found: list[RecordHeader]) -> None:
    """Every queue counts from 0 without a gap, and epochs never fall."""
    following: dict[tuple[bytes, int], int] = {}
    for e in found:
        if e.topic:
            key = (e.topic, e.queue)
            assert e.queue_offset == following.get(key, 0), (key, e)
            following[key] = e.queue_offset + 1
    epochs = [e.epoch for e in found]
    assert epochs == sorted(epochs)


@pytest.mark.parametrize("seed", range(examples(30)))
def test_after_chained_failovers_all_logs_are_one(seed: int) -> None:
    """Nothing acknowledged is lost, the logs are equal to the last byte, the epoch tables too, and
    queue offsets are dense."""
    fleet = Fleet(seed, "allack-min2")

    async def scenario(sailor: Sailor) -> None:
        storm = Storm(sailor, seed)
        await sailor.healthy()
        storm.acknowledged |= acknowledged(await sailor.send(10))
        for _ in range(ROUNDS):
            await storm.round()
        await sailor.healthy()
        assert storm.acknowledged <= set(await sailor.read_all())

        async def alike() -> list[str] | None:
            answers = [await sailor.admin.describe(fleet.address(b)) for b in fleet.nodes("broker")]
            shapes = {
                str([row["maxOffset"], row["confirmOffset"], row["epochs"]]) for row in answers
            }
            whole = all(row["maxOffset"] == row["confirmOffset"] for row in answers)
            return sorted(shapes) if whole and len(shapes) == 1 else None

        await eventually(alike)
        assert storm.rounds == ROUNDS

    fleet.sail(scenario)
    logs = [entries(fleet, broker) for broker in fleet.nodes("broker")]
    assert len({data for data, _ in logs}) == 1
    assert_dense(logs[0][1])

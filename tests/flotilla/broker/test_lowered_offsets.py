"""Groups that had read what an election took away (apache/rocketmq#4771)."""

from types import SimpleNamespace
from typing import cast

from lone_store import Life, LoneStore

from clusters.flotilla.broker.catalog import Version, commit
from clusters.flotilla.config import Config
from clusters.flotilla.events import EventLog
from clusters.flotilla.replication.replica import Replica
from clusters.flotilla.rules import RULES

PLACE = ("g", "t", 0)


def replica_of(life: Life) -> Replica:
    config = cast(Config, SimpleNamespace(store="/store", topics={"t": 1}))
    store, events = life.store, EventLog("", "a", life.ports)
    return Replica(config, life.ports, RULES, store, life.found.epochs, events)


def test_what_an_election_lowered_is_not_raised_by_a_kill() -> None:
    """The group's offset is of messages that a power cut took. When the next life has lowered it
    and the queue has grown again, it cannot be recognised as too high."""
    lone, offsets = LoneStore(), []

    async def first(life: Life) -> None:
        replica = replica_of(life)
        await replica.begin_reign(1, life.store.log.max_offset)
        life.fill(20)
        await life.store.flush()
        life.fill(80)
        replica.catalog.apply([commit(PLACE, 100)], Version(1, 1))
        assert await replica.catalog.save()

    async def later(life: Life) -> None:
        replica = replica_of(life)
        await replica.begin_reign(2 + len(offsets), life.store.log.max_offset)
        offsets.append(replica.catalog.offset(PLACE))
        life.fill(120, epoch=2)
        await life.store.flush()

    assert lone.live(first) == ""
    lone.power_cut()
    assert lone.live(later) == ""
    assert lone.live(later) == ""
    assert offsets[0] < 100
    assert offsets[1] == offsets[0]
    lone.close()

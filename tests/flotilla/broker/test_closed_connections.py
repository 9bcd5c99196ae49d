"""What a broker keeps for a connection ends with it."""

import asyncio

from lone_store import Life, LoneStore

from clusters.flotilla.broker.changes import Changes
from clusters.flotilla.broker.groups import Groups
from clusters.flotilla.broker.handler import Desk
from clusters.flotilla.broker.pulls import Pulls
from clusters.flotilla.config import loads
from clusters.flotilla.events import EventLog
from clusters.flotilla.net.connection import Connection, Silent
from clusters.flotilla.net.wire import Op, Pull
from clusters.flotilla.replication.replica import Replica
from clusters.flotilla.rules import RULES

FOR_EVER_MS = 2**32 - 1
CONFIG = loads(
    'role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "/store"\ntopics = { t = 2 }\n'
)


def replica_of(life: Life) -> Replica:
    events = EventLog("", "b", life.ports)
    return Replica(CONFIG, life.ports, RULES, life.store, life.found.epochs, events)


def test_pulls_wait_no_longer_than_their_connection() -> None:
    """Nor longer than half a minute, whatever they ask for."""

    async def story(life: Life) -> None:
        catalog = replica_of(life).catalog
        pulls = Pulls(CONFIG, life.store, catalog, lambda: True, lambda: 0)
        gone, here = Connection(Silent()), Connection(Silent())
        for connection in (gone, here):
            for queue in (0, 1):
                pulls.serve(Pull("t", queue, 0, 1, FOR_EVER_MS), connection, 1)
        pulls.serve(Pull("t", 0, 0, 1, 1_000), here, 1)
        assert len(pulls) == 5
        pulls.closed(gone)
        assert len(pulls) == 3
        await asyncio.sleep(2.0)
        assert len(pulls) == 2
        await asyncio.sleep(30.0)
        assert len(pulls) == 0

    assert LoneStore().live(story) == ""


def test_groups_are_forgotten_with_their_last_member() -> None:
    """That there is such a group, and what it reads, is metadata, and stays."""

    async def story(life: Life) -> None:
        replica = replica_of(life)
        changes = Changes(CONFIG, replica.catalog, 1, lambda: (), lambda slave: None)
        events = EventLog("", "b", life.ports)
        desk = Desk(CONFIG, life.ports, RULES, replica, events, lambda: True, lambda: changes)
        groups = Groups(desk)
        heartbeat = groups.table()[Op.GROUP_HEARTBEAT]
        first, second = Connection(Silent()), Connection(Silent())
        for number in range(3):
            for connection, client in ((first, "a"), (second, "b")):
                fields = {"group": f"g{number}", "client": client, "topics": ["t"]}
                reply = await heartbeat(connection, fields)
        assert reply["members"] == ["a", "b"]
        groups.closed(first)
        assert len(groups) == 3
        reply = await heartbeat(second, {"group": "g0", "client": "b", "topics": ["t"]})
        assert reply["members"] == ["b"]
        groups.closed(second)
        assert len(groups) == 0
        assert len(replica.catalog.groups) == 3

    assert LoneStore().live(story) == ""

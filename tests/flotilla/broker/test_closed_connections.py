"""What a broker keeps for a connection ends with it."""

import asyncio

from lone_store import Life, LoneStore

from clusters.flotilla.broker.changes import MetadataChanges
from clusters.flotilla.broker.handler import HandlerContext
from clusters.flotilla.broker.pulls import Pulls
from clusters.flotilla.broker.request_handlers import GroupHandler
from clusters.flotilla.config import loads
from clusters.flotilla.events import EventLog
from clusters.flotilla.net.connection import FrameConnection, RejectingHandler
from clusters.flotilla.net.wire import Op, PullRequest
from clusters.flotilla.replication.replica import Replica
from clusters.flotilla.rules import RULES

MAX_WAIT_MS = 2**32 - 1
CONFIG = loads(
    'role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "/store"\ntopics = { t = 2 }\n'
)


def replica_of(life: Life) -> Replica:
    events = EventLog("", "b", life.ports)
    return Replica(CONFIG, life.ports, RULES, life.store, life.found.epochs, events)


def test_pulls_wait_no_longer_than_their_connection() -> None:
    """And no longer than half a minute, however long they ask for."""

    async def story(life: Life) -> None:
        catalog = replica_of(life).catalog
        pulls = Pulls(CONFIG, life.store, catalog, lambda: True, lambda: 0)
        gone, here = FrameConnection(RejectingHandler()), FrameConnection(RejectingHandler())
        for connection in (gone, here):
            for queue in (0, 1):
                pulls.serve(PullRequest("t", queue, 0, 1, MAX_WAIT_MS), connection, 1)
        pulls.serve(PullRequest("t", 0, 0, 1, 1_000), here, 1)
        assert len(pulls) == 5
        pulls.closed(gone)
        assert len(pulls) == 3
        await asyncio.sleep(2.0)
        assert len(pulls) == 2
        await asyncio.sleep(30.0)
        assert len(pulls) == 0

    assert LoneStore().live(story) == ""


def test_groups_are_forgotten_with_their_last_member() -> None:
    """The existence of a group and its topics are metadata, which stay."""

    async def story(life: Life) -> None:
        replica = replica_of(life)
        changes = MetadataChanges(CONFIG, replica.catalog, 1, lambda: (), lambda slave: None)
        events = EventLog("", "b", life.ports)
        context = HandlerContext(
            CONFIG, life.ports, RULES, replica, events, lambda: True, lambda: changes
        )
        groups = GroupHandler(context)
        heartbeat = groups.table()[Op.GROUP_HEARTBEAT]
        first, second = FrameConnection(RejectingHandler()), FrameConnection(RejectingHandler())
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

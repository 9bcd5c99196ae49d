"""What a client of ZooKeeper may rely on, as scenarios that run against any server.

    for scenario in SCENARIOS:
        await scenario(Clients(servers, timeout_s, randomness, root))

Each scenario works below a root of its own and waits for conditions, never for time. A real
ensemble and Flotilla's coordinators must both satisfy all of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from clusters.flotilla.world.ports import RandomSource
from clusters.flotilla.zk.jute import (
    EPHEMERAL,
    SEQUENTIAL,
    CheckNode,
    CreateNode,
    DeleteNode,
    SetNode,
    WatchEvent,
    ZkCode,
    ZkError,
    ZkEvent,
)
from clusters.flotilla.zk.session import (
    ConnectionLoss,
    SessionEnded,
    SessionState,
    ZkSession,
)

WITHIN_S = 60.0
SHORT_S = 1.5  # the timeout of sessions that are to expire


class Clients:
    """Sessions of one scenario, and the node below which it works."""

    def __init__(
        self, servers: Sequence[str], timeout_s: float, randomness: RandomSource, root: str
    ) -> None:
        self.root = root
        self._servers, self._timeout_s, self._randomness = servers, timeout_s, randomness
        self._open: list[ZkSession] = []
        self.states: dict[ZkSession, list[SessionState]] = {}  # each session's, in their order

    async def session(self, timeout_s: float | None = None) -> ZkSession:
        """Return a session that is connected."""
        states: list[SessionState] = []
        session = ZkSession(
            self._servers, timeout_s or self._timeout_s, self._randomness, states.append
        )
        self.states[session] = states
        self._open.append(session)
        session.start()
        await until(lambda: session.state is SessionState.CONNECTED)
        return session

    async def begin(self) -> ZkSession:
        """Return a session, and the root exists."""
        session = await self.session()
        await session.create(self.root)
        return session

    def abandon(self) -> None:
        for session in self._open:
            session.abandon()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # noqa: ASYNC110 - any server may make it true
            await asyncio.sleep(0.01)


async def gone(session: ZkSession, path: str) -> None:
    """Wait until a node does not exist, by a watch."""
    fired: list[WatchEvent] = []
    if await session.exists(path, fired.append):
        await until(lambda: fired)
        assert fired[0].kind is ZkEvent.DELETED
        assert await session.exists(path) is None


async def refused(work: Awaitable[object]) -> int:
    """Return the code with which a request is refused."""
    try:
        await work
    except ZkError as e:
        return e.code
    return ZkCode.OK


async def a_node_is_created_read_changed_and_deleted(clients: Clients) -> None:
    """Its version counts the changes of its data."""
    z, path = await clients.begin(), f"{clients.root}/a"
    assert await z.create(path, b"one") == path
    data, stat = await z.get(path)
    assert (data, stat.version, stat.owner, stat.data_length) == (b"one", 0, 0, 3)
    assert (await z.set(path, b"two", 0)).version == 1
    assert (await z.set(path, b"three")).version == 2
    assert (await z.get(path))[0] == b"three"
    assert await z.children(clients.root) == ["a"]
    await z.delete(path, 2)
    assert await z.exists(path) is None
    assert await z.children(clients.root) == []


async def what_is_impossible_is_refused_by_a_code(clients: Clients) -> None:
    z, path = await clients.begin(), f"{clients.root}/a"
    assert await refused(z.get(path)) == ZkCode.NO_NODE
    assert await refused(z.set(path, b"")) == ZkCode.NO_NODE
    assert await refused(z.children(path)) == ZkCode.NO_NODE
    assert await refused(z.create(f"{path}/b")) == ZkCode.NO_NODE
    await z.create(path)
    assert await refused(z.create(path)) == ZkCode.NODE_EXISTS
    assert await refused(z.set(path, b"", 7)) == ZkCode.BAD_VERSION
    assert await refused(z.delete(path, 7)) == ZkCode.BAD_VERSION
    await z.create(f"{path}/e", b"", EPHEMERAL)
    assert await refused(z.create(f"{path}/e/c")) == ZkCode.NO_CHILDREN_FOR_EPHEMERALS
    assert await refused(z.delete(path)) == ZkCode.NOT_EMPTY
    assert await refused(z.create(f"{path}/")) == ZkCode.BAD_ARGUMENTS


async def of_two_that_change_one_version_one_wins(clients: Clients) -> None:
    z, other = await clients.begin(), await clients.session()
    path = await z.create(f"{clients.root}/a")
    codes = await asyncio.gather(
        *(refused(each.set(path, b"%d" % n, 0)) for n, each in enumerate([z, other]))
    )
    assert sorted(codes) == [ZkCode.BAD_VERSION, ZkCode.OK]
    await other.sync(path)
    data, stat = await other.get(path)
    assert (data, stat.version) == (b"%d" % codes.index(ZkCode.OK), 1)


async def an_ephemeral_node_ends_with_its_session(clients: Clients) -> None:
    """At once if that is closed, after its timeout if its client is gone."""
    z = await clients.begin()
    for name in ("closed", "abandoned"):
        owner = await clients.session(SHORT_S if name == "abandoned" else None)
        path = await owner.create(f"{clients.root}/{name}", b"", EPHEMERAL)
        await z.sync(path)
        stat = await z.exists(path)
        assert stat is not None
        assert stat.owner == owner.id
        if name == "closed":
            await owner.close()
            await z.sync(path)
            assert await z.exists(path) is None
        else:
            owner.abandon()
            await gone(z, path)


async def an_ephemeral_node_survives_a_lost_connection(clients: Clients) -> None:
    """Disconnected is not expired: the session goes on, with its watches fired."""
    z, owner = await clients.begin(), await clients.session()
    path = await owner.create(f"{clients.root}/e", b"", EPHEMERAL)
    events: list[WatchEvent] = []
    await z.sync(path)
    assert await z.exists(path, events.append)
    again: list[WatchEvent] = []
    await owner.get(path, again.append)
    before, states = owner.id, clients.states[owner]
    for times in range(2, 5):
        owner.disconnect()
        await until(lambda count=times: states.count(SessionState.CONNECTED) >= count)
    assert owner.id == before
    assert SessionState.EXPIRED not in states
    assert [event.kind for event in again] == [ZkEvent.NONE]
    await owner.set(path, b"here")
    await until(lambda: events)
    assert events == [WatchEvent(ZkEvent.CHANGED, path)]


async def a_session_that_is_not_heard_expires(clients: Clients) -> None:
    """Its client learns it when it connects again, and not before."""
    z, path = await clients.begin(), f"{clients.root}/e"
    states: list[SessionState] = []
    owner = await clients.session(SHORT_S)
    await owner.create(path, b"", EPHEMERAL)
    late = resumed(clients, owner, states.append)
    owner.abandon()
    await gone(z, path)
    late.start()
    await until(lambda: late.state is not SessionState.CONNECTING)
    assert states == [SessionState.EXPIRED]
    try:
        await late.get(clients.root)
        raise AssertionError("an expired session was served")
    except SessionEnded:
        pass


async def a_session_may_move_to_another_connection(clients: Clients) -> None:
    """Its former connection is not served any more."""
    z = await clients.begin()
    owner = await clients.session()
    path = await owner.create(f"{clients.root}/e", b"", EPHEMERAL)
    moved = resumed(clients, owner)
    moved.start()
    await until(lambda: moved.state is SessionState.CONNECTED)
    assert moved.id == owner.id
    await moved.set(path, b"moved")
    await z.sync(path)
    assert (await z.get(path))[0] == b"moved"
    # the former connection is closed, or refused; its client would move the session back
    with suppress(ConnectionLoss):
        assert await refused(owner.set(path, b"former", 0)) != ZkCode.OK
    owner.abandon()
    while True:
        try:
            assert (await moved.get(path))[0] == b"moved"
            break
        except ConnectionLoss:  # the former client moved the session before it was abandoned
            continue


def resumed(
    clients: Clients,
    session: ZkSession,
    on_state: Callable[[SessionState], None] = lambda state: None,
) -> ZkSession:
    """Return a client that continues a session as a second process would."""
    other = ZkSession(clients._servers, session.timeout_s, clients._randomness, on_state)
    other.id, other._password = session.id, session._password
    clients._open.append(other)
    return other


async def sequential_nodes_are_numbered(clients: Clients) -> None:
    """In the order of their creation, across sessions, and no number is given twice."""
    z, other = await clients.begin(), await clients.session()
    paths = [
        await z.create(f"{clients.root}/c-", b"", SEQUENTIAL),
        await other.create(f"{clients.root}/c-", b"", EPHEMERAL | SEQUENTIAL),
    ]
    await z.delete(paths[0])
    paths += [await z.create(f"{clients.root}/c-", b"", EPHEMERAL | SEQUENTIAL)]
    assert paths == [f"{clients.root}/c-{n:010d}" for n in range(3)]


async def a_watch_fires_once(clients: Clients) -> None:
    """And before the client can read what it announces."""
    z, other = await clients.begin(), await clients.session()
    path = await z.create(f"{clients.root}/a")
    events: list[WatchEvent] = []
    await z.get(path, events.append)
    await other.set(path, b"1")
    await other.set(path, b"2")
    await z.sync(path)
    assert (await z.get(path))[0] == b"2"
    assert events == [WatchEvent(ZkEvent.CHANGED, path)]
    await other.set(path, b"3")
    await z.sync(path)
    assert len(events) == 1


async def a_watch_sees_creation_deletion_and_children(clients: Clients) -> None:
    z, other = await clients.begin(), await clients.session()
    path, events = f"{clients.root}/a", list[WatchEvent]()
    assert await z.exists(path, events.append) is None
    await z.children(clients.root, events.append)
    await other.create(path)
    await until(lambda: len(events) == 2)
    await z.get(path, events.append)
    await z.children(path, events.append)
    await z.children(clients.root, events.append)
    await other.delete(path)
    await until(lambda: len(events) == 5)
    kinds = [(event.kind, event.path) for event in events]
    created, children = (ZkEvent.CREATED, path), (ZkEvent.CHILDREN, clients.root)
    deleted = (ZkEvent.DELETED, path)
    assert sorted(kinds[:2]) == sorted([created, children])
    assert sorted(kinds[2:]) == sorted([deleted, deleted, children])


async def a_multi_changes_all_or_nothing(clients: Clients) -> None:
    z = await clients.begin()
    a, b, c = (f"{clients.root}/{name}" for name in "abc")
    results = await z.multi(CreateNode(a, b"0"), CreateNode(b, b"0"), CheckNode(a, 0))
    assert results == [a, b, None]
    await z.multi(CheckNode(a, 0), SetNode(b, b"1", 0), CreateNode(c), DeleteNode(c))
    assert ((await z.get(b))[0], await z.exists(c)) == (b"1", None)
    events: list[WatchEvent] = []
    await z.get(a, events.append)
    await z.children(clients.root, events.append)
    before = await z.exists(clients.root)
    stale = (SetNode(a, b"2", 0), CreateNode(c), DeleteNode(b), CheckNode(a, 7))
    assert await refused(z.multi(*stale)) == ZkCode.BAD_VERSION
    await z.sync(clients.root)
    assert [(await z.get(path))[0] for path in (a, b)] == [b"0", b"1"]
    assert await z.exists(c) is None
    assert await z.exists(clients.root) == before
    assert not events
    assert await z.create(f"{clients.root}/s-", b"", SEQUENTIAL) == f"{clients.root}/s-0000000003"


async def a_sync_shows_what_was_written_before(clients: Clients) -> None:
    writer, reader = await clients.begin(), await clients.session()
    path = await writer.create(f"{clients.root}/a", b"0")
    for number in range(20):
        await writer.set(path, b"%d" % number)
        await reader.sync(path)
        assert (await reader.get(path))[0] == b"%d" % number


async def requests_of_a_session_are_served_in_their_order(clients: Clients) -> None:
    z = await clients.begin()
    path = await z.create(f"{clients.root}/a")
    sets = [z.set(path, b"%d" % n, n) for n in range(30)]
    reads = [z.get(path)]
    answers = await asyncio.gather(*sets, *reads)
    data, stat = answers[-1]  # type: ignore[misc]
    assert (data, stat.version) == (b"29", 30)  # type: ignore[has-type]


async def the_server_decides_the_timeout(clients: Clients) -> None:
    """Between two and twenty ticks."""
    short, long = await clients.session(0.3), await clients.session(3600.0)
    assert long.timeout_s == 10 * short.timeout_s
    assert short.timeout_s >= 0.3


SCENARIOS = (
    a_node_is_created_read_changed_and_deleted,
    what_is_impossible_is_refused_by_a_code,
    of_two_that_change_one_version_one_wins,
    an_ephemeral_node_ends_with_its_session,
    an_ephemeral_node_survives_a_lost_connection,
    a_session_that_is_not_heard_expires,
    a_session_may_move_to_another_connection,
    sequential_nodes_are_numbered,
    a_watch_fires_once,
    a_watch_sees_creation_deletion_and_children,
    a_multi_changes_all_or_nothing,
    a_sync_shows_what_was_written_before,
    requests_of_a_session_are_served_in_their_order,
    the_server_decides_the_timeout,
)


async def play(scenario: Callable[[Clients], Awaitable[None]], clients: Clients) -> None:
    try:
        await scenario(clients)
    finally:
        clients.abandon()

"""The route cache: which broker to ask for a queue.

A client asks one nameserver, every `pollNameServerInterval` and at once when a send finds that its
route is wrong; if that nameserver does not answer, the next one. If none answers, the last route
stays in force: clients do not need nameservers to go on. A nameserver that was cut off may have an
old route, so a broker set's route never returns to a lower stateVersion (the master's epoch). One
that has just restarted may not know a set yet, so a set that an answer does not mention stays as it
was.

A nameserver that is cut off from a master alone answers with the set and no master, or an old one.
So the client asks all other nameservers as well, without waiting for them, when an answer leaves a
set without a master or is older than a known route, and when a send found its route wrong and the
answer is the same route. If of two answers with the same stateVersion only one has a master, the
set has that master.

A client in a zone (`zoneMode`) asks for the sets near it. A set that the answer says it leaves out
has no master for this client, until an answer mentions it again. An answer with an older epoch than
a known one leaves nothing out: its nameserver may have a master in the client's zone in its table
that was replaced by one elsewhere. A nameserver of an edition before `zoneMode` ignores it and
answers with all sets.

The list of all topics is long and changes seldom. A nameserver that is given the time as of which
the client has its topics leaves them out if they are the same; the answer is then completed with
the topics that it gave before. If they do not fit into one answer, the client asks for them in
parts; if they change in between, the answer is dropped.

A topic's queues are numbered through all its broker sets, in the order of the sets' names. A set
that the first answer lacks would change the numbers, so a client can be given the topics that exist
when it starts. See docs/flotilla-design.md, Name service.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Pool, Tasks, Unreachable
from clusters.flotilla.net.wire import Json, Op, Status

from .settings import ClientSettings


@dataclass(frozen=True, slots=True)
class QueueLocation:
    """The master's address; `queue`: the number there, `number`: among all queues of the topic.
    `read_only`: a slave serves for the absent master, and takes no sends."""

    broker_name: str
    address: str
    queue: int
    number: int
    read_only: bool = False


@dataclass(frozen=True)
class RouteSnapshot:
    """A route table. `masters`: broker set -> address; `versions`: broker set -> stateVersion;
    `slaves`: broker set -> broker id -> address; `complete`: whether the last answer had a master
    of every set, and none of an older epoch; `confirmed`: the sets whose master was in it, or in an
    answer before it in the same round; `raw_topics`: the topics of the last answer, and
    `raw_sets`: the sets in it; `read_only`: the sets in which a slave serves for the master."""

    topics: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    masters: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    slaves: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    complete: bool = True
    confirmed: frozenset[str] = frozenset()
    read_only: frozenset[str] = frozenset()
    raw_topics: Json = field(default_factory=dict, repr=False, compare=False)
    raw_sets: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    def updated(self, reply: Json, confirmed: frozenset[str] = frozenset()) -> "RouteSnapshot":
        """Return this table after a nameserver's answer.

        `confirmed`: the sets whose master another nameserver has just confirmed. Raises KeyError,
        TypeError or ValueError if the answer is malformed.
        """
        brokers, versions = reply["brokers"], dict(self.versions)
        masters = {name: addr for name, addr in self.masters.items() if name not in brokers}
        slaves = {name: addrs for name, addrs in self.slaves.items() if name not in brokers}
        known: set[str] = set()
        read_only = set(self.read_only - brokers.keys())
        outdated = False
        for name, broker in brokers.items():
            version, master = int(broker["stateVersion"]), broker["addrs"].get("0")
            acting = bool(broker.get("readOnly", False))
            ours = versions.get(name, version)
            outdated |= version < ours
            absent = not master or acting
            if version < ours or (version == ours and absent and name in confirmed):
                master = self.masters.get(name)
                acting = name in self.read_only
            else:
                versions[name] = version
                known |= set() if absent else {name}
            read_only |= {name} if acting else set()
            if master:
                masters[name] = str(master)
            slaves[name] = {int(i): str(addr) for i, addr in broker["addrs"].items() if i != "0"}
        topics = self._topics_after(reply["topics"], brokers)
        if not outdated:
            for name in map(str, reply.get("leftOut", ())):
                masters.pop(name, None)
                slaves.pop(name, None)
        return RouteSnapshot(
            topics,
            masters,
            versions,
            slaves,
            complete=bool(brokers) and known == set(slaves),
            confirmed=confirmed | known,
            read_only=frozenset(read_only),
            raw_topics=reply["topics"],
            raw_sets=frozenset(brokers),
        )

    def places(self) -> dict[tuple[str, int], QueueLocation]:
        """Every (topic, queue) that has a master now."""
        return {(topic, at): place for topic in self.topics for at, place in self.places_of(topic)}

    def places_of(self, topic: str) -> Iterator[tuple[int, QueueLocation]]:
        """Yield a topic's queues that have a master, with their numbers."""
        first = 0
        for name, queues in self.topics.get(topic, ()):
            if name in self.masters:
                for queue in range(queues):
                    number, read_only = first + queue, name in self.read_only
                    yield number, QueueLocation(name, self.masters[name], queue, number, read_only)
            first += queues

    def _topics_after(
        self, topics: Json, brokers: Json
    ) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """Return the topics after an answer; the same object if they have not changed."""
        same_topics = topics is self.raw_topics or topics == self.raw_topics
        if same_topics and brokers.keys() == self.raw_sets:
            return self.topics
        news = {topic: self._owners(topic, owners, brokers) for topic, owners in topics.items()}
        return {**self.topics, **news}

    def _owners(self, topic: str, rows: list[Json], brokers: Json) -> tuple[tuple[str, int], ...]:
        """Return a topic's broker sets: those in the answer as it says, the others as before. The
        rows list sets that are left out of the brokers, too."""
        news = brokers.keys() | {str(row["brokerName"]) for row in rows}
        kept = [owner for owner in self.topics.get(topic, ()) if owner[0] not in news]
        return tuple(sorted([*kept, *((str(o["brokerName"]), int(o["queues"])) for o in rows)]))


class RouteCache:
    """The present route table, kept up to date."""

    def __init__(self, settings: ClientSettings) -> None:
        self.on_change: list[Callable[[], None]] = []
        self._settings = settings
        self._pool = Pool(settings.connect_timeout_s)
        self._tasks = Tasks()
        self._table = RouteSnapshot(settings.topics)
        self._of_topic: dict[str, Mapping[int, QueueLocation]] = {}  # of topics that were used
        self._in_order: dict[str, Sequence[QueueLocation]] = {}  # of topics that were used
        self._answers: dict[str, tuple[str, Json]] = {}  # nameserver -> as of when, its topics
        self._current = 0  # the nameserver that answered last, or had more
        self._asked_also: set[str] = set()
        self._doubted = False  # a route was found wrong since the last question
        self._timer: asyncio.TimerHandle | None = None
        self._asking = False
        self._asked_at = 0.0
        self._closed = False
        zone = settings.zone
        self._near: Json = {"zoneMode": True, "zoneName": zone} if zone else {}

    def start(self) -> None:
        self._schedule(0.0)

    def close(self) -> None:
        """Stop asking nameservers."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
        self._tasks.cancel()
        self._pool.close()

    def place(self, topic: str, queue: int) -> QueueLocation | None:
        """Return the location of a queue, None while no master is known."""
        if topic not in self._of_topic:
            self._look_up(topic)
        return self._of_topic.get(topic, {}).get(queue)

    def places(self, topic: str) -> Sequence[QueueLocation]:
        """Return all queues of a topic that have a master, in order."""
        if topic not in self._in_order:
            self._look_up(topic)
        return self._in_order.get(topic, ())

    def masters(self) -> Mapping[str, str]:
        """Return broker set -> master, for the sets that have one."""
        return dict(sorted(self._table.masters.items()))

    def headless(self) -> list[str]:
        """Return the known broker sets that have no master."""
        return sorted(set(self._table.versions) - set(self._table.masters))

    def slave(self, broker_name: str, broker_id: int) -> str | None:
        """Return a slave's address, None if it is not registered."""
        return self._table.slaves.get(broker_name, {}).get(broker_id)

    def refresh(self) -> None:
        """Ask a nameserver at once, or after the back-off since the last answer."""
        if self._asking:
            return
        self._doubted = True
        loop = asyncio.get_running_loop()
        due = max(loop.time(), self._asked_at + self._settings.retry_backoff_s)
        if self._timer is None or self._timer.when() > due:
            self._schedule(due - loop.time())

    def _look_up(self, topic: str) -> None:
        if found := dict(self._table.places_of(topic)):
            self._of_topic[topic] = found
            self._in_order[topic] = tuple(found.values())

    def _schedule(self, delay_s: float) -> None:
        if self._timer:
            self._timer.cancel()
        if self._closed:
            return
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._begin)

    def _begin(self) -> None:
        self._timer, self._asking = None, True
        self._tasks.start(self._ask())

    async def _ask(self) -> None:
        doubted, self._doubted = self._doubted, False
        try:
            await self._ask_in_turn(doubted)
        finally:
            self._asking = False
            self._asked_at = asyncio.get_running_loop().time()
            self._schedule(self._settings.poll_nameserver_s)

    async def _ask_in_turn(self, doubted: bool) -> None:
        """Ask nameservers in turn until one answers; ask the others if it may be outdated."""
        servers, before = self._settings.nameservers, self._table.masters
        order = [(self._current + step) % len(servers) for step in range(len(servers))]
        for turn, at in enumerate(order, start=1):
            table = await self._route(servers[at])
            if table is not None:
                self._current = at
                self._install(table)
                if not table.complete or (doubted and table.masters == before):
                    self._ask_also(order[turn:])
                return

    def _ask_also(self, others: Sequence[int]) -> None:
        """Ask nameservers besides, unless a question is under way."""
        for at in others:
            address = self._settings.nameservers[at]
            if address not in self._asked_also:
                self._asked_also.add(address)
                self._tasks.start(self._ask_other(at, address))

    async def _ask_other(self, at: int, address: str) -> None:
        try:
            table = await self._route(address, also=True)
        finally:
            self._asked_also.discard(address)
        if table is not None:
            if table.complete:
                self._current = at
            self._install(table)

    async def _route(self, address: str, also: bool = False) -> RouteSnapshot | None:
        """Ask a nameserver; return the table after its answer, None without a valid one.

        `also`: another nameserver has answered in this round.
        """
        as_of, topics = self._answers.get(address, ("", None))
        try:
            reply = await self._answer(address, as_of)
            if reply["code"] != Status.SUCCESS:
                return None
            if as_of and reply.get("topicsAsOf") == as_of:
                reply = {"topics": topics} | reply
            table = self._table.updated(reply, self._table.confirmed if also else frozenset())
            self._answers[address] = str(reply.get("topicsAsOf", "")), reply["topics"]
            return table
        except CallTimeout:
            self._pool.drop(address)  # it may be cut off: connect again next time
            return None
        except (Unreachable, ConnectionLost, ValueError, KeyError, TypeError, AttributeError):
            return None

    async def _answer(self, address: str, as_of: str) -> Json:
        """Return a nameserver's answer with all parts of its topics.

        Raises ValueError if they changed meanwhile.
        """
        timeout_s = self._settings.request_timeout_s
        fields = {"topic": None, "part": 0} | ({"topicsAsOf": as_of} if as_of else {}) | self._near
        reply = await self._pool.ask(address, Op.ROUTE, fields, timeout_s)
        for part in range(1, int(reply.get("parts", 1))):
            fields = {"topic": None, "part": part}
            more = await self._pool.ask(address, Op.ROUTE, fields, timeout_s)
            if more["topicsAsOf"] != reply["topicsAsOf"]:
                raise ValueError("the topics have changed")
            reply["topics"] |= more["topics"]
        return reply

    def _install(self, table: RouteSnapshot) -> None:
        before, self._table = self._table, table
        same_topics = table.topics is before.topics or table.topics == before.topics
        same_masters = (table.masters, table.read_only) == (before.masters, before.read_only)
        if not (same_masters and same_topics):
            self._of_topic, self._in_order = {}, {}
            for listener in self.on_change:
                listener()

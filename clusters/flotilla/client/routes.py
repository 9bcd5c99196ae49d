"""Which broker to ask for a queue: the route cache.

A client asks one nameserver, every `pollNameServerInterval` and at once when a send finds that its
route is wrong; when that nameserver does not answer, the next one. When none answers, the last
route stays in force: nameservers are not needed to go on. A nameserver that was cut off may tell
an old story, so a broker set's route never goes back to a lower stateVersion, which is the
master's epoch. One that has started again may tell nothing yet, so what it does not speak of stays
as it was.

One that is cut off from a master alone tells of the set, and of no master or an old one. So all
others are asked as well, without waiting for them, when an answer leaves a set without a master or
is older than what was told before, and when a send found its route wrong and the answer is the same
route. Where of two that tell the same stateVersion only one knows a master, there is one.

All topics are many and change seldom. A nameserver that is told as of when we have its topics
leaves them out if they are the same, and its answer is completed with what it told then: it means
what the whole one would have meant. Where they do not fit into one answer, they are asked for in
parts; if they change in between, that was no answer.

A topic's queues are numbered through all its broker sets, in the order of their names.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Pool, Tasks, Unreachable
from clusters.flotilla.net.wire import Json, Op, Status

from .place import Place
from .settings import Settings


@dataclass(frozen=True)
class Table:
    """A route table. `masters`: broker set -> address; `versions`: broker set -> stateVersion;
    `slaves`: broker set -> broker id -> address; `complete`: the last answer told a master of every
    set, and none that is older; `confirmed`: the sets of which it did, or one before it in the same
    round; `told`: the topics as they were told, the last time, and `of` which sets."""

    topics: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    masters: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    slaves: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    complete: bool = True
    confirmed: frozenset[str] = frozenset()
    told: Json = field(default_factory=dict, repr=False, compare=False)
    of: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    def updated(self, reply: Json, confirmed: frozenset[str] = frozenset()) -> "Table":
        """This table after a nameserver's answer. KeyError, TypeError, ValueError: malformed.

        `confirmed`: the sets of which another one has just told a master.
        """
        brokers, versions = reply["brokers"], dict(self.versions)
        masters = {name: addr for name, addr in self.masters.items() if name not in brokers}
        slaves = {name: addrs for name, addrs in self.slaves.items() if name not in brokers}
        known: set[str] = set()
        for name, broker in brokers.items():
            version, master = int(broker["stateVersion"]), broker["addrs"].get("0")
            ours = versions.get(name, version)
            if version < ours or (version == ours and not master and name in confirmed):
                master = self.masters.get(name)
            else:
                versions[name] = version
                known |= {name} if master else set()
            if master:
                masters[name] = str(master)
            slaves[name] = {int(i): str(addr) for i, addr in broker["addrs"].items() if i != "0"}
        topics = self._topics_after(reply["topics"], brokers)
        return Table(
            topics,
            masters,
            versions,
            slaves,
            complete=bool(brokers) and known == set(slaves),
            confirmed=confirmed | known,
            told=reply["topics"],
            of=frozenset(brokers),
        )

    def places(self) -> dict[tuple[str, int], Place]:
        """Every (topic, queue) that has a master now."""
        return {(topic, at): place for topic in self.topics for at, place in self.places_of(topic)}

    def places_of(self, topic: str) -> Iterator[tuple[int, Place]]:
        """A topic's queues that have a master now, with their numbers."""
        first = 0
        for name, queues in self.topics.get(topic, ()):
            if name in self.masters:
                for queue in range(queues):
                    yield first + queue, Place(name, self.masters[name], queue, first + queue)
            first += queues

    def _topics_after(self, told: Json, brokers: Json) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """The very same if they were told last time, too."""
        if told is self.told or (brokers.keys() == self.of and told == self.told):
            return self.topics
        news = {topic: self._owners(topic, owners, brokers) for topic, owners in told.items()}
        return {**self.topics, **news}

    def _owners(self, topic: str, told: list[Json], of: Json) -> tuple[tuple[str, int], ...]:
        """A topic's broker sets: those the answer speaks of as it says, the others as before."""
        kept = [owner for owner in self.topics.get(topic, ()) if owner[0] not in of]
        return tuple(sorted([*kept, *((str(o["brokerName"]), int(o["queues"])) for o in told)]))


class Routes:
    """The route table in force, kept fresh."""

    def __init__(self, settings: Settings) -> None:
        self.on_change: list[Callable[[], None]] = []
        self._settings = settings
        self._pool = Pool(settings.connect_timeout_s)
        self._tasks = Tasks()
        self._table = Table()
        self._of_topic: dict[str, Mapping[int, Place]] = {}  # those that were asked for
        self._in_order: dict[str, Sequence[Place]] = {}  # the same
        self._told: dict[str, tuple[str, Json]] = {}  # nameserver -> its topics, and as of when
        self._current = 0  # the nameserver that answered last, or knew more than that one
        self._asked_also: set[str] = set()
        self._doubted = False  # somebody found a route wrong since we last asked
        self._timer: asyncio.TimerHandle | None = None
        self._asking = False
        self._asked_at = 0.0
        self._closed = False

    def start(self) -> None:
        self._schedule(0.0)

    def close(self) -> None:
        """Nobody is asked from now on."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
        self._tasks.cancel()
        self._pool.close()

    def place(self, topic: str, queue: int) -> Place | None:
        """Where the queue is, or None while nobody is known to own it."""
        if topic not in self._of_topic:
            self._look_up(topic)
        return self._of_topic.get(topic, {}).get(queue)

    def places(self, topic: str) -> Sequence[Place]:
        """All queues of a topic that have a master now, in their order."""
        if topic not in self._in_order:
            self._look_up(topic)
        return self._in_order.get(topic, ())

    def masters(self) -> Mapping[str, str]:
        """The master of each broker set that has one, by the sets' names."""
        return dict(sorted(self._table.masters.items()))

    def headless(self) -> list[str]:
        """The broker sets that have no master now, among all that were ever told of."""
        return sorted(set(self._table.versions) - set(self._table.masters))

    def slave(self, broker_name: str, broker_id: int) -> str | None:
        """Its address, if it is registered."""
        return self._table.slaves.get(broker_name, {}).get(broker_id)

    def refresh(self) -> None:
        """Ask soon: at once, or as soon as the back-off since the last answer has passed."""
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
        """The nameserver that answered last, or the next that does; the others if it knows less."""
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
        """Those that are not being asked already."""
        for at in others:
            address = self._settings.nameservers[at]
            if address not in self._asked_also:
                self._asked_also.add(address)
                self._tasks.start(self._hear_also(at, address))

    async def _hear_also(self, at: int, address: str) -> None:
        try:
            table = await self._route(address, also=True)
        finally:
            self._asked_also.discard(address)
        if table is not None:
            if table.complete:
                self._current = at
            self._install(table)

    async def _route(self, address: str, also: bool = False) -> Table | None:
        """The table after a nameserver's answer; None when it gives none that makes sense.

        `also`: besides another one's.
        """
        as_of, topics = self._told.get(address, ("", None))
        try:
            reply = await self._answer(address, as_of)
            if reply["code"] != Status.SUCCESS:
                return None
            if as_of and reply.get("topicsAsOf") == as_of:
                reply = {"topics": topics} | reply
            table = self._table.updated(reply, self._table.confirmed if also else frozenset())
            self._told[address] = str(reply.get("topicsAsOf", "")), reply["topics"]
            return table
        except CallTimeout:
            self._pool.drop(address)  # it may have been cut off: dial anew next time
            return None
        except (Unreachable, ConnectionLost, ValueError, KeyError, TypeError, AttributeError):
            return None

    async def _answer(self, address: str, as_of: str) -> Json:
        """A nameserver's, with all parts of its topics. ValueError: they changed meanwhile."""
        timeout_s = self._settings.request_timeout_s
        fields = {"topic": None, "part": 0} | ({"topicsAsOf": as_of} if as_of else {})
        reply = await self._pool.ask(address, Op.ROUTE, fields, timeout_s)
        for part in range(1, int(reply.get("parts", 1))):
            fields = {"topic": None, "part": part}
            more = await self._pool.ask(address, Op.ROUTE, fields, timeout_s)
            if more["topicsAsOf"] != reply["topicsAsOf"]:
                raise ValueError("the topics have changed")
            reply["topics"] |= more["topics"]
        return reply

    def _install(self, table: Table) -> None:
        before, self._table = self._table, table
        same_topics = table.topics is before.topics or table.topics == before.topics
        if table.masters != before.masters or not same_topics:
            self._of_topic, self._in_order = {}, {}
            for tell in self.on_change:
                tell()

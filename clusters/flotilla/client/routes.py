"""Which broker to ask for a queue: the route cache.

A client asks one nameserver, every `pollNameServerInterval` and at once when a send finds that its
route is wrong; when that nameserver does not answer, the next one. When none answers, the last
route stays in force: nameservers are not needed to go on. A nameserver that was cut off may tell
an old story, so a broker set's route never goes back to a lower stateVersion, which is the
master's epoch. One that has started again may tell nothing yet, so what it does not speak of stays
as it was, and the next one is asked too.

All topics are many and change seldom. A nameserver that is told as of when we have its topics
leaves them out if they are the same, and its answer is completed with what it told then: it means
what the whole one would have meant.

A topic's queues are numbered through all its broker sets, in the order of their names.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusters.flotilla.net import CallTimeout, ConnectionLost, Pool, Tasks, Unreachable
from clusters.flotilla.wire import Json, Op, Status

from .place import Place
from .settings import Settings


@dataclass(frozen=True)
class Table:
    """A route table. `masters`: broker set -> address; `versions`: broker set -> stateVersion;
    `slaves`: broker set -> broker id -> address; `complete`: the nameserver knew all of them;
    `told`: the topics as they were told, the last time."""

    topics: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    masters: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    slaves: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    complete: bool = True
    told: Json = field(default_factory=dict, repr=False, compare=False)

    def updated(self, reply: Json) -> "Table":
        """This table after a nameserver's answer. KeyError, TypeError, ValueError: malformed."""
        brokers, versions = reply["brokers"], dict(self.versions)
        masters = {name: addr for name, addr in self.masters.items() if name not in brokers}
        slaves = {name: addrs for name, addrs in self.slaves.items() if name not in brokers}
        complete = bool(brokers) and not masters
        for name, broker in brokers.items():
            version, master = int(broker["stateVersion"]), broker["addrs"].get("0")
            if version < versions.get(name, version):
                master = self.masters.get(name)
            else:
                versions[name] = version
            if master:
                masters[name] = str(master)
            slaves[name] = {int(i): str(addr) for i, addr in broker["addrs"].items() if i != "0"}
        topics = self._topics_after(reply["topics"], brokers)
        return Table(topics, masters, versions, slaves, complete, reply["topics"])

    def places(self) -> dict[tuple[str, int], Place]:
        """Every (topic, queue) that has a master now."""
        return {(topic, at): place for topic in self.topics for at, place in self.places_of(topic)}

    def places_of(self, topic: str) -> Iterator[tuple[int, Place]]:
        """A topic's queues that have a master now, with their numbers."""
        first = 0
        for name, queues in self.topics.get(topic, ()):
            if name in self.masters:
                for queue in range(queues):
                    yield first + queue, Place(name, self.masters[name], queue)
            first += queues

    def _topics_after(self, told: Json, brokers: Json) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """The very same if they were told last time, too."""
        if told is self.told:
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
        self._current = 0  # the nameserver that answered last
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
        try:
            table = await self._first_answer()
            if table is not None:
                self._install(table)
        finally:
            self._asking = False
            self._asked_at = asyncio.get_running_loop().time()
            self._schedule(self._settings.poll_nameserver_s)

    async def _first_answer(self) -> Table | None:
        """Of the nameserver that answered last, or the next that does and knows everybody."""
        servers, found = self._settings.nameservers, None
        order = [(self._current + step) % len(servers) for step in range(len(servers))]
        for at in order:
            table = await self._route(servers[at], found or self._table)
            if table is None:
                continue
            if found is None or table.complete:
                self._current = at
            found = table
            if table.complete:
                break
        return found

    async def _route(self, address: str, known: Table) -> Table | None:
        """A nameserver's answer, taken into the table; None when it gives none that makes sense."""
        timeout_s = self._settings.request_timeout_s
        as_of, topics = self._told.get(address, ("", None))
        fields = {"topic": None} | ({"topicsAsOf": as_of} if as_of else {})
        try:
            reply = await self._pool.ask(address, Op.ROUTE, fields, timeout_s)
            if reply["code"] != Status.SUCCESS:
                return None
            if as_of and reply.get("topicsAsOf") == as_of:
                reply = {"topics": topics} | reply
            table = known.updated(reply)
            self._told[address] = str(reply.get("topicsAsOf", "")), reply["topics"]
            return table
        except CallTimeout:
            self._pool.drop(address)  # it may have been cut off: dial anew next time
            return None
        except (Unreachable, ConnectionLost, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _install(self, table: Table) -> None:
        before, self._table = self._table, table
        same_topics = table.topics is before.topics or table.topics == before.topics
        if table.masters != before.masters or not same_topics:
            self._of_topic, self._in_order = {}, {}
            for tell in self.on_change:
                tell()

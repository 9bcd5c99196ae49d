"""Which broker serves which topic (spec 10.1): the nameserver's table, without I/O.

Two brokers may both say that they are the master of a set: the old one that nobody told, and the
new one. The greater stateVersion (the master's epoch) wins, whoever registers last; the greatest
seen is remembered as long as the nameserver lives, so that the old master does not return to the
table when the new one is gone, nor when the whole set is: what is written there can only be
refused or lost. For a set that was made anew, whose controllers count from 1 again, nameservers are
started again, too.

Slaves register with the epoch of the master that they follow, so a nameserver that was started anew
refuses the old one as soon as it has heard one of them. Whom it shows already stays until another
master registers, or itself again: slaves may hear of its next reign before it does.

A set that was away comes back with the newest epoch known, also while its slaves are here alone:
their master is gone, and clients must not keep it. A nameserver that was started anew knows of no
reign, and says 0, which is older than any: clients keep the master that they know.

A broker counts what it sends to nameservers, as it does for controllers (liveness.py), and what
comes after something that was sent later is dropped: a kernel goes on delivering what it took for a
connection that its process has long given up.

A broker that is silent for the time it announced leaves the table, unless so many are silent at
once that it must be the nameserver that is deaf. Removing them all would stop every client for a
fault of our own network (the article's avalanche); the original waits 120 s with everybody for this
reason. Here a nameserver that hears less than half of its brokers removes nobody before that time,
and when it hears again, each has its whole timeout once more to be heard. A process that is known
to be gone is removed in either case: this is about silence only.

All topics of many broker sets may be more than a frame takes. So they are told in parts, each of
which fits, and nearly always there is one.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..net.wire import MAX_FRAME, Json, to_json

MASTER = 0
MOST_BYTES = MAX_FRAME // 4  # of the topics in one answer; who the brokers are comes on top


def displaces(registered: int, newcomer: int) -> bool:
    """May a newcomer take the place of a registered broker? A field of `rules.Rules`."""
    return newcomer >= registered


def deaf(silences: Sequence[tuple[float, float]]) -> bool:
    """Are so many brokers quiet that the fault must be ours? A field of `rules.Rules`.

    For each broker: for how long it has been silent, and for how long it may be, in seconds. Half
    of its time is enough to count: brokers that fall silent together were not heard together.
    """
    quiet = sum(silent_s > most_s / 2 for silent_s, most_s in silences)
    return 2 * quiet > len(silences)


@dataclass(frozen=True)
class Registration:
    """`life` and `beat`: which process of the broker sent it, and its count."""

    cluster: str
    name: str
    broker_id: int
    addr: str
    ha_addr: str
    state_version: int
    timeout_s: float
    topics: Mapping[str, int]
    life: int = 0
    beat: int = 0


@dataclass(frozen=True)
class Sign:
    """A light heartbeat: who is alive, and under which id it believes to be known."""

    name: str
    broker_id: int
    addr: str
    life: int
    beat: int


@dataclass(frozen=True)
class _Live:
    registration: Registration
    at: float
    via: Hashable  # the connection it came by


@dataclass
class _Group:
    """The brokers of one set by id: 0 is the master, a slave has its own."""

    cluster: str
    brokers: dict[int, _Live] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)
    version: int = 0

    def without_addr(self, addr: str) -> dict[int, _Live]:
        return {i: b for i, b in self.brokers.items() if b.registration.addr != addr}


def _parted(topics: Mapping[str, list[Json]]) -> Iterator[dict[str, list[Json]]]:
    """The topics in order, no more together than fit; there is always a first part."""
    part: dict[str, list[Json]] = {}
    left_bytes = MOST_BYTES
    for topic, rows in topics.items():
        size_bytes = len(to_json({topic: rows}))
        if part and size_bytes > left_bytes:
            yield part
            part, left_bytes = {}, MOST_BYTES
        part[topic] = rows
        left_bytes -= size_bytes
    yield part


class RouteTable:
    """`patience_s`: after this time silence counts, however many are silent."""

    def __init__(
        self,
        displaces: Callable[[int, int], bool],
        deaf: Callable[[Sequence[tuple[float, float]]], bool],
        patience_s: float,
    ) -> None:
        self._displaces = displaces
        self._deaf = deaf
        self._patience_s = patience_s
        self._deaf_at = -math.inf
        self._groups: dict[str, _Group] = {}
        self._newest: dict[str, int] = {}  # set -> its newest master's epoch, heard of by anyone
        self._beats: dict[str, tuple[int, int]] = {}  # address -> life, its last count
        self.topics_version = 0  # another one whenever who serves which topics changes
        self._parts: list[dict[str, list[Json]]] | None = None  # of all topics, until then

    def register(self, new: Registration, via: Hashable, now: float) -> Registration | None:
        """Enter a broker; the set's master if there is one. Stale: it was refused."""
        if self._is_late(new.addr, new.life, new.beat):
            raise Stale(f"{new.addr} has been heard since this was sent")
        newest = self._newest.get(new.name, 0)
        group = self._groups.get(new.name) or _Group(new.cluster, version=newest)
        group.brokers = group.without_addr(new.addr)
        if new.broker_id == MASTER:
            if not self._displaces(newest, new.state_version):
                self._drop_if_empty(new.name)
                raise Stale(
                    f"{new.name} has had a master of epoch {newest}, after {new.state_version}; if "
                    "the set was made anew, start this nameserver again"
                )
            self._newest[new.name] = group.version = new.state_version
        else:
            self._newest[new.name] = max(newest, new.state_version)
        self._groups[new.name] = group
        group.brokers[new.broker_id] = _Live(new, now, via)
        if new.broker_id == MASTER or (new.broker_id == min(group.brokers) and not group.topics):
            self._serve(group, new.topics)
        master = group.brokers.get(MASTER)
        return master.registration if master else None

    def unregister(self, name: str, broker_id: int, addr: str) -> bool:
        group = self._groups.get(name)
        known = group.brokers.get(broker_id) if group else None
        if group is None or known is None or known.registration.addr != addr:
            return False
        del group.brokers[broker_id]
        self._drop_if_empty(name)
        return True

    def heard(self, sign: Sign, via: Hashable, now: float) -> bool:
        """A light heartbeat. False: its sender is not in the table as it says, and should be."""
        if self._is_late(sign.addr, sign.life, sign.beat):
            return True
        group = self._groups.get(sign.name)
        known = group.brokers.get(sign.broker_id) if group else None
        if group is None or known is None or known.registration.addr != sign.addr:
            return False
        group.brokers[sign.broker_id] = _Live(known.registration, now, via)
        return True

    def expired(self, now: float) -> list[Registration]:
        """Who has been silent for longer than announced, unless it is we who do not hear."""
        silences = [(now - live.at, live.registration.timeout_s) for live in self._living()]
        if self._deaf(silences):
            self._deaf_at = now
        return [live.registration for live in self._living() if self._is_silent(live, now)]

    def registered_by(self, via: Hashable) -> list[Registration]:
        """Whose latest sign of life came by this connection."""
        return [live.registration for live in self._living() if live.via == via]

    def members(self, name: str) -> dict[int, str]:
        """The addresses of a set's brokers by id, the lowest first."""
        group = self._groups.get(name)
        brokers = sorted(group.brokers.items()) if group else []
        return {i: live.registration.addr for i, live in brokers}

    def version(self, name: str) -> int:
        group = self._groups.get(name)
        return group.version if group else 0

    @property
    def parts(self) -> int:
        """How many it takes to tell all topics; at least one."""
        return len(self._of_all_topics())

    def route(self, topic: str | None, part: int | None = None) -> Json:
        """Who serves a topic, or all topics, or one part of those, which is empty if there is no
        such part."""
        topics = self._of_topic(topic) if topic is not None else self._of_part(part)
        serving = {row["brokerName"] for row in topics.get(topic, ())} if topic is not None else {}
        brokers = {
            name: self._addresses(group)
            for name, group in sorted(self._groups.items())
            if topic is None or name in serving
        }
        return {"topics": topics, "brokers": brokers}

    def _of_topic(self, topic: str) -> dict[str, list[Json]]:
        rows = [
            {"brokerName": name, "queues": group.topics[topic]}
            for name, group in sorted(self._groups.items())
            if topic in group.topics
        ]
        return {topic: rows} if rows else {}

    def _of_part(self, part: int | None) -> dict[str, list[Json]]:
        parts = self._of_all_topics()
        told = parts if part is None else parts[part : part + 1] if part >= 0 else []
        return told[0] if len(told) == 1 else {t: rows for some in told for t, rows in some.items()}

    def _of_all_topics(self) -> list[dict[str, list[Json]]]:
        if self._parts is None:
            topics: dict[str, list[Json]] = {}
            for name, group in sorted(self._groups.items()):
                for topic, queues in sorted(group.topics.items()):
                    row = {"brokerName": name, "queues": queues}
                    topics.setdefault(topic, []).append(row)
            self._parts = list(_parted(topics))
        return self._parts

    def _serve(self, group: _Group, topics: Mapping[str, int]) -> None:
        if group.topics != topics:
            group.topics = dict(topics)
            self._topics_changed()

    def _topics_changed(self) -> None:
        self.topics_version += 1
        self._parts = None

    def _addresses(self, group: _Group) -> Json:
        addrs = {str(i): b.registration.addr for i, b in sorted(group.brokers.items())}
        return {"cluster": group.cluster, "addrs": addrs, "stateVersion": group.version}

    def _living(self) -> Iterator[_Live]:
        return (live for group in self._groups.values() for live in group.brokers.values())

    def _is_silent(self, live: _Live, now: float) -> bool:
        heard_at = max(live.at, self._deaf_at)
        return now - heard_at > live.registration.timeout_s or now - live.at > self._patience_s

    def _is_late(self, addr: str, life: int, beat: int) -> bool:
        """Something was sent after it, and that has come already."""
        known = self._beats.get(addr)
        if known is not None and known[0] == life and beat < known[1]:
            return True
        self._beats[addr] = life, beat
        return False

    def _drop_if_empty(self, name: str) -> None:
        group = self._groups.get(name)
        if group is not None and not group.brokers:
            del self._groups[name]
            self._topics_changed()


class Stale(Exception):
    """A master of an older epoch, or something that was sent before what we know."""

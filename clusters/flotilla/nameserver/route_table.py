"""The nameserver's table: which broker serves which topic. Sans I/O.

Two brokers may both register as master of a set: the new one, and the old one that has not learned
of the election. The greater stateVersion (the master's epoch) wins, whichever registers last. The
greatest one is remembered as long as the nameserver runs, so the old master does not return to the
table when the new one is gone, nor when the whole set is: messages sent to it could only be refused
or lost. If a set is created again, and its controllers count epochs from 1, nameservers have to be
restarted, too.

Slaves register with the epoch of the master that they follow, so a nameserver that has restarted
refuses the old master as soon as one of them has registered. A master that is in the table already
stays until another master registers, or itself again: slaves may know of its next epoch before it
does.

A set that returns has the newest known epoch, also while only its slaves are registered: their
master is gone, and clients must not keep it. A nameserver that has restarted knows no epoch and
answers 0, which is older than any: clients keep the master that they know.

A broker counts what it sends to nameservers, as it does for controllers (liveness.py), and messages
that arrive after one that was sent later are dropped: a kernel goes on delivering data of a
connection that its process closed long ago.

A broker that is silent for the time it announced leaves the table, unless so many are silent at the
same time that the nameserver itself must be cut off. Removing them all would stop every client for
a fault of the nameserver's network; RocketMQ waits 120 s for every broker for this reason. Here a
nameserver that hears less than half of its brokers removes none before that time, and when it hears
them again, each of them has its whole timeout once more. A broker whose process has ended is
removed in any case.

A client may ask for the sets near it (`zoneMode`, `zoneName`; RocketMQ's ZoneRouteRPCHook). Sets
whose master is in another zone are left out, unless no set has a master in the client's zone:
RocketMQ has no such fallback, and its clients find no broker then. The zone of a set is its
master's. RocketMQ takes the zone of whichever broker has registered last, so the zone of a set with
brokers in two zones changes with every registration. The answer lists the names that it leaves
out, since a set that an answer does not mention is merely not known.

The topics of many broker sets may exceed a frame, so they are answered in parts that fit; usually
there is one part. See docs/flotilla-design.md, Name service.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..conversion.rules import is_of_generation
from ..net.wire import MAX_FRAME, Json, to_json

MASTER = 0
READ_ONLY = "readOnly"  # in the route of a set: the broker shown as master takes no sends
LEFT_OUT = "leftOut"  # in a route: the sets in other zones
MAX_TOPICS_BYTES = MAX_FRAME // 4  # of the topics in one answer, which has the brokers as well


def displaces(registered: int, newcomer: int) -> bool:
    """Return whether a broker may replace a registered one, by their stateVersions."""
    return newcomer >= registered


def left_out(masters: Mapping[str, str | None], zone: str) -> frozenset[str]:
    """Return the sets that the route of a client in this zone leaves out.

    `masters`: the zone of each set's master, "" if it has none that is known; None for a set
    without a master, which is never left out, since its slaves may serve.
    """
    if zone not in masters.values():
        return frozenset()
    return frozenset(name for name, at in masters.items() if at and at != zone)


def is_deaf(silences: Sequence[tuple[float, float]]) -> bool:
    """Return whether so many brokers are silent that the fault must be this nameserver's.

    `silences`: for each broker how long it has been silent, and how long it may be, in seconds. A
    broker counts as silent after half of its time, because brokers that fall silent at once were
    last heard at different times.
    """
    quiet = sum(silent_s > limit_s / 2 for silent_s, limit_s in silences)
    return 2 * quiet > len(silences)


@dataclass(frozen=True)
class Registration:
    """`incarnation` and `beat`: the process of the broker that sent it, and its count. `acts`:
    whether the broker serves for an absent master."""

    cluster: str
    name: str
    broker_id: int
    addr: str
    ha_addr: str
    state_version: int
    timeout_s: float
    topics: Mapping[str, int]
    incarnation: int = 0
    beat: int = 0
    acts: bool = False
    zone: str = ""
    generation: int = 0


@dataclass(frozen=True)
class LightHeartbeat:
    """A heartbeat without topics. `broker_id`: the id under which the broker has registered."""

    name: str
    broker_id: int
    addr: str
    incarnation: int
    beat: int


@dataclass(frozen=True)
class _RegisteredBroker:
    registration: Registration
    at: float
    via: Hashable  # the connection it came by


@dataclass
class _Group:
    """The brokers of one set by id: 0 is the master, a slave has its own."""

    cluster: str
    brokers: dict[int, _RegisteredBroker] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)
    version: int = 0

    def without_addr(self, addr: str) -> dict[int, _RegisteredBroker]:
        return {i: b for i, b in self.brokers.items() if b.registration.addr != addr}


def _parted(topics: Mapping[str, list[Json]]) -> Iterator[dict[str, list[Json]]]:
    """Split the topics into parts that fit into an answer; yield at least one part."""
    part: dict[str, list[Json]] = {}
    left_bytes = MAX_TOPICS_BYTES
    for topic, rows in topics.items():
        size_bytes = len(to_json({topic: rows}))
        if part and size_bytes > left_bytes:
            yield part
            part, left_bytes = {}, MAX_TOPICS_BYTES
        part[topic] = rows
        left_bytes -= size_bytes
    yield part


class RouteTable:
    """`patience_s`: a broker that is silent for longer is removed, however many are silent.

    `shows_acting`: in a set without a master the lowest broker is shown as the master of a set that
    cannot be written to, if it serves for an absent master (RIP-32).
    """

    def __init__(
        self,
        displaces: Callable[[int, int], bool],
        is_deaf: Callable[[Sequence[tuple[float, float]]], bool],
        patience_s: float,
        shows_acting: bool = False,
        left_out: Callable[[Mapping[str, str | None], str], frozenset[str]] = left_out,
        is_of_generation: Callable[[int, int], bool] = is_of_generation,
    ) -> None:
        self._left_out = left_out
        self._is_of_generation = is_of_generation
        self._shows_acting = shows_acting
        self._displaces = displaces
        self._is_deaf = is_deaf
        self._patience_s = patience_s
        self._deaf_at = -math.inf
        self._groups: dict[str, _Group] = {}
        self._newest: dict[
            str, int
        ] = {}  # set -> the newest master's epoch that any broker registered with
        self._generations: dict[str, int] = {}  # set -> the newest of its conversions
        self._beats: dict[str, tuple[int, int]] = {}  # address -> incarnation, last count
        self.topics_version = 0  # changes whenever the topics of a set change
        self._parts: list[dict[str, list[Json]]] | None = (
            None  # of all topics, while they do not change
        )

    def register(self, new: Registration, via: Hashable, now: float) -> Registration | None:
        """Register a broker; return the set's master. Raises StaleRegistration."""
        if self._is_late(new.addr, new.incarnation, new.beat):
            raise StaleRegistration(f"{new.addr} has sent something later")
        newest, generation = self._newest.get(new.name, 0), self._generations.get(new.name, 0)
        if new.generation < generation and not self._is_of_generation(generation, new.generation):
            raise StaleRegistration(
                f"{new.name} is in generation {generation}, and {new.addr} in {new.generation}"
            )
        self._generations[new.name] = max(generation, new.generation)
        group = self._groups.get(new.name) or _Group(new.cluster, version=newest)
        group.brokers = group.without_addr(new.addr)
        if new.broker_id == MASTER:
            if not self._displaces(newest, new.state_version):
                self._drop_if_empty(new.name)
                raise StaleRegistration(
                    f"{new.name} has had a master of epoch {newest}, after {new.state_version}; if "
                    "the set was created again, restart this nameserver"
                )
            self._newest[new.name] = group.version = new.state_version
        else:
            self._newest[new.name] = max(newest, new.state_version)
        self._groups[new.name] = group
        group.brokers[new.broker_id] = _RegisteredBroker(new, now, via)
        if new.broker_id == MASTER or (new.broker_id == min(group.brokers) and not group.topics):
            self._serve(group, new.topics)
        return self.master(new.name)

    def unregister(self, name: str, broker_id: int, addr: str) -> bool:
        group = self._groups.get(name)
        known = group.brokers.get(broker_id) if group else None
        if group is None or known is None or known.registration.addr != addr:
            return False
        del group.brokers[broker_id]
        self._drop_if_empty(name)
        return True

    def record_heartbeat(self, heartbeat: LightHeartbeat, via: Hashable, now: float) -> bool:
        """Take a light heartbeat. Return False if its sender has to register."""
        if self._is_late(heartbeat.addr, heartbeat.incarnation, heartbeat.beat):
            return True
        group = self._groups.get(heartbeat.name)
        known = group.brokers.get(heartbeat.broker_id) if group else None
        if group is None or known is None or known.registration.addr != heartbeat.addr:
            return False
        group.brokers[heartbeat.broker_id] = _RegisteredBroker(known.registration, now, via)
        return True

    def expired(self, now: float) -> list[Registration]:
        """Return the brokers that were silent for too long, unless this nameserver is cut off."""
        silences = [(now - live.at, live.registration.timeout_s) for live in self._living()]
        if self._is_deaf(silences):
            self._deaf_at = now
        return [live.registration for live in self._living() if self._is_silent(live, now)]

    def registered_by(self, via: Hashable) -> list[Registration]:
        """Return the brokers whose latest message came by this connection."""
        return [live.registration for live in self._living() if live.via == via]

    def members(self, name: str) -> dict[int, str]:
        """Return the addresses of a set's brokers by id, the lowest first."""
        group = self._groups.get(name)
        brokers = sorted(group.brokers.items()) if group else []
        return {i: live.registration.addr for i, live in brokers}

    def master(self, name: str) -> Registration | None:
        group = self._groups.get(name)
        known = group.brokers.get(MASTER) if group else None
        return known.registration if known else None

    def newest(self, name: str) -> int:
        """Return the newest epoch with which a broker of the set has registered."""
        return self._newest.get(name, 0)

    def version(self, name: str) -> int:
        group = self._groups.get(name)
        return group.version if group else 0

    @property
    def parts(self) -> int:
        """The number of parts of all topics, at least one."""
        return len(self._of_all_topics())

    def route(self, topic: str | None, part: int | None = None, zone: str = "") -> Json:
        """Return the route of a topic, of all topics, or of one part of them (empty if there is no
        such part). `zone`: of a client that asks for the sets near it."""
        topics = self._of_topic(topic) if topic is not None else self._of_part(part)
        serving = {row["brokerName"] for row in topics.get(topic, ())} if topic is not None else {}
        brokers = {
            name: self._addresses(group)
            for name, group in sorted(self._groups.items())
            if topic is None or name in serving
        }
        if not zone:
            return {"topics": topics, "brokers": brokers}
        masters = {name: self._zone_of(name) for name in brokers}
        out = self._left_out(masters, zone)
        near = {name: broker for name, broker in brokers.items() if name not in out}
        return {"topics": topics, "brokers": near, LEFT_OUT: sorted(out)}

    def _zone_of(self, name: str) -> str | None:
        master = self.master(name)
        return master.zone if master else None

    def _of_topic(self, topic: str) -> dict[str, list[Json]]:
        rows = [
            {"brokerName": name, "queues": group.topics[topic]}
            for name, group in sorted(self._groups.items())
            if topic in group.topics
        ]
        return {topic: rows} if rows else {}

    def _of_part(self, part: int | None) -> dict[str, list[Json]]:
        parts = self._of_all_topics()
        chosen = parts if part is None else parts[part : part + 1] if part >= 0 else []
        if len(chosen) == 1:
            return chosen[0]
        return {topic: rows for topics in chosen for topic, rows in topics.items()}

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
        route = {"cluster": group.cluster, "addrs": addrs, "stateVersion": group.version}
        lowest = min(group.brokers)
        if self._shows_acting and lowest != MASTER and group.brokers[lowest].registration.acts:
            shown = {str(MASTER): addrs.pop(str(lowest)), **addrs}
            return {**route, "addrs": shown, READ_ONLY: True}
        return route

    def _living(self) -> Iterator[_RegisteredBroker]:
        return (live for group in self._groups.values() for live in group.brokers.values())

    def _is_silent(self, live: _RegisteredBroker, now: float) -> bool:
        heard_at = max(live.at, self._deaf_at)
        return now - heard_at > live.registration.timeout_s or now - live.at > self._patience_s

    def _is_late(self, addr: str, incarnation: int, beat: int) -> bool:
        """Return whether a message that was sent later has already arrived."""
        known = self._beats.get(addr)
        if known is not None and known[0] == incarnation and beat < known[1]:
            return True
        self._beats[addr] = incarnation, beat
        return False

    def _drop_if_empty(self, name: str) -> None:
        group = self._groups.get(name)
        if group is not None and not group.brokers:
            del self._groups[name]
            self._topics_changed()


class StaleRegistration(Exception):
    """The registration is of an older master, or was sent before a later message."""

"""Which broker serves which topic (spec 10.1): the nameserver's table, without I/O.

Two brokers may both say that they are the master of a set: the old one that nobody told, and the
new one. The greater stateVersion (the master's epoch) wins, whoever registers last; the greatest
seen is remembered as long as any broker of the set is registered, so that the old master does not
return to the table when the new one is gone for a moment.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from .wire import Json

MASTER = 0


def displaces(registered: int, newcomer: int) -> bool:
    """May a newcomer take the place of a registered broker? A field of `rules.Rules`."""
    return newcomer >= registered


@dataclass(frozen=True)
class Registration:
    cluster: str
    name: str
    broker_id: int
    addr: str
    ha_addr: str
    state_version: int
    timeout_s: float
    topics: Mapping[str, int]


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


class RouteTable:
    def __init__(self, displaces: Callable[[int, int], bool]) -> None:
        self._displaces = displaces
        self._groups: dict[str, _Group] = {}

    def register(self, new: Registration, via: Hashable, now: float) -> Registration | None:
        """Enter a broker; the set's master if there is one. Stale: it was refused."""
        group = self._groups.setdefault(new.name, _Group(new.cluster))
        group.brokers = group.without_addr(new.addr)
        if new.broker_id == MASTER:
            if not self._displaces(group.version, new.state_version):
                self._drop_if_empty(new.name)
                raise Stale(f"the master of {new.name} has epoch {group.version}")
            group.version = new.state_version
        group.brokers[new.broker_id] = _Live(new, now, via)
        if new.broker_id == MASTER or (new.broker_id == min(group.brokers) and not group.topics):
            group.topics = dict(new.topics)
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

    def heard(self, via: Hashable, now: float) -> None:
        """A sign of life by a connection: whoever registered by it is alive."""
        for group in self._groups.values():
            for i, live in group.brokers.items():
                if live.via == via:
                    group.brokers[i] = _Live(live.registration, now, via)

    def expired(self, now: float) -> list[Registration]:
        """Who has been silent for longer than announced."""
        return [
            live.registration
            for group in self._groups.values()
            for live in group.brokers.values()
            if now - live.at > live.registration.timeout_s
        ]

    def registered_by(self, via: Hashable) -> list[Registration]:
        """Whose latest registration came by this connection."""
        return [
            live.registration
            for group in self._groups.values()
            for live in group.brokers.values()
            if live.via == via
        ]

    def route(self, topic: str | None) -> Json:
        """Who serves a topic, or all topics."""
        topics: dict[str, list[Json]] = {}
        for name, group in sorted(self._groups.items()):
            for served, queues in sorted(group.topics.items()):
                if topic in (None, served):
                    topics.setdefault(served, []).append({"brokerName": name, "queues": queues})
        serving = {row["brokerName"] for rows in topics.values() for row in rows}
        brokers = {
            name: self._addresses(group)
            for name, group in sorted(self._groups.items())
            if topic is None or name in serving
        }
        return {"topics": topics, "brokers": brokers}

    def _addresses(self, group: _Group) -> Json:
        addrs = {str(i): b.registration.addr for i, b in sorted(group.brokers.items())}
        return {"cluster": group.cluster, "addrs": addrs, "stateVersion": group.version}

    def _drop_if_empty(self, name: str) -> None:
        if not self._groups[name].brokers:
            del self._groups[name]


class Stale(Exception):
    """A master of an older epoch asked to be entered."""

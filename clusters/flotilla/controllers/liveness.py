"""Which brokers the controllers believe to be alive: the table of heartbeats, and its owner.

A `HeartbeatTable` is a value. Each controller of the type dledger has a table of its own, a
`LocalLiveness`, filled by the heartbeats that brokers send to all controllers. Controllers of the
type jraft agree on the table as on everything else.

The newest heartbeat counts, whatever it says. A table that only moved forward would keep a broker's
old offset after its log was cut, and elect it for bytes that it no longer has. A broker numbers its
heartbeats, and the number decides which is the newest. The order of arrival does not: a kernel goes
on delivering what it received on a connection that its process has long given up. A number belongs
to one process, the heartbeat's `life`. Heartbeats of two processes arrive together only for a
moment after a restart, and the one that arrives last counts.

A broker is DEAD when its heartbeats stopped for longer than it announced, or when its process is
known to be gone. A broker that was never heard is UNKNOWN for one heartbeat timeout after a
controller became leader, and DEAD after that: a new leader neither deposes nor elects out of
ignorance.

When no broker of a set is heard, the controllers themselves may be cut off, and there is no
candidate in any case. So silence of the whole set expires no broker for `SET_SILENCE_TIMEOUTS`
timeouts, and when one is heard again, each has its whole timeout once more: the master may have
served all the while, and must not be deposed because another broker's heartbeat came first. Only
the leader applies this rule. The meaning of a log entry does not depend on it, nor on the edition
that reads it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..net.wire import Json
from .elect import BrokerStatus, Candidate

SET_SILENCE_TIMEOUTS = 12.0  # heartbeat timeouts; after them silence of a whole set counts too
Key = tuple[str, int]  # brokerName, brokerId
Expired = Callable[[float, float, float], bool]


@dataclass(frozen=True)
class Heartbeat:
    """`life`: a number of the broker's process; `beat`: the process's count of heartbeats.

    The fields' names are those of the jraft log and of snapshots.
    """

    key: Key
    addr: str
    timeout_s: float
    epoch: int
    max_offset: int
    confirm_offset: int
    priority: int
    life: int
    beat: int
    zone: str = ""
    resources: int = 0
    learner: bool = False
    rack: str = ""

    def fields(self) -> Json:
        """Return the fields for the jraft log and for snapshots, which controllers of an older
        edition read: they know no racks."""
        return {name: value for name, value in vars(self).items() if name != "rack" or value}

    @classmethod
    def from_fields(cls, fields: Json) -> "Heartbeat":
        """Return a broker's request as a heartbeat.

        Raises KeyError, TypeError or ValueError if it is malformed.
        """
        return cls(
            (str(fields["brokerName"]), int(fields["brokerId"])),
            str(fields["addr"]),
            float(fields["timeoutMs"]) / 1000,
            int(fields["epoch"]),
            int(fields["maxOffset"]),
            int(fields["confirmOffset"]),
            int(fields["priority"]),
            int(fields.get("life", 0)),  # the first edition did not count
            int(fields.get("beat", 0)),
            str(fields.get("zone", "")),
            int(fields.get("resources", 0)),
            bool(fields.get("learner", False)),
            str(fields.get("rack", "")),
        )

    def precedes(self, other: "Heartbeat") -> bool:
        """Return whether this one was certainly sent before the other."""
        return self.life == other.life and self.beat < other.beat


@dataclass(frozen=True)
class LastHeartbeat:
    """A broker's newest heartbeat, the time and the connection of its arrival."""

    heartbeat: Heartbeat
    at: float
    connection: int = 0
    gone: bool = False


def heartbeat_expired(now: float, heard_at: float, timeout_s: float) -> bool:
    """Decide whether a broker was silent for longer than it announced. A field of `rules.Rules`."""
    return now - heard_at > timeout_s


@dataclass(frozen=True)
class HeartbeatTable:
    """The last heartbeat of each broker, and since when the present leader leads.

    All times are by the leader's clock.
    """

    rows: Mapping[Key, LastHeartbeat] = field(default_factory=dict)
    leader_since: float | None = None

    def restarted_at(self, now: float) -> "HeartbeatTable":
        """Return the table for a new leader, with its own clock: each timeout starts now."""
        return HeartbeatTable({key: replace(row, at=now) for key, row in self.rows.items()}, now)

    def with_heartbeats(
        self, heartbeats: Iterable[Heartbeat], now: float, connection: int = 0
    ) -> tuple["HeartbeatTable", list[Key]]:
        """Return the table with these heartbeats, and the brokers that were not known as alive."""
        rows, returned = dict(self.rows), []
        for heartbeat in heartbeats:
            known = rows.get(heartbeat.key)
            if known and heartbeat.precedes(known.heartbeat):
                continue
            rows[heartbeat.key] = LastHeartbeat(heartbeat, now, connection)
            if known is None or known.gone:
                returned.append(heartbeat.key)
        return HeartbeatTable(rows, self.leader_since), returned

    def without(self, keys: Iterable[Key]) -> tuple["HeartbeatTable", list[Key]]:
        """Return the table with these brokers gone, and those for which that is a change."""
        lost = [key for key in keys if key in self.rows and not self.rows[key].gone]
        gone = {key: replace(self.rows[key], gone=True) for key in lost}
        return replace(self, rows={**self.rows, **gone}), lost

    def late(self, now: float, expired: Expired) -> list[Key]:
        """Return the brokers whose heartbeats have stopped and that are not yet marked as gone."""
        return [
            key
            for key, row in self.rows.items()
            if not row.gone and expired(now, row.at, row.heartbeat.timeout_s)
        ]

    def of_set(self, name: str) -> dict[Key, LastHeartbeat]:
        """Return a set's brokers that are not known to be gone."""
        return {key: row for key, row in self.rows.items() if key[0] == name and not row.gone}

    def is_set_silent(self, name: str, now: float) -> bool:
        """Return whether no broker of the set was heard for half of its timeout."""
        brokers = self.of_set(name).values()
        return all(now - row.at > row.heartbeat.timeout_s / 2 for row in brokers)

    def expired_brokers(self, now: float, expired: Expired) -> list[Key]:
        """Return the late brokers, except those of a set that is silent as a whole."""
        late = self.late(now, expired)
        silent = {name for name in {name for name, _ in late} if self.is_set_silent(name, now)}
        return [k for k in late if k[0] not in silent or _silent_too_long(self.rows[k], now)]

    def silent_together(self, heartbeat: Heartbeat, now: float) -> dict[Key, LastHeartbeat]:
        """Return the brokers that were silent together with the sender of this heartbeat."""
        key, known = heartbeat.key, self.rows.get(heartbeat.key)
        if known and heartbeat.precedes(known.heartbeat):
            return {}
        if known and not known.gone and now - known.at <= known.heartbeat.timeout_s / 2:
            return {}  # the common case
        if not self.is_set_silent(key[0], now):
            return {}
        others = self.of_set(key[0])
        return {k: row for k, row in others.items() if k != key and not _silent_too_long(row, now)}

    def candidate(self, name: str, broker_id: int, now: float, grace_s: float) -> Candidate:
        row = self.rows.get((name, broker_id))
        if row is None:
            since = self.leader_since
            in_grace = since is not None and now - since < grace_s
            return Candidate(broker_id, BrokerStatus.UNKNOWN if in_grace else BrokerStatus.DEAD)
        heartbeat = row.heartbeat
        return Candidate(
            broker_id,
            BrokerStatus.DEAD if row.gone else BrokerStatus.ALIVE,
            heartbeat.epoch,
            heartbeat.max_offset,
            heartbeat.priority,
            zone=heartbeat.zone,
            resources=heartbeat.resources,
            learner=heartbeat.learner,
            rack=heartbeat.rack,
        )

    # as JSON, in a snapshot

    def fields(self) -> Json:
        rows = [[row.heartbeat.fields(), row.at, row.gone] for row in self.rows.values()]
        return {"pulses": rows, "leaderSince": self.leader_since}

    @classmethod
    def from_fields(cls, fields: Json) -> "HeartbeatTable":
        rows = [
            LastHeartbeat(Heartbeat(**{**row, "key": tuple(row["key"])}), at, gone=gone)
            for row, at, gone in fields["pulses"]
        ]
        return cls({row.heartbeat.key: row for row in rows}, fields["leaderSince"])


def _silent_too_long(row: LastHeartbeat, now: float) -> bool:
    return now - row.at > SET_SILENCE_TIMEOUTS * row.heartbeat.timeout_s


class SilenceGrace:
    """Restarts the time of brokers that were silent together, when one of them is heard again.

    It does so once after each heartbeat of a broker, so that a broker which is gone cannot stay
    alive by the heartbeats of others that are rarely heard, too.
    """

    def __init__(self) -> None:
        self._renewed: dict[Key, Heartbeat] = {}

    def renew(
        self, heartbeat: Heartbeat, table: HeartbeatTable, now: float
    ) -> dict[Key, LastHeartbeat]:
        """Return the brokers whose time restarts with this heartbeat."""
        silent = table.silent_together(heartbeat, now)
        renewed = {k: row for k, row in silent.items() if self._renewed.get(k) != row.heartbeat}
        self._renewed |= {key: row.heartbeat for key, row in renewed.items()}
        return renewed


class LocalLiveness:
    """One controller's own table."""

    def __init__(self, grace_s: float, expired: Expired) -> None:
        self._grace_s = grace_s
        self._expired = expired
        self._table = HeartbeatTable()
        self._grace = SilenceGrace()
        self._set_heard_at: dict[str, float] = {}  # when the set was heard for the first time

    def set_leader_since(self, now: float | None) -> None:
        self._table = replace(self._table, leader_since=now)

    def on_heartbeat(self, heartbeat: Heartbeat, connection: int, now: float) -> bool:
        """Record a heartbeat. Return whether the broker was not known as alive before."""
        self._set_heard_at.setdefault(heartbeat.key[0], now)
        table = self._table
        if silent := self._grace.renew(heartbeat, table, now):
            renewed = {key: replace(row, at=now) for key, row in silent.items()}
            table = replace(table, rows={**table.rows, **renewed})
        self._table, returned = table.with_heartbeats([heartbeat], now, connection)
        return bool(returned)

    def mark_gone(self, key: Key) -> bool:
        """Mark a broker as gone: its process ended, or was silent for too long.

        Return False if that was known.
        """
        self._table, lost = self._table.without([key])
        return bool(lost)

    def late(self, now: float) -> list[Key]:
        """Return the brokers whose heartbeats have stopped and that are not yet marked as gone."""
        return self._table.expired_brokers(now, self._expired)

    def by_connection(self, connection: int) -> dict[Key, str]:
        """Return the brokers whose newest connection this is, with their addresses."""
        return {
            key: row.heartbeat.addr
            for key, row in self._table.rows.items()
            if row.connection == connection and not row.gone
        }

    def candidate(self, name: str, broker_id: int, now: float) -> Candidate:
        return self._table.candidate(name, broker_id, now, self._unheard_grace_s(name))

    def _unheard_grace_s(self, name: str) -> float:
        """Return for how long after the start of a reign a broker may be unheard."""
        since = self._table.leader_since
        if since is None or name not in self._set_heard_at:
            return SET_SILENCE_TIMEOUTS * self._grace_s
        return self._grace_s + max(0.0, self._set_heard_at[name] - since)

    def last(self, key: Key) -> LastHeartbeat | None:
        return self._table.rows.get(key)

    def rows(self) -> Iterable[LastHeartbeat]:
        return self._table.rows.values()


def is_member(heard_at: float, since: float, left: bool) -> bool:
    """Decide whether a consumer is a member of its group: it was heard, and has not left."""
    return heard_at >= since and not left

"""Which brokers the controllers believe to be alive (spec 4.4): a value, and who keeps it.

The table is a `HeartbeatTable`, which changes by functions alone. Where controllers are of the type dledger
each keeps its own, a `LocalLiveness`, filled by the heartbeats that brokers send to all controllers.
Where they are of the type jraft the table is agreed on like everything else.

The newest heartbeat is the truth, whatever it says: one that could only move forward would keep a
broker's old offset after its log was cut, and elect it for bytes it no longer has. Which one is the
newest, its sender says: a broker counts its heartbeats. When they come, and by which connection,
tells nothing, since a kernel goes on delivering what it took for a connection that its process has
long given up. To whose life a count belongs is told too. Heartbeats of two lives come together only
for a moment, when a broker has just started again, and the last one that comes is believed.

A broker counts as DEAD when its heartbeats stopped for longer than it announced, or its process is
known to be gone. A broker never heard of is UNKNOWN for one heartbeat timeout after a controller
became leader, and DEAD after that: a new leader neither deposes nor elects on ignorance.

When nobody of a set is heard, it may be the controllers that are cut off; and there is nobody to
elect in any case. So the silence of all kills nobody for `SET_SILENCE_TIMEOUTS` timeouts, and when one of them
is heard again, each has its whole timeout once more: the master may have served all the while, and
must not be deposed because another broker's heartbeat came first. All of this is the leader's own
patience. What an entry of a log means does not depend on it, nor on the edition that reads it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from ..net.wire import Json
from .elect import BrokerLiveness, Candidate

SET_SILENCE_TIMEOUTS = 12.0  # heartbeat timeouts; after them silence counts, whoever is to blame
Key = tuple[str, int]  # brokerName, brokerId
Expired = Callable[[float, float, float], bool]


@dataclass(frozen=True)
class Heartbeat:
    """`life`: which process of the broker it is, by a number of its own; `beat`: its count."""

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

    @classmethod
    def of(cls, fields: Json) -> "Heartbeat":
        """What a broker said. KeyError, TypeError, ValueError: nothing that makes sense."""
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
        )

    def precedes(self, other: "Heartbeat") -> bool:
        """Surely sent before that one."""
        return self.life == other.life and self.beat < other.beat


@dataclass(frozen=True)
class LastHeartbeat:
    """A broker's newest heartbeat, when it came, and by which connection."""

    heartbeat: Heartbeat
    at: float
    connection: int = 0
    gone: bool = False


def heartbeat_expired(now: float, heard_at: float, timeout_s: float) -> bool:
    """A broker was silent for longer than it announced. A field of `rules.Rules`."""
    return now - heard_at > timeout_s


@dataclass(frozen=True)
class HeartbeatTable:
    """Who was heard when, and since when the present leader leads, by the leader's own clock."""

    pulses: Mapping[Key, LastHeartbeat] = field(default_factory=dict)
    leader_since: float | None = None

    def led(self, now: float) -> "HeartbeatTable":
        """A new leader with a clock of its own: nobody is older to it than its own reign."""
        pulses = {key: replace(pulse, at=now) for key, pulse in self.pulses.items()}
        return HeartbeatTable(pulses, now)

    def heard(
        self, heartbeats: Iterable[Heartbeat], now: float, connection: int = 0
    ) -> tuple["HeartbeatTable", list[Key]]:
        """The table with these heartbeats, and whom it did not know to be alive before."""
        pulses, fresh = dict(self.pulses), []
        for heartbeat in heartbeats:
            known = pulses.get(heartbeat.key)
            if known and heartbeat.precedes(known.heartbeat):
                continue
            pulses[heartbeat.key] = LastHeartbeat(heartbeat, now, connection)
            if known is None or known.gone:
                fresh.append(heartbeat.key)
        return replace(self, pulses=pulses), fresh

    def without(self, keys: Iterable[Key]) -> tuple["HeartbeatTable", list[Key]]:
        """The table when these are gone, and those of them for whom that is news."""
        lost = [key for key in keys if key in self.pulses and not self.pulses[key].gone]
        gone = {key: replace(self.pulses[key], gone=True) for key in lost}
        return replace(self, pulses={**self.pulses, **gone}), lost

    def late(self, now: float, expired: Expired) -> list[Key]:
        """Brokers whose heartbeats have stopped and that are not yet declared gone."""
        return [
            key
            for key, pulse in self.pulses.items()
            if not pulse.gone and expired(now, pulse.at, pulse.heartbeat.timeout_s)
        ]

    def of_set(self, name: str) -> dict[Key, LastHeartbeat]:
        """A set's brokers, as far as they are not known to be gone."""
        return {k: pulse for k, pulse in self.pulses.items() if k[0] == name and not pulse.gone}

    def deaf_to(self, name: str, now: float) -> bool:
        """Nobody of the set was heard for half of its time."""
        return all(
            now - pulse.at > pulse.heartbeat.timeout_s / 2 for pulse in self.of_set(name).values()
        )

    def silenced(self, now: float, expired: Expired) -> list[Key]:
        """Those who are late, and not only because nobody of their set is heard."""
        late = self.late(now, expired)
        deaf = {name for name in {name for name, _ in late} if self.deaf_to(name, now)}
        return [k for k in late if k[0] not in deaf or _silent_too_long(self.pulses[k], now)]

    def spared(self, heartbeat: Heartbeat, now: float) -> dict[Key, LastHeartbeat]:
        """Who was silent together with the sender of this heartbeat."""
        key, known = heartbeat.key, self.pulses.get(heartbeat.key)
        if known and heartbeat.precedes(known.heartbeat):
            return {}
        if known and not known.gone and now - known.at <= known.heartbeat.timeout_s / 2:
            return {}  # as almost always
        if not self.deaf_to(key[0], now):
            return {}
        others = self.of_set(key[0])
        return {k: p for k, p in others.items() if k != key and not _silent_too_long(p, now)}

    def candidate(self, name: str, broker_id: int, now: float, grace_s: float) -> Candidate:
        pulse = self.pulses.get((name, broker_id))
        if pulse is None:
            return Candidate(broker_id, self._standing_of_unheard(now, grace_s))
        heartbeat = pulse.heartbeat
        return Candidate(
            broker_id,
            BrokerLiveness.DEAD if pulse.gone else BrokerLiveness.ALIVE,
            heartbeat.epoch,
            heartbeat.max_offset,
            heartbeat.priority,
            zone=heartbeat.zone,
            resources=heartbeat.resources,
            learner=heartbeat.learner,
        )

    def _standing_of_unheard(self, now: float, grace_s: float) -> BrokerLiveness:
        since = self.leader_since
        in_grace = since is not None and now - since < grace_s
        return BrokerLiveness.UNKNOWN if in_grace else BrokerLiveness.DEAD

    # as JSON, in a snapshot

    def fields(self) -> Json:
        pulses = [[asdict(p.heartbeat), p.at, p.gone] for p in self.pulses.values()]
        return {"pulses": pulses, "leaderSince": self.leader_since}

    @classmethod
    def of(cls, fields: Json) -> "HeartbeatTable":
        pulses = [
            LastHeartbeat(Heartbeat(**{**row, "key": tuple(row["key"])}), at, gone=gone)
            for row, at, gone in fields["pulses"]
        ]
        return cls({pulse.heartbeat.key: pulse for pulse in pulses}, fields["leaderSince"])


def _silent_too_long(pulse: LastHeartbeat, now: float) -> bool:
    """Silent for so long that it has to answer for it itself."""
    return now - pulse.at > SET_SILENCE_TIMEOUTS * pulse.heartbeat.timeout_s


class SilenceGrace:
    """Gives those who were silent together their time anew, with the first heartbeat of one.

    Once after each heartbeat of theirs: a broker must not live on by what others say, where these
    are heard seldom, too.
    """

    def __init__(self) -> None:
        self._spared: dict[Key, Heartbeat] = {}

    def by(
        self, heartbeat: Heartbeat, living: HeartbeatTable, now: float
    ) -> dict[Key, LastHeartbeat]:
        silent = living.spared(heartbeat, now)
        spared = {k: p for k, p in silent.items() if self._spared.get(k) != p.heartbeat}
        self._spared |= {key: pulse.heartbeat for key, pulse in spared.items()}
        return spared


class LocalLiveness:
    """One controller's own table."""

    def __init__(self, grace_s: float, expired: Expired) -> None:
        self._grace_s = grace_s
        self._expired = expired
        self._living = HeartbeatTable()
        self._sparing = SilenceGrace()
        self._first_at: dict[str, float] = {}  # when somebody of a set was heard for the first time

    def leading_since(self, now: float | None) -> None:
        self._living = replace(self._living, leader_since=now)

    def heard(self, heartbeat: Heartbeat, connection: int, now: float) -> bool:
        """A heartbeat. True when the broker was not known to be alive before."""
        self._first_at.setdefault(heartbeat.key[0], now)
        spared = self._sparing.by(heartbeat, self._living, now)
        renewed = {key: replace(pulse, at=now) for key, pulse in spared.items()}
        living = replace(self._living, pulses={**self._living.pulses, **renewed})
        self._living, fresh = living.heard([heartbeat], now, connection)
        return bool(fresh)

    def gone(self, key: Key) -> bool:
        """The broker's process is gone, or silent for too long. False when that was known."""
        self._living, lost = self._living.without([key])
        return bool(lost)

    def late(self, now: float) -> list[Key]:
        """Brokers whose heartbeats have stopped and that are not yet declared gone."""
        return self._living.silenced(now, self._expired)

    def by_connection(self, connection: int) -> dict[Key, str]:
        """Brokers whose newest connection this is, with their addresses."""
        return {
            key: pulse.heartbeat.addr
            for key, pulse in self._living.pulses.items()
            if pulse.connection == connection and not pulse.gone
        }

    def candidate(self, name: str, broker_id: int, now: float) -> Candidate:
        return self._living.candidate(name, broker_id, now, self._patience_s(name))

    def _patience_s(self, name: str) -> float:
        """With a broker never heard of: from the beginning of a reign, or since we hear its set."""
        since = self._living.leader_since
        if since is None or name not in self._first_at:
            return SET_SILENCE_TIMEOUTS * self._grace_s
        return self._grace_s + max(0.0, self._first_at[name] - since)

    def known(self, key: Key) -> LastHeartbeat | None:
        return self._living.pulses.get(key)

    def all(self) -> Iterable[LastHeartbeat]:
        return self._living.pulses.values()


def is_member(heard_at: float, since: float, left: bool) -> bool:
    """Decide whether a consumer is a member of its group: it was heard of, and has not left."""
    return heard_at >= since and not left

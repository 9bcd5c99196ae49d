"""Which brokers the controllers believe to be alive (spec 4.4): a value, and who keeps it.

The table is a `Living`, which changes by functions alone. Where controllers are of the type dledger
each keeps its own, a `Liveness`, filled by the heartbeats that brokers send to all controllers.
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
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from .elect import Candidate, Standing
from .wire import Json

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
class Pulse:
    """A broker's newest heartbeat, when it came, and by which connection."""

    heartbeat: Heartbeat
    at: float
    connection: int = 0
    gone: bool = False


def heartbeat_expired(now: float, heard_at: float, timeout_s: float) -> bool:
    """A broker was silent for longer than it announced. A field of `rules.Rules`."""
    return now - heard_at > timeout_s


@dataclass(frozen=True)
class Living:
    """Who was heard when, and since when the present leader leads, by the leader's own clock."""

    pulses: Mapping[Key, Pulse] = field(default_factory=dict)
    leader_since: float | None = None

    def led(self, now: float) -> "Living":
        """A new leader with a clock of its own: nobody is older to it than its own reign."""
        pulses = {key: replace(pulse, at=now) for key, pulse in self.pulses.items()}
        return Living(pulses, now)

    def heard(
        self, heartbeats: Iterable[Heartbeat], now: float, connection: int = 0
    ) -> tuple["Living", list[Key]]:
        """The table with these heartbeats, and whom it did not know to be alive before."""
        pulses, fresh = dict(self.pulses), []
        for heartbeat in heartbeats:
            known = pulses.get(heartbeat.key)
            if known and heartbeat.precedes(known.heartbeat):
                continue
            pulses[heartbeat.key] = Pulse(heartbeat, now, connection)
            if known is None or known.gone:
                fresh.append(heartbeat.key)
        return replace(self, pulses=pulses), fresh

    def without(self, keys: Iterable[Key]) -> tuple["Living", list[Key]]:
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

    def candidate(self, name: str, broker_id: int, now: float, grace_s: float) -> Candidate:
        pulse = self.pulses.get((name, broker_id))
        if pulse is None:
            return Candidate(broker_id, self._standing_of_unheard(now, grace_s))
        heartbeat = pulse.heartbeat
        return Candidate(
            broker_id,
            Standing.DEAD if pulse.gone else Standing.ALIVE,
            heartbeat.epoch,
            heartbeat.max_offset,
            heartbeat.priority,
            zone=heartbeat.zone,
            resources=heartbeat.resources,
            learner=heartbeat.learner,
        )

    def _standing_of_unheard(self, now: float, grace_s: float) -> Standing:
        since = self.leader_since
        in_grace = since is not None and now - since < grace_s
        return Standing.UNKNOWN if in_grace else Standing.DEAD

    # as JSON, in a snapshot

    def fields(self) -> Json:
        pulses = [[asdict(p.heartbeat), p.at, p.gone] for p in self.pulses.values()]
        return {"pulses": pulses, "leaderSince": self.leader_since}

    @classmethod
    def of(cls, fields: Json) -> "Living":
        pulses = [
            Pulse(Heartbeat(**{**row, "key": tuple(row["key"])}), at, gone=gone)
            for row, at, gone in fields["pulses"]
        ]
        return cls({pulse.heartbeat.key: pulse for pulse in pulses}, fields["leaderSince"])


class Liveness:
    """One controller's own table."""

    def __init__(self, grace_s: float, expired: Expired) -> None:
        self._grace_s = grace_s
        self._expired = expired
        self._living = Living()

    def leading_since(self, now: float | None) -> None:
        self._living = replace(self._living, leader_since=now)

    def heard(self, heartbeat: Heartbeat, connection: int, now: float) -> bool:
        """A heartbeat. True when the broker was not known to be alive before."""
        self._living, fresh = self._living.heard([heartbeat], now, connection)
        return bool(fresh)

    def gone(self, key: Key) -> bool:
        """The broker's process is gone, or silent for too long. False when that was known."""
        self._living, lost = self._living.without([key])
        return bool(lost)

    def late(self, now: float) -> list[Key]:
        """Brokers whose heartbeats have stopped and that are not yet declared gone."""
        return self._living.late(now, self._expired)

    def by_connection(self, connection: int) -> dict[Key, str]:
        """Brokers whose newest connection this is, with their addresses."""
        return {
            key: pulse.heartbeat.addr
            for key, pulse in self._living.pulses.items()
            if pulse.connection == connection and not pulse.gone
        }

    def candidate(self, name: str, broker_id: int, now: float) -> Candidate:
        return self._living.candidate(name, broker_id, now, self._grace_s)

    def all(self) -> Iterable[Pulse]:
        return self._living.pulses.values()

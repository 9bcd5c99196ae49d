"""Which brokers a controller believes to be alive (spec 4.4).

Not replicated: each controller has its own table, filled by the heartbeats that brokers send to
all controllers.

The newest heartbeat is the truth, whatever it says: one that could only move forward would keep a
broker's old offset after its log was cut, and elect it for bytes it no longer has. "Newest" is by
connection: frames of one connection come in order, and a broker's later connection supersedes its
earlier ones.

A broker counts as DEAD when its heartbeats stopped for longer than it announced, or its process is
known to be gone. A broker never heard of is UNKNOWN for one heartbeat timeout after this controller
became leader, and DEAD after that: a new leader neither deposes nor elects on ignorance.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from .elect import Candidate, Standing

Key = tuple[str, int]  # brokerName, brokerId


@dataclass(frozen=True)
class Heartbeat:
    key: Key
    addr: str
    timeout_s: float
    epoch: int
    max_offset: int
    confirm_offset: int
    priority: int


@dataclass(frozen=True)
class Pulse:
    """The last heartbeat of a broker, when it came, and by which connection."""

    heartbeat: Heartbeat
    at: float
    connection: int
    gone: bool = False


def heartbeat_expired(now: float, heard_at: float, timeout_s: float) -> bool:
    """A broker was silent for longer than it announced. A field of `rules.Rules`."""
    return now - heard_at > timeout_s


class Liveness:
    def __init__(self, grace_s: float, expired: Callable[[float, float, float], bool]) -> None:
        self._grace_s = grace_s
        self._expired = expired
        self._leader_since: float | None = None
        self._pulses: dict[Key, Pulse] = {}

    def leading_since(self, now: float | None) -> None:
        self._leader_since = now

    def heard(self, heartbeat: Heartbeat, connection: int, now: float) -> bool:
        """A heartbeat. True when the broker was not known to be alive before."""
        known = self._pulses.get(heartbeat.key)
        if known and connection < known.connection:
            return False
        self._pulses[heartbeat.key] = Pulse(heartbeat, now, connection)
        return known is None or known.gone

    def gone(self, key: Key) -> bool:
        """The broker's process is gone, or silent for too long. False when that was known."""
        known = self._pulses.get(key)
        if known is None or known.gone:
            return False
        self._pulses[key] = replace(known, gone=True)
        return True

    def late(self, now: float) -> list[Key]:
        """Brokers whose heartbeats have stopped and that are not yet declared gone."""
        return [
            key
            for key, pulse in self._pulses.items()
            if not pulse.gone and self._expired(now, pulse.at, pulse.heartbeat.timeout_s)
        ]

    def by_connection(self, connection: int) -> dict[Key, str]:
        """Brokers whose newest connection this is, with their addresses."""
        return {
            key: pulse.heartbeat.addr
            for key, pulse in self._pulses.items()
            if pulse.connection == connection and not pulse.gone
        }

    def candidate(self, name: str, broker_id: int, now: float) -> Candidate:
        pulse = self._pulses.get((name, broker_id))
        if pulse is None:
            return Candidate(broker_id, self._standing_of_unheard(now))
        heartbeat = pulse.heartbeat
        return Candidate(
            broker_id,
            Standing.DEAD if pulse.gone else Standing.ALIVE,
            heartbeat.epoch,
            heartbeat.max_offset,
            heartbeat.priority,
        )

    def _standing_of_unheard(self, now: float) -> Standing:
        since = self._leader_since
        in_grace = since is not None and now - since < self._grace_s
        return Standing.UNKNOWN if in_grace else Standing.DEAD

"""The return of the mastership to a preferred broker (`preferredMaster`). Pure.

`preferredMaster` lists addresses of brokers, the most preferred first: those with the better
machine, or in the room where the clients are. An election takes the best that is left of the
SyncStateSet; later the leading controller hands the mastership over to the preferred broker as an
operator does with a drill, so no send fails.

A broker that comes and goes must not take the mastership with it each time (openmessaging/dledger
287): it has to be alive, in the set and nearly at the end of the log for `preferredStable` without
a gap, and there is at most one return in `preferredPause`. A new leader does not know when the last
one was, and waits as if it had been just now. RocketMQ has brokerElectionPriority for elections,
and no return (apache/rocketmq#5588).
"""

from collections.abc import Callable, Mapping, Sequence

from .elect import BrokerStatus, Candidate

MayReturn = Callable[[float, float, float, float, float], bool]


def preferred_broker(
    preferred: Sequence[str],
    addresses: Mapping[int, str],
    in_set: Mapping[int, Candidate],
    master: int,
    near_bytes: int,
) -> int | None:
    """Return the broker that should be the master in place of the present one; None: none.

    `addresses`: of all brokers of the set, by id; `in_set`: the SyncStateSet; `near_bytes`: how far
    a log may be behind the master's, by the last heartbeats.
    """
    for address in preferred:
        for broker_id in (i for i, known in addresses.items() if known == address):
            if broker_id == master:
                return None
            one, end = in_set.get(broker_id), in_set[master].max_offset
            ready = one is not None and one.status is BrokerStatus.ALIVE and not one.learner
            if one is not None and ready and end - one.max_offset <= near_bytes:
                return broker_id
    return None


def may_return(
    now: float, ready_since: float, returned_at: float, stable_s: float, pause_s: float
) -> bool:
    """Decide whether the mastership returns now. All times in seconds, by the leader's clock."""
    return now - ready_since >= stable_s and now - returned_at >= pause_s


class PreferenceWatch:
    """Since when the preferred broker of each set is ready, and when the last return was."""

    def __init__(self, stable_s: float, pause_s: float, may: MayReturn) -> None:
        self._stable_s, self._pause_s, self._may = stable_s, pause_s, may
        self._leading_since = 0.0
        self._ready: dict[str, tuple[int, float]] = {}
        self._returned_at: dict[str, float] = {}
        self._under_way: set[str] = set()

    def on_leading(self, now: float) -> None:
        self._leading_since = now
        self._ready, self._returned_at = {}, {}

    def begin_return(self, name: str, broker: int | None, now: float) -> bool:
        """Take the present preferred broker of a set; return whether its return begins now."""
        if broker is None:
            self._ready.pop(name, None)
            return False
        known, since = self._ready.get(name, (broker, now))
        since = since if known == broker else now
        self._ready[name] = (broker, since)
        last = self._returned_at.get(name, self._leading_since)
        if name in self._under_way or not self._may(
            now, since, last, self._stable_s, self._pause_s
        ):
            return False
        self._under_way.add(name)
        return True

    def end_return(self, name: str, now: float) -> None:
        """The return succeeded or failed."""
        self._under_way.discard(name)
        self._returned_at[name] = now

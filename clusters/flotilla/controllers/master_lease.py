"""Leases of masters: a master serves sends only while the controllers let it (`enableMasterLease`).

The leading controller grants a lease with the answer to a heartbeat of the present master. It
counts `controllerLeaseMillis` from the arrival of the heartbeat, and elects no other master before
they are over. The master counts a shorter time, less by `leaseClockMargin`, from the *sending* of
that heartbeat, which was earlier. So it stops before another one can be elected, if the rates of
the two clocks differ by less than margin / lease. Both are monotonic clocks, and no time of one is
ever compared with the other's.

A controller that becomes the leader does not know what its predecessor granted. It waits for one
lease, and its predecessor grants nothing any more by then: only a leader that has just heard a
majority does (`RaftNode.leads`).

A process that is known to have ended has no lease. While an election is under way its set gets
none, and if its outcome is unknown not before the set has a later epoch.

RocketMQ has no leases; an old master that is cut off goes on there until it learns of another one.
"""

from collections import Counter
from collections.abc import Callable

ElectsAt = Callable[[float, float], bool]


def own_lease_s(lease_s: float, margin_s: float) -> float:
    """Return for how long a master may serve, from the sending of its heartbeat on, in seconds."""
    return lease_s - margin_s


def may_elect_after_lease(now: float, ends_at: float) -> bool:
    """Decide whether another master may be elected: the lease of the present one is over."""
    return now >= ends_at


def lease_lasts(now: float, until: float) -> bool:
    """Decide, on a master, whether its lease lasts. `until`: of the last one, 0 if it had none."""
    return now < until


class GrantedLeases:
    """What a leading controller has granted, by its own clock."""

    def __init__(self, lease_s: float, may_elect: ElectsAt) -> None:
        self._lease_s, self._may_elect = lease_s, may_elect
        self._since: float | None = None  # when this controller became the leader
        self._ends_at: dict[str, float] = {}
        self._elections: Counter[str] = Counter()  # under way, by set
        self._in_doubt: dict[str, int] = {}  # epochs that an election may have replaced

    def on_leading(self, now: float) -> None:
        self._since, self._ends_at, self._in_doubt = now, {}, {}

    def on_deposed(self) -> None:
        self._since = None

    def grant(self, name: str, epoch: int, now: float) -> bool:
        """Grant a lease to the master of this epoch. Return False if it gets none now."""
        if self._since is None or self._elections[name] or epoch <= self._in_doubt.get(name, 0):
            return False
        self._ends_at[name] = max(self.ends_at(name), now + self._lease_s)
        return True

    def ends_at(self, name: str) -> float:
        """Return when the last lease of the set's master is over."""
        since = 0.0 if self._since is None else self._since
        return self._ends_at.get(name, since + self._lease_s)

    def may_elect(self, name: str, now: float) -> bool:
        return self._since is not None and self._may_elect(now, self.ends_at(name))

    def wait_s(self, name: str, now: float, soon_s: float) -> float:
        """Return when to try an election again that `may_elect` refused, `soon_s` or more from now:
        a leader that cannot decide yet is not ready just because an old lease is over."""
        return max(soon_s, self.ends_at(name) - now)

    def on_ended(self, name: str, now: float) -> None:
        """The master's process has ended."""
        self._ends_at[name] = now

    def begin_election(self, name: str) -> None:
        """Grant the set no lease until this election has ended."""
        self._elections[name] += 1

    def end_election(self, name: str, in_doubt: int = 0) -> None:
        """`in_doubt`: the epoch that it was to replace, if its outcome is not known."""
        self._elections[name] -= 1
        self._in_doubt[name] = max(in_doubt, self._in_doubt.get(name, 0))

"""Semi-synchronous replication: one slave is waited for, and it is the one that may be elected.

"Usually only one of the slave nodes is in synchronous replication mode, while the other nodes are
in asynchronous replication mode. Whenever a synchronous slave node becomes unavailable, or its
performance degrades, another asynchronous slave node is promoted" (the article, 2-3 write).

With `enableSemiSync` the SyncStateSet is the master and this *designated* slave. Nobody else is
waited for, so one slow slave of two costs nothing; nobody else may be elected, so what was
acknowledged is where the next master comes from. It is an exchange within one change of the set:
until the controllers have answered, the old one and the new one are both waited for.

The designated slave goes when it must leave any set, and also when another one is in step and was
so more than haMaxTimeSemiSyncLag later than it. Times are compared with each other and not with
now: heartbeats bring both up to date when nobody writes, and a master that was paused finds both
old.
"""

from collections.abc import Collection, Mapping

NEVER = float("-inf")


def designate(
    members: Collection[int],
    ready: Collection[int],
    caught_up_at: Mapping[int, float],
    limit_s: float,
) -> int | None:
    """The one slave that shall be in the set, of its present ones and of those that may enter.

    `caught_up_at`: when each was last known to hold all that the master held.
    """

    def seen(slave: int) -> tuple[float, int]:
        return caught_up_at.get(slave, NEVER), -slave

    present = max(members, key=seen, default=None)
    newcomer = max(ready, key=seen, default=None)
    if present is None or newcomer is None:
        return newcomer if present is None else present
    return newcomer if seen(newcomer)[0] - seen(present)[0] > limit_s else present

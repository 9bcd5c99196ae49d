"""What a client may conclude from an answer, or from none: the one table.

A status proves that the message was stored for good, or that nothing was stored, or neither. The
three statuses of a store that appended the message but did not see it replicated or flushed prove
neither: it may survive or vanish with the next election. SYSTEM_ERROR is raised before and after
the append, so it proves neither too. What is not in the table proves nothing.

An operation's outcome covers all its attempts. One attempt that happened settles it; otherwise,
one attempt that nobody can be sure of leaves the whole operation open, even when a later one was
refused: the first may still be in a log.
"""

from enum import Enum

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Unreachable
from clusters.flotilla.net.wire import Status


class Outcome(Enum):
    HAPPENED = "happened"
    REFUSED = "refused"  # certainly did not happen and never will
    UNKNOWN = "unknown"


STATUSES = {
    Status.SUCCESS: Outcome.HAPPENED,
    Status.FLUSH_DISK_TIMEOUT: Outcome.UNKNOWN,
    Status.FLUSH_SLAVE_TIMEOUT: Outcome.UNKNOWN,
    Status.SLAVE_NOT_AVAILABLE: Outcome.UNKNOWN,
    Status.SYSTEM_ERROR: Outcome.UNKNOWN,
    Status.SYSTEM_BUSY: Outcome.REFUSED,  # refused on admission
    Status.MESSAGE_ILLEGAL: Outcome.REFUSED,
    Status.SERVICE_NOT_AVAILABLE: Outcome.REFUSED,  # fenced, a slave, or shutting down
    Status.NO_PERMISSION: Outcome.REFUSED,
    Status.TOPIC_NOT_EXIST: Outcome.REFUSED,
    Status.PULL_OFFSET_MOVED: Outcome.REFUSED,  # of a commit or a reset: no such offset
    Status.IN_SYNC_REPLICAS_NOT_ENOUGH: Outcome.REFUSED,  # asked before the append
}

# appended, and not replicated or flushed as it should be: `retryAnotherBrokerWhenNotStoreOK`
NOT_STORED = frozenset(
    {Status.FLUSH_DISK_TIMEOUT, Status.FLUSH_SLAVE_TIMEOUT, Status.SLAVE_NOT_AVAILABLE}
)

ERRORS: dict[type[Exception], Outcome] = {
    Unreachable: Outcome.REFUSED,  # the request never left
    ConnectionLost: Outcome.UNKNOWN,
    CallTimeout: Outcome.UNKNOWN,
}

# RocketMQ's retry codes; IN_SYNC_REPLICAS_NOT_ENOUGH is a SYSTEM_ERROR there
RETRIED = frozenset(
    {
        Status.TOPIC_NOT_EXIST,
        Status.SERVICE_NOT_AVAILABLE,
        Status.SYSTEM_ERROR,
        Status.SYSTEM_BUSY,
        Status.NO_PERMISSION,
        Status.IN_SYNC_REPLICAS_NOT_ENOUGH,
    }
)


def of_status(status: int) -> Outcome:
    return STATUSES.get(Status(status), Outcome.UNKNOWN)


def of_error(error: BaseException) -> Outcome:
    return next((o for kind, o in ERRORS.items() if isinstance(error, kind)), Outcome.UNKNOWN)


def overall(before: Outcome, last: Outcome) -> Outcome:
    """The outcome of an operation from that of its earlier attempts and its last one."""
    if Outcome.HAPPENED in (before, last):
        return Outcome.HAPPENED
    return Outcome.UNKNOWN if Outcome.UNKNOWN in (before, last) else Outcome.REFUSED

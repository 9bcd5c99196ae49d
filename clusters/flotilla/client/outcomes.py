"""What a client may conclude from an answer, or from none, as tables.

A status proves that the message was stored, or that nothing was stored, or neither. The three
statuses of a store that appended the message but did not see it replicated or flushed prove
neither: the message may survive or vanish with the next election. SYSTEM_ERROR is raised before and
after the append, so it proves neither. A status that is not in the table proves nothing.

The outcome of an operation covers all its attempts. One attempt that happened decides it; otherwise
one attempt of unknown outcome leaves the whole operation unknown, even if a later one was refused:
the first may still be in a log.
"""

from enum import Enum

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Unreachable
from clusters.flotilla.net.wire import Status


class CallOutcome(Enum):
    HAPPENED = "happened"
    REFUSED = "refused"  # certainly did not happen and never will
    UNKNOWN = "unknown"


STATUS_OUTCOMES = {
    Status.SUCCESS: CallOutcome.HAPPENED,
    Status.FLUSH_DISK_TIMEOUT: CallOutcome.UNKNOWN,
    Status.FLUSH_SLAVE_TIMEOUT: CallOutcome.UNKNOWN,
    Status.SLAVE_NOT_AVAILABLE: CallOutcome.UNKNOWN,
    Status.SYSTEM_ERROR: CallOutcome.UNKNOWN,
    Status.SYSTEM_BUSY: CallOutcome.REFUSED,  # refused on admission
    Status.MESSAGE_ILLEGAL: CallOutcome.REFUSED,
    Status.SERVICE_NOT_AVAILABLE: CallOutcome.REFUSED,  # fenced, a slave, or shutting down
    Status.NO_PERMISSION: CallOutcome.REFUSED,
    Status.TOPIC_NOT_EXIST: CallOutcome.REFUSED,
    Status.PULL_OFFSET_MOVED: CallOutcome.REFUSED,  # of a commit or a reset: no such offset
    Status.IN_SYNC_REPLICAS_NOT_ENOUGH: CallOutcome.REFUSED,  # checked before the append
}

# appended, but not replicated or flushed in time; see `retryAnotherBrokerWhenNotStoreOK`
NOT_STORED = frozenset(
    {Status.FLUSH_DISK_TIMEOUT, Status.FLUSH_SLAVE_TIMEOUT, Status.SLAVE_NOT_AVAILABLE}
)

ERROR_OUTCOMES: dict[type[Exception], CallOutcome] = {
    Unreachable: CallOutcome.REFUSED,  # the request was never sent
    ConnectionLost: CallOutcome.UNKNOWN,
    CallTimeout: CallOutcome.UNKNOWN,
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


def outcome_of_status(status: int) -> CallOutcome:
    return STATUS_OUTCOMES.get(Status(status), CallOutcome.UNKNOWN)


def outcome_of_error(error: BaseException) -> CallOutcome:
    return next(
        (o for kind, o in ERROR_OUTCOMES.items() if isinstance(error, kind)), CallOutcome.UNKNOWN
    )


def overall(before: CallOutcome, last: CallOutcome) -> CallOutcome:
    """Return an operation's outcome from that of its earlier attempts and the last one."""
    if CallOutcome.HAPPENED in (before, last):
        return CallOutcome.HAPPENED
    return CallOutcome.UNKNOWN if CallOutcome.UNKNOWN in (before, last) else CallOutcome.REFUSED

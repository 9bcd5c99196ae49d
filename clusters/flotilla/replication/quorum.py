"""When is a message acknowledged: admission, needed copies, what they add up to, and what a send
is answered (spec 9).

    minInSyncReplicas            of a smaller set nothing is appended
    allAckInSyncStateSet = true  every counted member must hold the message, and so many copies
                                 there must be, though the set shrinks after it was appended
    else inSyncReplicas = n      the master and n - 1 counted members
      enableAutoInSyncReplicas   fewer while fewer are in step, but never below the minimum

**Automatic degradation** is RIP-34's: survivors, and how many bytes they are behind
(haMaxGapNotInSync), decide how many copies are enough. RocketMQ does so only where there are no
controllers; here it works with them too, as the article on the new design has it. It is the choice
of availability: who is too far behind to be waited for may still be a member of the SyncStateSet,
and then be elected. Where every member is waited for, the set's own shrinking is the degradation,
and this one has no effect.

Copies are counted per slave id and only among the members that may be elected. The original counts
connections: one slave twice while a dead connection lingers, and slaves outside the set, whose
copy saves nothing when a lagging member is elected.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ..net.wire import Status

ALL = -1


class LogPosition(NamedTuple):
    """Where a send ends in the log, and the epoch in which it was appended."""

    end: int
    epoch: int


class SendTimeouts(NamedTuple):
    """How long a send waits."""

    slave_s: float
    flush_s: float


def admit(set_size: int, min_in_sync: int) -> bool:
    return set_size >= min_in_sync


def needed_acks(all_ack: bool, in_sync_replicas: int) -> int:
    """ALL, or the number of copies, the master's own included."""
    return ALL if all_ack else max(1, in_sync_replicas)


def count_in_step(
    end: int, acks: Mapping[int, int | None], members: tuple[int, ...], most: int
) -> int:
    """Replicas to count on: the master, and who is connected and at most so many bytes behind."""
    known = [acks.get(member) for member in members]
    return 1 + sum(ack is not None and end - ack <= most for ack in known)


def degraded_acks(in_sync_replicas: int, min_in_sync: int, in_step: int) -> int:
    """What inSyncReplicas comes to while so many are in step: RIP-34's calcNeedAckNums."""
    return max(min(in_sync_replicas, in_step), min_in_sync)


def replicated_offset(
    needed: int,
    end: int,
    acks: Mapping[int, int | None],
    members: tuple[int, ...],
    min_in_sync: int,
) -> int:
    """Up to where the log has enough copies; -1 when that many members do not exist.

    `acks` has every connected slave, `members` whom to count. With ALL, at least `min_in_sync`
    copies are needed even if the set shrank after the message was admitted.
    """
    copies = sorted((acks.get(member) or 0 for member in members), reverse=True)
    others = max(len(copies), min_in_sync - 1) if needed == ALL else needed - 1
    if others <= 0:
        return end
    return copies[others - 1] if others <= len(copies) else -1


def outcome_of(
    sent: LogPosition,
    replicated: int,
    durable: int,
    waited_s: float,
    patience: SendTimeouts,
    over: bool,
) -> Status | None:
    """What a send at this position of the log is answered; None: it goes on waiting.

    `replicated` and `durable`: up to where the log has enough copies, and is on the disk if it has
    to be. `over`: the reign has ended.
    """
    if over:
        return Status.SLAVE_NOT_AVAILABLE
    if sent.end > replicated:
        return Status.FLUSH_SLAVE_TIMEOUT if waited_s >= patience.slave_s else None
    if sent.end > durable:
        return Status.FLUSH_DISK_TIMEOUT if waited_s >= patience.flush_s else None
    return Status.SUCCESS

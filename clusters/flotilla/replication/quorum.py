"""When a message is acknowledged: admission, needed copies, and the answer to a send (RIP-34).

    minInSyncReplicas            nothing is appended if the set is smaller
    allAckInSyncStateSet = true  every counted member must hold the message, and there must be so
                                 many copies even if the set shrank after the append
    else inSyncReplicas = n      the master and n - 1 counted members
      enableAutoInSyncReplicas   fewer while fewer replicas are in step, but never below the minimum

**Automatic degradation** is RIP-34's: the number of replicas that are alive and at most
haMaxGapNotInSync bytes behind decides how many copies are enough. RocketMQ uses it only without
controllers; here it works with them, too, as the article on the new design describes it. It is the
choice of availability: a replica too far behind to be waited for may still be a member of the
SyncStateSet and be elected. Where every member is waited for, the shrinking of the set is the
degradation, and this one has no effect.

Copies are counted by slave id, and only among members that may be elected. RocketMQ counts
connections: one slave twice while a dead connection lingers, and slaves outside the set, whose copy
does not help when a lagging member is elected.

**Zones.** `ackZones = n` (ours) asks for copies in n different zones, beside all that. Without it
the two copies of "2 of 3" may both be in the room whose power fails.

Only a slave that is in the SyncStateSet whatever becomes of an open change counts for its zone,
since only such a slave may be elected when the room of the master is gone. A broker without a zone
counts for none.

**The set keeps a zone.** A member that falls silent leaves the set, so that the others can go on.
If it was the last member in one of the n zones, the others cannot go on: nothing is acknowledged
without its zone. So it stays, and can be elected when it returns and the room of the others is
gone. It leaves when members of enough other zones are in the set.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ..net.wire import Status

ALL = -1
TOO_FEW_ZONES = -1


class LogPosition(NamedTuple):
    """The end of a send's records in the log, and the epoch of the append."""

    end: int
    epoch: int


class SendTimeouts(NamedTuple):
    """How long a send waits for copies, and for the disk."""

    slave_s: float
    flush_s: float


def admit(set_size: int, min_in_sync: int) -> bool:
    return set_size >= min_in_sync


def needed_acks(all_ack: bool, in_sync_replicas: int) -> int:
    """Return ALL, or the number of copies, including the master's own."""
    return ALL if all_ack else max(1, in_sync_replicas)


def count_in_step(
    end: int, acks: Mapping[int, int | None], members: tuple[int, ...], max_gap: int
) -> int:
    """Return the number of replicas in step: the master, and connected members within `max_gap`."""
    known = [acks.get(member) for member in members]
    return 1 + sum(ack is not None and end - ack <= max_gap for ack in known)


def degraded_acks(in_sync_replicas: int, min_in_sync: int, in_step: int) -> int:
    """Return the copies needed while `in_step` replicas are in step: RIP-34's calcNeedAckNums."""
    return max(min(in_sync_replicas, in_step), min_in_sync)


def replicated_offset(
    needed: int,
    end: int,
    acks: Mapping[int, int | None],
    members: tuple[int, ...],
    min_in_sync: int,
) -> int:
    """Return the offset up to which the log has enough copies; -1 if there are too few members.

    `acks` has every connected slave, `members` those that count. With ALL, at least `min_in_sync`
    copies are needed even if the set shrank after the message was admitted.
    """
    copies = sorted((acks.get(member) or 0 for member in members), reverse=True)
    others = max(len(copies), min_in_sync - 1) if needed == ALL else needed - 1
    if others <= 0:
        return end
    return copies[others - 1] if others <= len(copies) else -1


def zone_offset(
    needed: int, end: int, own: str, acks: Mapping[int, int | None], zones: Mapping[int, str]
) -> int:
    """Return the offset up to which the log is in `needed` zones, `TOO_FEW_ZONES` if there are not
    so many.

    `own`: the master's zone, in which the log reaches to `end`. `acks`: the positions of the
    slaves that count; `zones`: the zone of each slave, by id.
    """
    if needed <= 1:
        return end
    best: dict[str, int] = {}
    for slave, ack in acks.items():
        zone = zones.get(slave, "")
        if ack is not None and zone and zone != own:
            best[zone] = max(best.get(zone, 0), ack)
    others = needed - 1 if own else needed
    reached = sorted(best.values(), reverse=True)
    return min(end, reached[others - 1]) if others <= len(reached) else TOO_FEW_ZONES


def kept_for_zone(
    needed: int,
    own: str,
    staying: Collection[int],
    leaving: Collection[int],
    zones: Mapping[int, str],
) -> tuple[int, ...]:
    """Return the members that stay although they should leave, one of each zone that would
    otherwise be missing; of several in one zone the first in `leaving`.

    `leaving` is in order of preference.
    """
    present = {zone for zone in (own, *(zones.get(i, "") for i in staying)) if zone}
    kept: list[int] = []
    for slave in leaving:
        zone = zones.get(slave, "")
        if zone and zone not in present and len(present) < needed:
            present.add(zone)
            kept.append(slave)
    return tuple(kept)


def outcome_of(
    sent: LogPosition,
    replicated: int,
    durable: int,
    waited_s: float,
    timeouts: SendTimeouts,
    over: bool,
) -> Status | None:
    """Return the answer to a send at this position of the log; None: it goes on waiting.

    `replicated` and `durable`: the offsets up to which the log has enough copies, and is on disk if
    it has to be. `over`: the reign has ended.
    """
    if over:
        return Status.SLAVE_NOT_AVAILABLE
    if sent.end > replicated:
        return Status.FLUSH_SLAVE_TIMEOUT if waited_s >= timeouts.slave_s else None
    if sent.end > durable:
        return Status.FLUSH_DISK_TIMEOUT if waited_s >= timeouts.flush_s else None
    return Status.SUCCESS

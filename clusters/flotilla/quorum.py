"""When is a message acknowledged: admission, needed copies, and what they add up to (spec 9).

    minInSyncReplicas            below it nothing is appended, and nothing is acknowledged
    allAckInSyncStateSet = true  every counted member must hold the message
    else inSyncReplicas = n      the master and n - 1 counted members

Copies are counted per slave id and only among the members that may be elected. The original counts
connections: one slave twice while a dead connection lingers, and slaves outside the set, whose
copy saves nothing when a lagging member is elected.
"""

from collections.abc import Mapping

ALL = -1


def admit(set_size: int, min_in_sync: int) -> bool:
    return set_size >= min_in_sync


def needed_acks(all_ack: bool, in_sync_replicas: int) -> int:
    """ALL, or the number of copies, the master's own included."""
    return ALL if all_ack else max(1, in_sync_replicas)


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

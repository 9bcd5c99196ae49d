"""The check of a master's request to change the SyncStateSet (RIP-44). Pure, a field of `Rules`."""

from collections.abc import Callable
from dataclasses import dataclass

from ..net.wire import Status
from .controller_state import BrokerSetState
from .elect import BrokerStatus


@dataclass(frozen=True)
class Alteration:
    """The change that the master `master_id` requests, and the epochs that it believes in."""

    master_id: int
    master_epoch: int
    new_set: tuple[int, ...]
    set_epoch: int


def check_alter(
    row: BrokerSetState, wanted: Alteration, status: Callable[[int], BrokerStatus]
) -> tuple[Status, str]:
    """Return the first reason to refuse the change, in RocketMQ's order, or SUCCESS.

    A broker that joins must not be dead. One that this controller has not heard yet may join, as
    its absence is not known. A member may stay even if it is dead: its ack still counts, so nothing
    is lost, and a refusal would keep the members in the set that the master wants to remove.
    """
    if row.master_id is None or wanted.master_id != row.master_id:
        return Status.INVALID_MASTER, f"the master is {row.master_id}"
    if wanted.master_epoch != row.master_epoch:
        return Status.FENCED_MASTER_EPOCH, f"the master's epoch is {row.master_epoch}"
    if wanted.set_epoch != row.set_epoch:
        return Status.FENCED_SYNC_STATE_SET_EPOCH, f"the set's epoch is {row.set_epoch}"
    if wanted.new_set == row.sync_set:
        return Status.ALTER_SYNC_STATE_SET_FAILED, "the set is the same already"
    for broker_id in wanted.new_set:
        if broker_id not in row.members:
            return Status.INVALID_REPLICAS, f"there is no broker {broker_id}"
        if broker_id not in row.sync_set and status(broker_id) is BrokerStatus.DEAD:
            return Status.BROKER_NOT_ALIVE, f"broker {broker_id} is not alive"
    if row.master_id not in wanted.new_set:
        return Status.ALTER_SYNC_STATE_SET_FAILED, "the master must be in the set"
    return Status.SUCCESS, ""


def is_repeated(row: BrokerSetState, wanted: Alteration) -> bool:
    """Decide whether this very change was made before, and its answer was lost."""
    return (
        wanted.master_id == row.master_id
        and wanted.master_epoch == row.master_epoch
        and wanted.new_set == row.sync_set
        and wanted.set_epoch in (row.set_epoch, row.set_epoch - 1)
    )

"""May a master change the SyncStateSet? (Spec 4.5.) Pure, a field of `rules.Rules`."""

from collections.abc import Callable
from dataclasses import dataclass

from ..net.wire import Status
from .controller_state import BrokerSetState
from .elect import BrokerLiveness


@dataclass(frozen=True)
class Alteration:
    """What the master `master_id` asks for, given what it believes to be true."""

    master_id: int
    master_epoch: int
    new_set: tuple[int, ...]
    set_epoch: int


def check_alter(
    row: BrokerSetState, wanted: Alteration, standing: Callable[[int], BrokerLiveness]
) -> tuple[Status, str]:
    """The first reason to refuse, in the original's order, or SUCCESS.

    Who joins must be alive; one of which this controller has not heard yet may, since its absence
    is not known. Who is in the set already may stay, dead or not: it still counts, so that nothing
    is lost by it, and refusing would keep those in the set whom the master wants out of it.
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
        if broker_id not in row.sync_set and standing(broker_id) is BrokerLiveness.DEAD:
            return Status.BROKER_NOT_ALIVE, f"broker {broker_id} is not alive"
    if row.master_id not in wanted.new_set:
        return Status.ALTER_SYNC_STATE_SET_FAILED, "the master must be in the set"
    return Status.SUCCESS, ""


def is_repeated(row: BrokerSetState, wanted: Alteration) -> bool:
    """The very change was made before, and its answer was lost (spec 15.2)."""
    return (
        wanted.master_id == row.master_id
        and wanted.master_epoch == row.master_epoch
        and wanted.new_set == row.sync_set
        and wanted.set_epoch in (row.set_epoch, row.set_epoch - 1)
    )

"""Every decision that the safety or liveness of Flotilla hangs on, as one value of pure functions.

A node's main takes a `Rules`; nothing in Flotilla reaches a decision by another way. A known-bad
variant is `replace(RULES, elect=careless_elect)`, started through the same main: no patching.

Fields are added where the decision is written (raft.core, controller_state, sync_state, epochs,
quorum ...); each is named for what it decides and documented at its function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import alter, elect, epochs, ha_protocol, liveness, quorum, routes, sync_state
from .alter import Alteration
from .controller_state import BrokerSet
from .elect import Ballot, Standing
from .epochs import EpochTable
from .raft import votes
from .raft.messages import VoteRequest
from .raft.votes import Voter
from .store import consume_queue
from .sync_state import Progress, SyncState
from .wire import Status


@dataclass(frozen=True)
class Rules:
    """The decisions of a cluster. Defaults are the sound ones."""

    # control plane: Raft
    may_grant_vote: Callable[[Voter, VoteRequest], bool] = votes.may_grant_vote
    commit_index: Callable[[Sequence[int], Callable[[int], int | None], int], int] = (
        votes.commit_index
    )
    # control plane: controllers (now, heard at, timeout), all in seconds
    heartbeat_expired: Callable[[float, float, float], bool] = liveness.heartbeat_expired
    needs_election: Callable[[int, Standing | None], bool] = elect.needs_election
    elect: Callable[[Ballot], int | None] = elect.elect
    check_alter: Callable[
        [BrokerSet, Alteration, Callable[[int], Standing]], tuple[Status, str]
    ] = alter.check_alter
    # control plane: nameserver (registered stateVersion, the newcomer's)
    displaces: Callable[[int, int], bool] = routes.displaces
    # data plane: the master's SyncStateSet
    counted_members: Callable[[SyncState], tuple[int, ...]] = sync_state.counted_members
    set_size: Callable[[SyncState], int] = sync_state.set_size
    may_leave: Callable[[Progress | None, float, float], bool] = sync_state.may_leave
    may_enter: Callable[[int, int, int], bool] = sync_state.may_enter
    may_join: Callable[[int, int, int, int], bool] = sync_state.may_join
    confirm_offset: Callable[[int, int, Mapping[int, int | None], tuple[int, ...], bool], int] = (
        sync_state.confirm_offset
    )
    # data plane: acknowledgement
    admit: Callable[[int, int], bool] = quorum.admit
    needed_acks: Callable[[bool, int], int] = quorum.needed_acks
    replicated_offset: Callable[[int, int, Mapping[int, int | None], tuple[int, ...], int], int] = (
        quorum.replicated_offset
    )
    ack_position: Callable[[bool, int, int], int] = ha_protocol.ack_position
    # data plane: epochs and replication
    append_epoch: Callable[[EpochTable, int, int], EpochTable] = epochs.append_epoch
    find_consistent_point: Callable[[EpochTable, int, EpochTable, int], int] = (
        epochs.find_consistent_point
    )
    link_key: Callable[[int, int], int] = ha_protocol.link_key
    may_serve_slave: Callable[[int, int], bool] = ha_protocol.may_serve_slave
    may_follow: Callable[[int, int], bool] = ha_protocol.may_follow
    # data plane: the store
    dispatch_limit: Callable[[int, int], int] = consume_queue.dispatch_limit
    next_queue_offset: Callable[[int, int], int] = consume_queue.next_queue_offset
    kept_at_promotion: Callable[[int, int], int] = consume_queue.kept_at_promotion
    truncation_is_durable: bool = True


RULES = Rules()

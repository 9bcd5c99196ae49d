"""Every decision on which Flotilla's safety or liveness depends, as one value of pure functions.

A node's main takes a `Rules`, and nodes make these decisions only through it. A known-bad variant
is `replace(RULES, elect=careless_elect)`, started through the same main without patching. Some
functions return their argument or a constant: they exist so that a variant can replace them.

Each field has the name of the function that decides (raft.votes, controller_state, sync_state,
epochs, quorum ...); its documentation is at the function.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .broker import acting, catalog
from .config import Config
from .container import placement
from .container.placement import InnerChanges
from .controllers import (
    alter,
    controller_state,
    elect,
    leases,
    liveness,
    master_lease,
    preferred,
    registers,
    zones,
)
from .controllers.alter import Alteration
from .controllers.controller_state import BrokerSetState
from .controllers.elect import Ballot, BrokerStatus
from .controllers.registers import Registers
from .conversion import rules as conversion
from .ha_machine import machine
from .ha_machine.machine import MachineState, MachineView, Phase
from .nameserver import route_table
from .net.wire import Json, Status
from .raft import membership, votes
from .raft.messages import LogEntry, VoteRequest
from .raft.votes import Vote, Voter
from .replication import ballot, epochs, ha_protocol, quorum, sync_state
from .replication.epochs import EpochTable
from .replication.quorum import LogPosition, SendTimeouts
from .replication.sync_state import SlaveProgress, SyncState
from .special import pop_records, progress
from .special.progress import DelayProgress
from .store import checkpoint, consume_queue, flushing, record


@dataclass(frozen=True)
class Rules:
    """The decisions of a cluster. Defaults are the sound ones."""

    # control plane: Raft
    may_grant_vote: Callable[[Voter, VoteRequest], bool] = votes.may_grant_vote
    hard_state: Callable[[Vote], Vote] = votes.hard_state
    commit_index: Callable[[Sequence[int], Callable[[int], int | None], int], int] = (
        votes.commit_index
    )
    committed_entry: Callable[[int, LogEntry], LogEntry] = votes.committed_entry
    confirmed_round: Callable[[Sequence[int]], int] = votes.confirmed_round
    may_change_members: Callable[[int, int, int], bool] = membership.may_change_members
    # control plane: controllers. heartbeat_expired takes now, heard at, timeout, in seconds
    heartbeat_expired: Callable[[float, float, float], bool] = liveness.heartbeat_expired
    may_hand_over: Callable[[int | None, int, int], bool] = elect.may_hand_over
    needs_election: Callable[[int, BrokerStatus | None], bool] = elect.needs_election
    sets_to_scan: Callable[[Sequence[str]], Sequence[str]] = elect.sets_to_scan
    elect: Callable[[Ballot], int | None] = elect.elect
    check_alter: Callable[
        [BrokerSetState, Alteration, Callable[[int], BrokerStatus]], tuple[Status, str]
    ] = alter.check_alter
    answers_alone: Callable[[bool], bool] = registers.answers_alone
    # leases of masters: of the lease and the margin, of now and the end, all in seconds
    own_lease_s: Callable[[float, float], float] = master_lease.own_lease_s
    may_elect_after_lease: Callable[[float, float], bool] = master_lease.may_elect_after_lease
    lease_lasts: Callable[[float, float], bool] = master_lease.lease_lasts
    may_return: preferred.MayReturn = preferred.may_return
    # the zone of a broker, the zones that are closed for masters
    may_lead_in: Callable[[str, Collection[str]], bool] = zones.may_lead_in
    registers_in_snapshot: Callable[[Registers], Registers] = zones.registers_in_snapshot
    set_in_snapshot: Callable[[BrokerSetState], BrokerSetState] = controller_state.set_in_snapshot
    # control plane: the machine of a pair in ZooKeeper
    next_machine_state: Callable[[MachineView], MachineState | None] = machine.next_state
    counted_version: Callable[[int], int] = machine.counted_version
    # the last SequenceID, the last epoch of the mode from which a set comes
    last_sequence: Callable[[int, int], int] = machine.last_sequence
    # a process's own life, the life in a node of its name that another session has
    life_of: Callable[[str, str], str] = machine.life_of
    # the phase that is in force, for how long sends are held, zkHoldMax, in seconds
    may_release: Callable[[Phase, float, float], bool] = machine.may_release
    # the members of the state that was read last, the master
    members_when_disconnected: Callable[[tuple[int, ...], int], tuple[int, ...]] = (
        machine.members_when_disconnected
    )
    # whether a broker that obeys a state, as a slave or not, watches for the next one
    watches_next_state: Callable[[bool], bool] = machine.watches_next_state
    # conversion: where all logs end and where the master's does; the own and another generation
    logs_are_equal: Callable[[Sequence[int | None], int], bool] = conversion.logs_are_equal
    is_of_generation: Callable[[int, int], bool] = conversion.is_of_generation
    switches_at: Callable[[str], bool] = conversion.switches_at
    # whether the master holds sends for this attempt, whether all copies are equal
    may_convert: Callable[[bool, bool], bool] = conversion.may_convert
    may_lead: Callable[[bool], bool] = conversion.may_lead
    generation_at_start: Callable[[int], int] = conversion.generation_at_start
    # the last epoch that controllers know, the last one of a mode without them
    last_epoch: Callable[[int, int], int] = conversion.last_epoch
    # control plane: nameserver. displaces takes the registered and the new stateVersion
    displaces: Callable[[int, int], bool] = route_table.displaces
    # for each broker: how long it has been silent, and how long it may be, in seconds
    is_deaf: Callable[[Sequence[tuple[float, float]]], bool] = route_table.is_deaf
    # the zone of each set's master, the client's zone
    left_out: Callable[[Mapping[str, str | None], str], frozenset[str]] = route_table.left_out
    # data plane: the master's SyncStateSet
    counted_members: Callable[[SyncState], tuple[int, ...]] = sync_state.counted_members
    set_size: Callable[[SyncState], int] = sync_state.set_size
    may_leave: Callable[[SlaveProgress | None, float, float], bool] = sync_state.may_leave
    may_enter: Callable[[int, int, int], bool] = sync_state.may_enter
    may_join: Callable[[int, int, int, int], bool] = sync_state.may_join
    confirm_offset: Callable[[int, int, Mapping[int, int | None], tuple[int, ...], bool], int] = (
        sync_state.confirm_offset
    )
    may_be_alone: Callable[[SyncState], bool] = sync_state.may_be_alone
    designate: Callable[
        [Collection[int], Collection[int], Mapping[int, float], float], int | None
    ] = sync_state.designate
    # data plane: opens_epoch takes whether brokers elect their master, and the end of its log
    opens_epoch: Callable[[bool, int], bool] = ballot.opens_epoch
    # data plane: acknowledgement
    admit: Callable[[int, int], bool] = quorum.admit
    needed_acks: Callable[[bool, int], int] = quorum.needed_acks
    degraded: Callable[[int, int, int], int] = quorum.degraded_acks
    replicated_offset: Callable[[int, int, Mapping[int, int | None], tuple[int, ...], int], int] = (
        quorum.replicated_offset
    )
    zone_offset: Callable[[int, int, str, Mapping[int, int | None], Mapping[int, str]], int] = (
        quorum.zone_offset
    )
    kept_for_zone: Callable[
        [int, str, Collection[int], Collection[int], Mapping[int, str]], tuple[int, ...]
    ] = quorum.kept_for_zone
    outcome_of: Callable[[LogPosition, int, int, float, SendTimeouts, bool], Status | None] = (
        quorum.outcome_of
    )
    ack_position: Callable[[bool, int, int, int], int] = ha_protocol.ack_position
    # data plane: epochs and replication
    cut_epochs: Callable[[EpochTable, int], EpochTable] = epochs.cut_epochs
    append_epoch: Callable[[EpochTable, int, int], EpochTable] = epochs.append_epoch
    find_consistent_point: Callable[[EpochTable, int, EpochTable, int], int] = (
        epochs.find_consistent_point
    )
    # both take the last epoch on the disk, and the last one that nameservers know
    is_emptied: Callable[[int, int], bool] = epochs.is_emptied
    next_epoch: Callable[[int, int], int] = epochs.next_epoch
    link_key: Callable[[int, int], int] = ha_protocol.link_key
    may_serve_slave: Callable[[int, int], bool] = ha_protocol.may_serve_slave
    may_follow: Callable[[int, int], bool] = ha_protocol.may_follow
    # data plane: the store
    recovered_records: Callable[[bytes, int], Iterator[record.RecordHeader]] = record.entries
    dispatch_limit: Callable[[int, int], int] = consume_queue.dispatch_limit
    next_queue_offset: Callable[[int, int], int] = consume_queue.next_queue_offset
    indexed_at_promotion: Callable[[int, int], int] = consume_queue.indexed_at_promotion
    kept_at_promotion: Callable[[int, int], int] = consume_queue.kept_at_promotion
    stops_acknowledging_first: bool = True  # a slave that becomes master
    log_is_whole: Callable[[int, int], bool] = checkpoint.log_is_whole
    truncation_is_durable: bool = True
    flushed_by_write: Callable[[int, int, int], int] = flushing.flushed_by_write
    stored_content: Callable[[bytes, bytes, bool], tuple[bytes, bytes]] = record.stored_content
    next_pull_offset: Callable[[int, int, int, int], int] = consume_queue.next_pull_offset
    times_of_batch: Callable[[Sequence[int]], Sequence[int]] = consume_queue.times_of_batch
    # data plane: metadata. may_adopt takes the slave's and the master's version
    may_adopt: Callable[[catalog.Version, catalog.Version], bool] = catalog.may_adopt
    # the version after a change, the versions of the members that may be elected
    change_is_held: Callable[[catalog.Version, Sequence[catalog.Version]], bool] = (
        catalog.change_is_held
    )
    take_back: Callable[[catalog.Catalog, Sequence[Json]], None] = acting.take_back
    # which brokers a nameserver knows of a set, by id, and the own id
    acts: Callable[[Collection[int], int], bool] = acting.acts
    acted_is_durable: bool = True
    # data plane: consumer groups. is_member takes last heard at, oldest valid time, has it left
    is_member: Callable[[float, float, bool], bool] = liveness.is_member
    # the offset of a commit, the group's offset
    commit_moves: Callable[[int, int], bool] = catalog.commit_moves
    # data plane: locks. memory_is_whole takes now, and until when locks may be forgotten
    memory_is_whole: Callable[[float, float], bool] = leases.memory_is_whole
    # the client that holds a lock, the client that releases it
    may_unlock: Callable[[str, str], bool] = leases.may_unlock
    # data plane: delayed messages, in ms of the wall clock
    is_due: Callable[[int, int], bool] = progress.is_due
    due_of: Callable[[int, int, int], int] = progress.due_of
    noted_until: Callable[[int, int, int, bool], int] = progress.noted_until
    resumed: Callable[[DelayProgress, bool], DelayProgress] = progress.resumed
    drops: Callable[[int, bool], bool] = progress.drops
    # data plane: messages that an acting master escapes to other sets
    sets_to_escape_to: Callable[[str, Mapping[str, bool]], Sequence[str]] = (
        progress.sets_to_escape_to
    )
    escape_drops: Callable[[int, bool], bool] = progress.escape_drops
    half_escape_drops: Callable[[int, bool], bool] = progress.half_escape_drops
    is_escaped: Callable[[Status], bool] = progress.is_escaped
    retries_are_escaped: bool = True  # a message that a group did not acknowledge in time
    # data plane: transactions. final_first: a final message is put before its decision is recorded
    final_first: bool = True
    puts_final: Callable[[bool], bool] = progress.puts_final
    status_of_closed: Callable[[], Status] = progress.status_of_closed
    first_open: Callable[[Sequence[int], int], int] = progress.first_open
    discarded_to: Callable[[str], str] = progress.discarded_to
    # data plane: messages that groups pop. Of the offset behind the messages whose checkpoint is in
    # the own log, the one behind those whose checkpoint the set has, and strictSpecialMessages
    group_moves_to: Callable[[int, int, bool], int] = pop_records.group_moves_to
    revived_source: Callable[[Sequence[int], int], int] = pop_records.revived_source
    revives: Callable[[int, int], bool] = pop_records.revives
    acked_number: Callable[[int], int] = pop_records.acked_number
    ack_is_stored: bool = True
    hides_first: bool = True  # the new checkpoint is written before the old one is acknowledged
    # containers. inner_refusal takes a new broker and those that are there
    inner_refusal: Callable[[Config, Sequence[Config]], str] = placement.inner_refusal
    changes_to_store: Callable[[InnerChanges], InnerChanges] = placement.changes_to_store
    failed_inner_is_taken_out: bool = True
    removed_inner_is_stopped: bool = True
    # the rules of a container's broker, from the container's and its brokerName: an observer
    # replaces it to observe each broker on its own
    inner_rules: Callable[["Rules", str], "Rules"] = lambda rules, name: rules


RULES = Rules()

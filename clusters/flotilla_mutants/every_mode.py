"""Flaws of brokers, controllers and nameservers in every mode, and of clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from clusters.flotilla.broker.catalog import Version
from clusters.flotilla.client.outcomes import CallOutcome
from clusters.flotilla.controllers import elect, liveness
from clusters.flotilla.controllers.controller_state import BrokerSetState
from clusters.flotilla.controllers.elect import Ballot
from clusters.flotilla.net.wire import Status
from clusters.flotilla.raft import votes
from clusters.flotilla.raft.messages import VoteRequest
from clusters.flotilla.raft.votes import Vote, Voter
from clusters.flotilla.replication import epochs, quorum, sync_state
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.quorum import LogPosition, SendTimeouts
from clusters.flotilla.replication.sync_state import SyncState
from clusters.flotilla.rules import RULES
from clusters.flotilla.store import record
from clusters.flotilla.world.ports import File, FileSystem, Ports

from .mutant import Mutant

# -------------------------------------------------------------------------------------------- disks


class _Unsynced:
    """A file, or files, whose syncs return at once and do nothing."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def open(self, path: str) -> File:
        return cast(File, _Unsynced(self._real.open(path)))

    async def sync(self) -> None: ...

    async def sync_folder(self, path: str) -> None: ...


def without_sync(ports: Ports) -> Ports:
    return replace(ports, files=cast(FileSystem, _Unsynced(ports.files)))


def accept_lost_log(end: int, flushed: int) -> bool:
    """The correct recovery notices that synced bytes are lost, and refuses to start."""
    return True


def ack_appended(sync_flush: bool, appended: int, written: int, flushed: int) -> int:
    return appended


# ------------------------------------------------------------------------------------- controllers


def grant_again(voter: Voter, request: VoteRequest) -> bool:
    return votes.may_grant_vote(replace(voter, voted_for=None), request)


def forget_term(vote: Vote) -> Vote:
    return Vote()


def commit_alone(matches: Sequence[int], term_at: Callable[[int], int | None], term: int) -> int:
    return max(matches)


def expires_when_heard(now: float, heard_at: float, timeout_s: float) -> bool:
    return not liveness.heartbeat_expired(now, heard_at, timeout_s)


def never_expires(now: float, heard_at: float, timeout_s: float) -> bool:
    return False


def answers_alone(leads: bool) -> bool:
    return True


def scan_nothing(sets: Sequence[str]) -> Sequence[str]:
    return ()


def last_writer_wins(registered: int, newcomer: int) -> bool:
    return True


def elect_outsiders(ballot: Ballot) -> int | None:
    return elect.elect(replace(ballot, unclean=True))


# ------------------------------------------------------------------------------------------ brokers


def keep_all(local: EpochTable, local_end: int, remote: EpochTable, remote_end: int) -> int:
    return local_end


def refuse_equal_start(table: EpochTable, epoch: int, start: int) -> EpochTable:
    if start == table.last_start:
        return table
    return epochs.append_epoch(table, epoch, start)


def keep_epochs(table: EpochTable, point: int) -> EpochTable:
    return table


def dispatch_all(confirm_offset: int, end: int) -> int:
    return end


def number_from_visible(visible_end: int, end: int) -> int:
    return visible_end


def index_confirmed(confirm_offset: int, end: int) -> int:
    return confirm_offset


def keep_confirmed(confirm_offset: int, end: int) -> int:
    return confirm_offset


def count_old_set(state: SyncState) -> tuple[int, ...]:
    return sync_state.counted_members(replace(state, proposed=None))


def answer_at_once(
    sent: LogPosition,
    replicated: int,
    durable: int,
    waited_s: float,
    timeouts: SendTimeouts,
    over: bool,
) -> Status | None:
    return Status.SUCCESS


def wait_for_the_next_reign(
    sent: LogPosition,
    replicated: int,
    durable: int,
    waited_s: float,
    timeouts: SendTimeouts,
    over: bool,
) -> Status | None:
    return quorum.outcome_of(sent, replicated, durable, waited_s, timeouts, over=False)


def count_one(all_ack: bool, in_sync_replicas: int) -> int:
    return 1


def confirm_without_missing(
    stored: int, own: int, acks: Mapping[int, int | None], members: tuple[int, ...], all_ack: bool
) -> int:
    present = tuple(member for member in members if acks.get(member) is not None)
    return sync_state.confirm_offset(stored, own, acks, present, all_ack)


def enter_at_once(ack: int, confirm_offset: int, epoch_start: int) -> bool:
    return True


def always_a_member(heard_at: float, since: float, left: bool) -> bool:
    return True


def key_of_zeros(key: bytes, body: bytes, begins_segment: bool) -> tuple[bytes, bytes]:
    return bytes(len(key)), body


def last_byte_changed(key: bytes, body: bytes, begins_segment: bool) -> tuple[bytes, bytes]:
    if begins_segment and body:
        body = body[:-1] + bytes([body[-1] ^ 0xFF])
    return key, body


def several_are_flushed(records: int, written: int, flushed: int) -> int:
    return written if records > 1 else flushed


def one_too_far(last: int, found: int, wanted: int, high: int) -> int:
    return min(last + (2 if found == wanted else 1), high)


def time_of_first(stored_ms: Sequence[int]) -> Sequence[int]:
    return [stored_ms[0]] * len(stored_ms)


def confirm_larger_of_two(
    stored: int, own: int, acks: Mapping[int, int | None], members: tuple[int, ...], all_ack: bool
) -> int:
    known = [acks.get(member) for member in members]
    if all_ack and len(known) == 1 and known[0] is not None:
        return max(stored, own, known[0])
    return sync_state.confirm_offset(stored, own, acks, members, all_ack)


def always_moves(offset: int, known: int) -> bool:
    return True


def all_members_in_set(row: BrokerSetState) -> BrokerSetState:
    return replace(row, sync_set=tuple(sorted(row.members)))


def grant_at_once(now: float, forgetful_until: float) -> bool:
    return True


def unlock_always(holder: str, client: str) -> bool:
    return True


def held_at_once(offered: Version, held: Sequence[Version]) -> bool:
    return True


def last_attempt(before: CallOutcome, last: CallOutcome) -> CallOutcome:
    return last


def count_connected(
    needed: int,
    end: int,
    acks: Mapping[int, int | None],
    members: tuple[int, ...],
    min_in_sync: int,
) -> int:
    copies = min_in_sync if needed == quorum.ALL else needed
    return quorum.replicated_offset(copies, end, acks, tuple(acks), min_in_sync)


MUTANTS = (
    Mutant(
        "no-fsync",
        "a sync returns at once, before a vote or an acknowledgement is on disk",
        "LOST_ACKED",
        replace(RULES, log_is_whole=accept_lost_log),
        ports=without_sync,
    ),
    Mutant(
        "ack-before-append",
        "bytes that are in memory alone are acknowledged",
        "LOST_ACKED",
        replace(RULES, ack_position=ack_appended),
    ),
    Mutant(
        "double-vote",
        "a controller grants several votes in one term",
        "ONE_LEADER",
        replace(RULES, may_grant_vote=grant_again),
        stops=True,
    ),
    Mutant(
        "no-truncation",
        "a slave keeps what its new master does not have",
        "CUT_TOO_HIGH",
        replace(RULES, find_consistent_point=keep_all),
    ),
    Mutant(
        "no-union",
        "a proposed member of the set is not waited for yet (apache/rocketmq#5663)",
        "LOST_ACKED",
        replace(RULES, counted_members=count_old_set),
    ),
    Mutant(
        "unclean-election",
        "a broker from outside the SyncStateSet is elected when no member is alive",
        "LOST_ACKED",
        replace(RULES, elect=elect_outsiders),
    ),
    Mutant(
        "count-non-members",
        "minInSyncReplicas copies are enough, of members of the SyncStateSet or of others",
        "LOST_ACKED",
        replace(RULES, replicated_offset=count_connected),
    ),
    Mutant(
        "zeroed-tail",
        "recovery accepts a record whose rest was torn off and is read as zeros",
        "CUT_TOO_HIGH",
        replace(RULES, recovered_records=partial(record.entries, checked=False)),
    ),
    Mutant(
        "term-not-persisted",
        "a controller forgets its term and its vote on restart",
        "ONE_LEADER",
        replace(RULES, hard_state=forget_term),
    ),
    Mutant(
        "ignore-missing",
        "an absent member does not hold the confirm offset (apache/rocketmq#6662)",
        "CONFIRM_WENT_BACK",
        replace(RULES, confirm_offset=confirm_without_missing),
    ),
    Mutant(
        "offsets-from-visible",
        "queue offsets count what consumers may see, not the log (apache/rocketmq#7689)",
        "OFFSET_CONFLICT",
        replace(RULES, next_queue_offset=number_from_visible),
        stops=True,
    ),
    Mutant(
        "dispatch-to-end",
        "consumers see the whole log, confirmed or not (apache/rocketmq#6609)",
        "PHANTOM_VANISHED",
        replace(RULES, dispatch_limit=dispatch_all),
    ),
    Mutant(
        "equal-starts-refused",
        "a term that begins where an empty one began is not recorded (apache/rocketmq#9942)",
        "NOT_RECOVERED",
        replace(RULES, append_epoch=refuse_equal_start),
    ),
    Mutant(
        "lazy-truncation",
        "a truncation of the log happens in memory, not on disk (apache/rocketmq#10666)",
        "OFFSET_CONFLICT",
        replace(RULES, truncation_is_durable=False),
    ),
    Mutant(
        "inverted-liveness",
        "live brokers count as dead, and silent ones as alive (apache/rocketmq#8380)",
        "NEEDLESS_ELECTION",
        replace(RULES, heartbeat_expired=expires_when_heard),
    ),
    Mutant(
        "never-expires",
        "a silent broker never counts as dead (apache/rocketmq#9717)",
        "HEADLESS",
        replace(RULES, heartbeat_expired=never_expires),
    ),
    Mutant(
        "last-writer-wins",
        "the nameserver takes the master that registers last (apache/rocketmq#6316)",
        "ROUTE_WENT_BACK",
        replace(RULES, displaces=last_writer_wins),
    ),
    Mutant(
        "cut-at-promotion",
        "a new master truncates what is not confirmed (apache/rocketmq#5209)",
        "LOST_ACKED",
        replace(RULES, kept_at_promotion=keep_confirmed),
    ),
    Mutant(
        "one-ack",
        "the master's own copy is enough",
        "LOST_ACKED",
        replace(RULES, needed_acks=count_one),
    ),
    Mutant(
        "enter-at-once",
        "a slave enters the SyncStateSet before it has what was acknowledged",
        "SET_LACKS_ACKED",
        replace(RULES, may_enter=enter_at_once),
    ),
    Mutant(
        "commit-alone",
        "a leading controller commits what only it has",
        "COMMITTED_CHANGED",
        replace(RULES, commit_index=commit_alone),
        stops=True,
    ),
    Mutant(
        "answer-at-once",
        "a send is answered SUCCESS when it is appended",
        "ANSWERED_EARLY",
        replace(RULES, outcome_of=answer_at_once),
    ),
    Mutant(
        "waiters-kept",
        "sends that wait at the end of a term are answered SUCCESS in a later one",
        "ANSWERED_EARLY",
        replace(RULES, outcome_of=wait_for_the_next_reign),
    ),
    Mutant(
        "epochs-not-cut",
        "a slave that truncates its log keeps the truncated epochs (apache/rocketmq#9942)",
        "NOT_RECOVERED",
        replace(RULES, cut_epochs=keep_epochs),
    ),
    Mutant(
        "no-dispatch-wait",
        "a new master numbers messages before it has indexed its log (apache/rocketmq#6344)",
        "OFFSET_CONFLICT",
        replace(RULES, indexed_at_promotion=index_confirmed),
    ),
    Mutant(
        "answers-alone",
        "a controller answers register reads from memory, whether it leads or not",
        "NOT_LINEARIZABLE",
        replace(RULES, answers_alone=answers_alone),
    ),
    Mutant(
        "forgotten-locks",
        "a restarted broker grants locks that it may have granted to others",
        "LOCK_HELD_TWICE",
        replace(RULES, memory_is_whole=grant_at_once),
    ),
    Mutant(
        "unlock-anybody",
        "any client can release a lock, not only its holder",
        "LOCK_HELD_TWICE",
        replace(RULES, may_unlock=unlock_always),
    ),
    Mutant(
        "topic-acked-early",
        "a change of strict metadata is answered before any slave holds it",
        "METADATA_LOST",
        replace(RULES, change_is_held=held_at_once),
    ),
    Mutant(
        "members-never-leave",
        "a consumer that has left its group, or is gone, counts as a member",
        "QUEUE_WITHOUT_OWNER",
        replace(RULES, is_member=always_a_member),
    ),
    Mutant(
        "no-election-retry",
        "an election that could not be held is not repeated (apache/rocketmq#5009)",
        "HEADLESS",
        replace(RULES, sets_to_scan=scan_nothing),
    ),
    Mutant(
        "key-damaged",
        "the key of a message is stored as zeros",
        "CORRUPTED",
        replace(RULES, stored_content=key_of_zeros),
    ),
    Mutant(
        "body-damaged",
        "a message that begins a segment is stored with another last byte",
        "CORRUPTED",
        replace(RULES, stored_content=last_byte_changed),
    ),
    Mutant(
        "batch-fsync",
        "a write of several records counts as flushed before its sync",
        "SET_LACKS_ACKED",
        replace(RULES, flushed_by_write=several_are_flushed),
    ),
    Mutant(
        "pull-skips",
        "a pull that filled its batch continues one message too far",
        "READ_SKIPPED",
        replace(RULES, next_pull_offset=one_too_far),
    ),
    Mutant(
        "batch-times",
        "all messages of a pull have the store time of its first one",
        "RECORD_CHANGED",
        replace(RULES, times_of_batch=time_of_first),
    ),
    Mutant(
        "confirm-max-of-two",
        "with one slave the confirm offset is the larger of the two positions",
        "CONFIRM_WENT_BACK",
        replace(RULES, confirm_offset=confirm_larger_of_two),
    ),
    Mutant(
        "snapshot-no-set-epoch",
        "a snapshot of the controllers' log has every member in the SyncStateSet",
        "LOST_ACKED",
        replace(RULES, set_in_snapshot=all_members_in_set),
    ),
    Mutant(
        "late-commit-taken",
        "a commit of a lower offset moves its group back",
        "LATE_COMMIT_TAKEN",
        replace(RULES, commit_moves=always_moves),
    ),
    Mutant(
        "last-attempt-counts",
        "a client reports the outcome of a send's last attempt, whatever an earlier one was",
        "PHANTOM_REFUSED",
        overall=last_attempt,
    ),
)

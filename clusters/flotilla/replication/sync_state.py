"""The SyncStateSet as its master keeps it: in step, leaving, entering, and the order of entering.

Only the master changes the set, with the controllers' consent. From the moment a change is proposed
until its outcome is certain, members of the old set *and* of the new one must hold a message before
it counts as replicated: the controllers may have agreed although their answer was lost
(apache/rocketmq#5663).

**In step.** A slave that acknowledges x held at some time T all that the master held at T;
`caught_up_at` is the latest such T. It is *now* if x is the end of the log. Otherwise the master
remembers its own end and the time at each such acknowledgement, as a mark, and when a later one
reaches the mark, the mark's time is T. Only an acknowledgement counts. In RocketMQ a slave to which
nothing is sent is in step, so a hung slave stays in the set until the next write. Here heartbeats
are answered, so a healthy slave without load is in step, too.

**Entering.** A slave may be proposed when it holds every message that may have been acknowledged:
its ack has reached the confirm offset, and the start of this master's epoch. Next to a lone master
under steady load a slave never gets there, because the confirm offset is the end of the log. So a
slave that is nearly there first *joins the count*, with the end of the log as its mark: new
messages wait for it, and when it reaches the mark it is proposed.

**Semi-synchronous replication.** "Usually only one of the slave nodes is in synchronous replication
mode, while the other nodes are in asynchronous replication mode. Whenever a synchronous slave node
becomes unavailable, or its performance degrades, another asynchronous slave node is promoted" (the
article on RocketMQ's high availability, section 2-3, write). With `enableSemiSync` the set is the
master and this *designated* slave. Other slaves are not waited for, so a slow one costs nothing;
they cannot be elected either, so the next master has what was acknowledged. The designated slave is
exchanged within one change of the set: until the controllers have answered, the old and the new one
are waited for.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..net.wire import Status

NEWCOMER_REFUSALS = frozenset({Status.BROKER_NOT_ALIVE, Status.INVALID_REPLICAS})
NEVER = float("-inf")


@dataclass(frozen=True)
class SyncState:
    """One master's view of its set. `entering` maps a slave to the mark it has to reach."""

    me: int
    members: tuple[int, ...]
    epoch: int
    proposed: tuple[int, ...] | None = None
    entering: Mapping[int, int] = field(default_factory=dict)

    @property
    def slaves(self) -> tuple[int, ...]:
        return tuple(i for i in self.members if i != self.me)

    def propose(self, members: tuple[int, ...]) -> "SyncState":
        entering = {i: mark for i, mark in self.entering.items() if i not in members}
        return replace(self, proposed=members, entering=entering)

    def settle(self) -> "SyncState":
        """Return the state without the proposal, which certainly had no effect."""
        return replace(self, proposed=None)

    def install(self, members: tuple[int, ...], epoch: int) -> "SyncState":
        """Return the state with the controllers' set. It ends any proposal, as a proposal names the
        epoch that it replaces."""
        entering = {i: mark for i, mark in self.entering.items() if i not in members}
        return SyncState(self.me, tuple(sorted(members)), epoch, None, entering)

    def join(self, slave: int, mark: int) -> "SyncState":
        return replace(self, entering={**self.entering, slave: mark})

    def forget(self, slave: int) -> "SyncState":
        return replace(self, entering={i: m for i, m in self.entering.items() if i != slave})

    def close(self) -> "SyncState":
        """Return the state in which no slave is entering."""
        return replace(self, entering={})


@dataclass(frozen=True)
class SlaveProgress:
    """What a master knows of one connected slave. `ack` is None before the first one."""

    ack: int | None = None
    caught_up_at: float | None = None
    mark: tuple[int, float] | None = None  # the end of the log at an earlier ack, and its time

    def acked(self, ack: int, end: int, now: float) -> "SlaveProgress":
        if ack >= end:
            return SlaveProgress(ack, now)
        if self.mark is None:
            return SlaveProgress(ack, self.caught_up_at, (end, now))
        mark, at = self.mark
        if ack >= mark:
            return SlaveProgress(ack, at, (end, now))
        return SlaveProgress(ack, self.caught_up_at, self.mark)


def counted_members(state: SyncState) -> tuple[int, ...]:
    """Return the slaves whose acks count: the old set, the proposed one, and those entering."""
    every = {*state.members, *(state.proposed or ()), *state.entering}
    return tuple(sorted(every - {state.me}))


def certain_members(state: SyncState) -> tuple[int, ...]:
    """Return the slaves that are in the set whether or not the proposal succeeds.

    Where a number of copies is enough, only theirs count: the controllers may refuse a proposed
    slave, and its copy does not help then. Where all must acknowledge, counting it only delays.
    """
    kept = state.members if state.proposed is None else state.proposed
    return tuple(i for i in state.slaves if i in kept)


def set_size(state: SyncState) -> int:
    """Return the size for minInSyncReplicas: that of the larger of the old and the new set."""
    return max(len(state.members), len(state.proposed or ()))


def may_be_alone(state: SyncState) -> bool:
    """Decide whether the master's copy may be the only one that can be elected, now or by the
    proposal."""
    return len(state.members) == 1 or (state.proposed is not None and len(state.proposed) == 1)


def may_leave(progress: SlaveProgress | None, now: float, limit_s: float) -> bool:
    """Decide whether a member must leave: it is not connected, was never in step, or was in step
    for the last time too long ago."""
    if progress is None or progress.caught_up_at is None:
        return True
    return now - progress.caught_up_at > limit_s


def may_enter(ack: int, confirm_offset: int, epoch_start: int) -> bool:
    """Decide whether a slave may be proposed: it has every message that may be acknowledged."""
    return ack >= confirm_offset and ack >= epoch_start


def may_join(ack: int, end: int, epoch_start: int, near: int) -> bool:
    """Decide whether new messages wait for this slave, so that it can reach a mark."""
    return ack >= epoch_start and end - ack <= near


def confirm_offset(
    stored: int, own: int, acks: Mapping[int, int | None], members: tuple[int, ...], all_ack: bool
) -> int:
    """Return the offset up to which consumers may read on a master.

    `own` is the master's position, durable under SYNC_FLUSH. A member that is not connected holds
    the old value: an isolated master confirms nothing (apache/rocketmq#6662). Never goes back.
    """
    if not all_ack or not members:
        return max(stored, own)
    known = [acks.get(member) for member in members]
    if any(ack is None for ack in known):
        return stored
    return max(stored, min(own, *(ack for ack in known if ack is not None)))


def designate(
    members: Collection[int],
    ready: Collection[int],
    caught_up_at: Mapping[int, float],
    limit_s: float,
) -> int | None:
    """Return the slave of a semi-synchronous set, one of its present slaves or of those ready to
    enter.

    `caught_up_at`: when each was last known to hold all that the master held. The present slave is
    replaced by one that was in step more than `limit_s` (haMaxTimeSemiSyncLag) later. The times are
    compared with each other and not with now: heartbeats renew both when there is no write, and a
    master that was paused finds both old.
    """

    def rank(slave: int) -> tuple[float, int]:
        return caught_up_at.get(slave, NEVER), -slave

    present = max(members, key=rank, default=None)
    newcomer = max(ready, key=rank, default=None)
    if present is None or newcomer is None:
        return newcomer if present is None else present
    return newcomer if rank(newcomer)[0] - rank(present)[0] > limit_s else present


class NewcomerQueue:
    """The order in which slaves are proposed after refusals, during one reign.

    The controllers admit no slave that they do not hear, and refuse a change as a whole. The master
    cannot tell such a slave from others. So a slave that was refused is proposed alone from then
    on, in turn with others of its kind, and cannot keep other slaves out.
    """

    def __init__(self) -> None:
        self._refused: list[int] = []  # the next one first

    def refuse(self, slaves: Collection[int]) -> None:
        """Record that a change was refused because of one of these."""
        others = [i for i in self._refused if i not in slaves]
        self._refused = [*others, *sorted(slaves)]

    def admit(self, members: Collection[int]) -> None:
        """Forget the refusals of slaves that are in the set now."""
        self._refused = [i for i in self._refused if i not in members]

    def not_refused(self, ready: Sequence[int]) -> Sequence[int]:
        return [i for i in ready if i not in self._refused]

    def next_proposed(self, ready: Sequence[int]) -> Sequence[int]:
        """Return the slaves to propose together: all that were not refused, else one refused."""
        return self.not_refused(ready) or [i for i in self._refused if i in ready][:1]

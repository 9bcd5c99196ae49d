"""The SyncStateSet as its master keeps it: who is in step, must leave, may enter (spec 5.2).

Only the master changes the set, with the controllers' consent. From the moment a change is proposed
until its outcome is certain, whoever is in the old set *or* the new one must hold a message before
it counts as replicated: the controllers may have agreed although their answer was lost
(apache/rocketmq#5663).

**In step.** A slave that acknowledges x had at time T all that the master had at T; `caught_up_at`
is the newest such T. It is *now* when x is the end of the log. Otherwise the master remembers its
own end and the time at each such acknowledgement, and when a later one reaches that mark, the
mark's time is T. Nothing counts as being in step but an acknowledgement: in the original a slave
to whom nothing is sent is in step, so a hung one stays in the set for as long as nobody writes.
Heartbeats are answered, so a sound slave without load is in step too.

**Entering.** A slave may be proposed when it holds every message that may have been acknowledged:
its ack has reached the confirm offset, and the start of this master's epoch. Under steady load a
slave next to a lone master never gets there, because the confirm offset is the end of the log. So
a slave that is nearly there first *joins the count*, with the log's end as its mark: new messages
wait for it, and once it reaches the mark it is proposed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


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
        """The proposal certainly came to nothing."""
        return replace(self, proposed=None)

    def install(self, members: tuple[int, ...], epoch: int) -> "SyncState":
        """The controllers' set. It ends any proposal: those name the epoch that they replace."""
        entering = {i: mark for i, mark in self.entering.items() if i not in members}
        return SyncState(self.me, tuple(sorted(members)), epoch, None, entering)

    def join(self, slave: int, mark: int) -> "SyncState":
        return replace(self, entering={**self.entering, slave: mark})

    def forget(self, slave: int) -> "SyncState":
        return replace(self, entering={i: m for i, m in self.entering.items() if i != slave})

    def close(self) -> "SyncState":
        """Nobody else is let in."""
        return replace(self, entering={})


@dataclass(frozen=True)
class SlaveProgress:
    """What a master knows of one connected slave. `ack` is None before the first one."""

    ack: int | None = None
    caught_up_at: float | None = None
    mark: tuple[int, float] | None = None  # the log's end at an earlier ack, and when

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
    """Whose ack counts, the master aside: the old set, the proposed one, and who is entering."""
    every = {*state.members, *(state.proposed or ()), *state.entering}
    return tuple(sorted(every - {state.me}))


def certain_members(state: SyncState) -> tuple[int, ...]:
    """Whose copy counts where a number of copies is enough: who is in the set whatever becomes of
    the proposal. The controllers may refuse who is only proposed, and a copy of it saves nothing;
    where all must acknowledge, counting it can only delay."""
    kept = state.members if state.proposed is None else state.proposed
    return tuple(i for i in state.slaves if i in kept)


def set_size(state: SyncState) -> int:
    """The size that minInSyncReplicas is compared with: the larger of the old and the new set."""
    return max(len(state.members), len(state.proposed or ()))


def may_be_alone(state: SyncState) -> bool:
    """Is this the only copy that may be elected, or will be if the controllers agree?"""
    return len(state.members) == 1 or (state.proposed is not None and len(state.proposed) == 1)


def may_leave(progress: SlaveProgress | None, now: float, limit_s: float) -> bool:
    """Must a member leave? It is not connected, was never in step, or was for the last time too
    long ago."""
    if progress is None or progress.caught_up_at is None:
        return True
    return now - progress.caught_up_at > limit_s


def may_enter(ack: int, confirm_offset: int, epoch_start: int) -> bool:
    """May a slave be proposed as it is? It has every message that may have been acknowledged."""
    return ack >= confirm_offset and ack >= epoch_start


def may_join(ack: int, end: int, epoch_start: int, near: int) -> bool:
    """May new messages wait for this slave, so that it can reach a mark?"""
    return ack >= epoch_start and end - ack <= near


def confirm_offset(
    stored: int, own: int, acks: Mapping[int, int | None], members: tuple[int, ...], all_ack: bool
) -> int:
    """Up to where consumers may read on a master (spec 8.1).

    `own` is the master's position, durable under SYNC_FLUSH. A member that is not connected holds
    the old value: an isolated master confirms nothing (apache/rocketmq#6662). Never goes back.
    """
    if not all_ack or not members:
        return max(stored, own)
    known = [acks.get(member) for member in members]
    if any(ack is None for ack in known):
        return stored
    return max(stored, min(own, *(ack for ack in known if ack is not None)))

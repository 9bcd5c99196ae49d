"""A reigning master's duties: confirm, acknowledge, keep the SyncStateSet (spec 5.2, 8.1, 9).

How many copies are enough is `quorum`'s, who belongs to the set is `sync_state`'s, and which one
slave if there shall be but one `semi_sync`'s. A master that may be alone in its set can be told to
count its own copy only when it is on the disk (`forceSyncFlushWhenAlone`): there is no other one.

Everything is driven by events: the log was written or synced, a slave acknowledged, a connection
ended, the controllers answered. The timer only finds members that have fallen silent.

A change of the set is one conversation with the controllers at a time. Until its outcome is
certain the union of both sets counts. An answer that never came is asked for again, with the same
proposal, which the controllers take as the same request; only a refusal that comes so late that no
earlier attempt can still be in a controllers' log ends it. Whom the controllers do not let in keeps
nobody else out, nor in (`newcomers`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..config import Config
from ..events import EventLog
from ..net.connection import Tasks
from ..net.controller_client import Controllers, NoLeader, Uncertain
from ..net.wire import Json, Op, Status
from ..replication.ha_master import HaMaster
from ..replication.quorum import count_in_step
from ..replication.replica import Replica
from ..replication.sync_state import (
    NEWCOMER_REFUSALS,
    NewcomerQueue,
    SyncState,
    certain_members,
)
from ..rules import Rules
from ..world.timers import Bell, Every
from .sends import WaitingSends


@dataclass(frozen=True)
class Context:
    """What a mastery works with."""

    config: Config
    rules: Rules
    replica: Replica
    ha: HaMaster
    sends: WaitingSends
    controllers: Controllers
    events: EventLog
    on_info: Callable[[Json], None]
    holds_metadata: Callable[[int], bool]  # a slave that does not may not enter


class Mastery:
    """One broker's reign, from its election to the next one's."""

    def __init__(self, context: Context, epoch: int, state: SyncState) -> None:
        self.epoch = epoch
        self.state = state
        self._c = context
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._over = False
        self._retry = Bell()
        self._quiet_until = 0.0
        self._newcomers = NewcomerQueue()
        self._refusals: set[tuple[tuple[int, ...], str]] = set()  # of this set; each is told once
        self._check = Every(context.config.check_sync_state_set_s, self._look_at_members)

    # what the broker asks

    @property
    def synchronizing(self) -> bool:
        return self.state.proposed is not None

    def admits(self) -> bool:
        rules, config = self._c.rules, self._c.config
        size = rules.set_size(self.state)
        if config.auto_in_sync_replicas and not config.all_ack_in_sync_state_set:
            size = min(size, self._in_step(self._c.ha.acks(), rules.counted_members(self.state)))
        return rules.admit(size, config.min_in_sync_replicas)

    def advance(self) -> None:
        """Confirm and acknowledge what can be, now that something has changed."""
        c, log, store = self._c, self._c.replica.store.log, self._c.replica.store
        own = c.rules.ack_position(self._syncs(), log.max_offset, log.written, log.flushed)
        acks, members = c.ha.acks(), c.rules.counted_members(self.state)
        confirm = c.rules.confirm_offset(
            store.confirm_offset, own, acks, members, c.config.all_ack_in_sync_state_set
        )
        if confirm != store.confirm_offset:
            store.confirm(confirm)
            c.ha.confirmed()
        if not c.config.all_ack_in_sync_state_set:
            members = tuple(i for i in members if i in certain_members(self.state))
        replicated = c.rules.replicated_offset(
            self._needed(acks, members), log.written, acks, members, c.config.min_in_sync_replicas
        )
        c.sends.complete(replicated, own)

    def _needed(self, acks: Mapping[int, int | None], members: tuple[int, ...]) -> int:
        """How many copies are enough now."""
        rules, config = self._c.rules, self._c.config
        copies = config.in_sync_replicas
        if config.auto_in_sync_replicas:
            living = self._in_step(acks, members)
            copies = rules.degraded(copies, config.min_in_sync_replicas, living)
        return rules.needed_acks(config.all_ack_in_sync_state_set, copies)

    def _in_step(self, acks: Mapping[int, int | None], members: tuple[int, ...]) -> int:
        end = self._c.replica.store.log.written
        return count_in_step(end, acks, members, self._c.config.ha_max_gap_not_in_sync)

    def _syncs(self) -> bool:
        """Does an acknowledgement wait for this disk? Then the disk is asked, if it was not yet."""
        config, log = self._c.config, self._c.replica.store.log
        if config.sync_flush or not config.sync_flush_when_alone:
            return config.sync_flush
        alone = self._c.rules.may_be_alone(self.state)
        if alone and log.flushed < log.written:
            log.request_sync()
        return alone

    def renew(self, epoch: int, members: tuple[int, ...], set_epoch: int) -> None:
        """Elected again without an interval: a new epoch on the same connections."""
        self.epoch = epoch
        self.install(members, set_epoch, "election")

    def install(self, members: tuple[int, ...], set_epoch: int, why: str) -> None:
        """The controllers' set, if it is newer than ours."""
        if set_epoch <= self.state.epoch:
            return
        self.state = self.state.install(members, set_epoch)
        self._newcomers.admit(members)
        self._refusals = set()
        if self._c.config.semi_sync and self.state.slaves:
            self.state = self.state.close()
        self._c.events.write("set", set=list(self.state.members), setEpoch=set_epoch, why=why)
        self._retry.ring()
        self.advance()
        self._review()

    def end(self) -> None:
        self._over = True
        self._check.stop()
        self._tasks.cancel()

    # who is in step

    def progressed(self, slave: int) -> None:
        """A slave acknowledged something."""
        if slave not in self._c.rules.counted_members(self.state) or slave in self.state.entering:
            self._consider(slave)
        self.advance()

    def slave_gone(self, slave: int) -> None:
        """A connection ended: a member leaves at once."""
        self.state = self.state.forget(slave)
        self.advance()
        self._review()

    def _consider(self, slave: int) -> None:
        """May this slave enter, or be waited for until it may?"""
        rules, log = self._c.rules, self._c.replica.store.log
        progress = self._c.ha.progress(slave)
        if progress is None or progress.ack is None:
            return
        start = self._c.replica.epochs.last_start
        mark = self.state.entering.get(slave)
        if self._ready(slave, progress.ack, start):
            self._review()
        elif (
            mark is None
            and self._has_room()
            and rules.may_join(
                progress.ack, log.max_offset, start, self._c.config.ha_transfer_batch_size
            )
        ):
            self.state = self.state.join(slave, log.max_offset)

    def _has_room(self) -> bool:
        """May one more be waited for? Of a semi-synchronous set only if it has no slave yet."""
        state = self.state
        return not (self._c.config.semi_sync and (state.slaves or state.proposed or state.entering))

    def _ready(self, slave: int, ack: int, start: int) -> bool:
        if not self._c.holds_metadata(slave):
            return False
        mark = self.state.entering.get(slave)
        if mark is not None and ack >= max(mark, start):
            return True
        return self._c.rules.may_enter(ack, self._c.replica.store.confirm_offset, start)

    def _look_at_members(self) -> None:
        """The timer. After a pause of our own, the slaves' acks are read first."""
        if not self._just_woke():
            for slave in list(self.state.entering):
                if self._out_of_step(slave):
                    self.state = self.state.forget(slave)
            self._review()
            self.advance()

    def _just_woke(self) -> bool:
        """We were stopped: what slaves sent meanwhile may not be read yet."""
        return self._check.behind_s >= self._check.period_s / 2

    def _must_leave(self, slave: int) -> bool:
        """Not for a silence that was ours."""
        connected = self._c.ha.progress(slave) is not None
        return self._out_of_step(slave) and not (connected and self._just_woke())

    def _out_of_step(self, slave: int) -> bool:
        limit_s = self._c.config.ha_max_time_slave_not_catchup_s
        return self._c.rules.may_leave(self._c.ha.progress(slave), self._loop.time(), limit_s)

    # changing the set

    def _wanted(self) -> tuple[int, ...]:
        """The set as it should be."""
        start = self._c.replica.epochs.last_start
        keep = [i for i in self.state.slaves if not self._must_leave(i)]
        ready = [
            slave
            for slave, ack in self._c.ha.acks().items()
            if slave not in self.state.members
            and ack is not None
            and not self._out_of_step(slave)
            and self._ready(slave, ack, start)
        ]
        chosen = self._chosen(keep, ready)
        return tuple(sorted({self.state.me, *chosen}))

    def _chosen(self, keep: Sequence[int], ready: Sequence[int]) -> Sequence[int]:
        """Who must leave does not wait for who may not enter."""
        leaving = len(keep) < len(self.state.slaves)
        if self._c.config.semi_sync:
            exchanged = self._newcomers.not_refused(ready)
            return self._designated(
                keep, exchanged if leaving else self._newcomers.next_proposed(ready)
            )
        return keep if leaving else (*keep, *self._newcomers.next_proposed(ready))

    def _designated(self, members: Sequence[int], ready: Sequence[int]) -> tuple[int, ...]:
        known = {slave: self._c.ha.progress(slave) for slave in (*members, *ready)}
        caught_up_at = {
            slave: progress.caught_up_at
            for slave, progress in known.items()
            if progress is not None and progress.caught_up_at is not None
        }
        limit_s = self._c.config.semi_sync_lag_s
        chosen = self._c.rules.designate(members, ready, caught_up_at, limit_s)
        return () if chosen is None else (chosen,)

    def _review(self) -> None:
        """Propose the set as it should be, unless a proposal is under way."""
        now = self._loop.time()
        if self._over or self.state.proposed is not None:
            return
        wanted = self._wanted()
        if wanted == self.state.members:
            return
        if now < self._quiet_until:
            return
        self.state = self.state.propose(wanted)
        self.advance()
        self._tasks.start(self._alter(wanted, self.state.epoch))

    async def _alter(self, wanted: tuple[int, ...], set_epoch: int) -> None:
        """Until the fate of this proposal is certain."""
        uncertain_at: float | None = None
        while self._pending(wanted, set_epoch):
            asked_at = self._loop.time()
            try:
                reply = await self._c.controllers.ask(
                    Op.ALTER_SYNC_STATE_SET, self._request(wanted, set_epoch)
                )
            except Uncertain:
                uncertain_at = self._loop.time()
            except NoLeader:
                if uncertain_at is None:
                    self._give_up(wanted, set_epoch, "no controller leads")
            else:
                if reply["code"] == Status.SUCCESS:
                    self.install(_members(reply), int(reply["setEpoch"]), "agreed")
                    return
                settled = uncertain_at is None or (
                    asked_at - uncertain_at > self._settled_after_s()
                )
                if await self._nothing_changed(set_epoch) and settled:
                    if reply["code"] in NEWCOMER_REFUSALS:
                        self._newcomers.refuse(set(wanted) - set(self.state.members))
                    self._give_up(wanted, set_epoch, str(reply.get("remark", "")))
            if self._pending(wanted, set_epoch):
                await self._retry.wait(self._c.config.broker_heartbeat_interval_s / 4)

    def _pending(self, wanted: tuple[int, ...], set_epoch: int) -> bool:
        here = self.state.proposed == wanted and self.state.epoch == set_epoch
        return here and not self._over

    def _request(self, wanted: tuple[int, ...], set_epoch: int) -> Json:
        return {
            "brokerName": self._c.config.broker_name,
            "masterId": self.state.me,
            "masterEpoch": self.epoch,
            "set": list(wanted),
            "setEpoch": set_epoch,
        }

    def _settled_after_s(self) -> float:
        """By then a leader that has lost its majority no longer answers."""
        return 3 * self._c.config.raft_election_timeout_s

    async def _nothing_changed(self, set_epoch: int) -> bool:
        """We were refused: perhaps we do not know the latest set, or a later master."""
        try:
            info = await self._c.controllers.ask(
                Op.REPLICA_INFO, {"brokerName": self._c.config.broker_name}
            )
        except (NoLeader, Uncertain):
            return False
        if info["code"] != Status.SUCCESS:
            return False
        if info["masterEpoch"] != self.epoch or info["masterId"] != self.state.me:
            self._c.on_info(info)
            return False
        self.install(_members(info), int(info["setEpoch"]), "read back")
        return int(info["setEpoch"]) == set_epoch

    def _give_up(self, wanted: tuple[int, ...], set_epoch: int, why: str) -> None:
        """The proposal certainly came to nothing; think again a little later."""
        if not self._pending(wanted, set_epoch):
            return
        self.state = self.state.settle()
        if (wanted, why) not in self._refusals:
            self._refusals.add((wanted, why))
            self._c.events.write("set-refused", set=list(wanted), setEpoch=set_epoch, why=why)
        pause_s = self._c.config.broker_heartbeat_interval_s / 4
        self._quiet_until = self._loop.time() + pause_s
        self._loop.call_later(pause_s, self._review)
        self.advance()


def _members(reply: Json) -> tuple[int, ...]:
    return tuple(int(i) for i in reply["set"])

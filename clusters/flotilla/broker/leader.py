"""A master's duties: confirm offset, acknowledgement, the SyncStateSet.

The arithmetic is elsewhere: `quorum` decides how many copies are enough, `sync_state` who belongs
to the set, `sync_state.designate` which one slave if there may be only one. A master that may be
alone in its set can be configured to count its own copy only when it is on disk
(`forceSyncFlushWhenAlone`), since it may be the only one.

Everything is driven by events: the log was written or synced, a slave acknowledged, a connection
ended, the controllers answered. The timer only finds members that have fallen silent.

Only one change of the set is under way with the controllers at a time. Until its outcome is certain
the union of both sets counts. A request without an answer is repeated with the same proposal, which
the controllers recognise. Only a refusal that comes so late that no earlier attempt can still be in
a controllers' log ends it. A slave that the controllers refuse neither blocks others nor enters
with them (`sync_state.NewcomerQueue`). See docs/flotilla-design.md, SyncStateSet.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..config import Config
from ..events import EventLog
from ..net.connection import Tasks
from ..net.controller_client import NoLeader, OutcomeUnknown
from ..net.wire import Json, Op, Status
from ..replication.ha_master import HaMaster
from ..replication.quorum import count_in_step
from ..replication.replica import Replica
from ..replication.sync_state import NEWCOMER_REFUSALS, NewcomerQueue, SyncState, certain_members
from ..rules import Rules
from ..steering.steering import SetAuthority
from ..world.timers import PeriodicTimer, WakeEvent
from .sends import WaitingSends


@dataclass(frozen=True)
class LeadershipContext:
    """The parts of the broker that a `Leadership` uses.

    `authority`: who agrees to changes of the set, None if it never changes; `on_info`: takes a
    newer ReplicaInfo; `holds_metadata`: whether a slave may enter the set; `may_serve_sends`:
    whether the lease for an epoch lasts; `on_serving`: called when clients may be served, if that
    is not from the beginning.
    """

    config: Config
    rules: Rules
    replica: Replica
    ha: HaMaster
    sends: WaitingSends
    authority: SetAuthority | None
    events: EventLog
    on_info: Callable[[Json], None]
    holds_metadata: Callable[[int], bool]
    may_serve_sends: Callable[[int], bool]
    on_serving: Callable[[], None]


class Leadership:
    """One term as master, from the election until the broker steps down."""

    def __init__(self, context: LeadershipContext, epoch: int, state: SyncState) -> None:
        self.epoch = epoch
        self.state = state
        self._c = context
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self.serves = not context.config.raft_log
        self._over = False
        self._retry = WakeEvent()
        self._quiet_until = 0.0
        self._newcomers = NewcomerQueue()
        self._refusals: set[tuple[tuple[int, ...], str]] = (
            set()
        )  # of this set; each is recorded once
        self._check = PeriodicTimer(context.config.check_sync_state_set_s, self._check_members)

    # acknowledgement

    @property
    def synchronizing(self) -> bool:
        return self.state.proposed is not None

    def admits(self) -> bool:
        """Whether a send may be appended. Without controllers so many replicas have to be in step
        as it will wait for (RIP-34)."""
        rules, config = self._c.rules, self._c.config
        if config.raft_log:
            return True
        if config.switchless:
            acks, members = self._c.ha.acks(), rules.counted_members(self.state)
            return rules.admit(self._in_step(acks, members), self._needed(acks, members))
        if self._zone_offset(self._c.ha.acks()) < 0:
            return False
        size = rules.set_size(self.state)
        if config.auto_in_sync_replicas and not config.all_ack_in_sync_state_set:
            size = min(size, self._in_step(self._c.ha.acks(), rules.counted_members(self.state)))
        return rules.admit(size, config.min_in_sync_replicas)

    def advance(self) -> None:
        """Confirm and acknowledge what has become possible by a change."""
        c, log, store = self._c, self._c.replica.store.log, self._c.replica.store
        own = c.rules.ack_position(self._syncs(), log.max_offset, log.written, log.flushed)
        if c.config.raft_log:
            self._commit(own)
            return
        acks, members = c.ha.acks(), c.rules.counted_members(self.state)
        in_zones = self._zone_offset(acks)
        confirm = c.rules.confirm_offset(
            store.confirm_offset,
            min(own, max(in_zones, c.replica.epochs.last_start)),
            acks,
            members,
            c.config.all_ack_in_sync_state_set,
        )
        if confirm != store.confirm_offset:
            store.confirm(confirm)
            c.ha.confirmed()
        if not c.config.all_ack_in_sync_state_set:
            members = tuple(i for i in members if i in certain_members(self.state))
        replicated = c.rules.replicated_offset(
            self._needed(acks, members), log.written, acks, members, c.config.min_in_sync_replicas
        )
        if c.may_serve_sends(self.epoch):
            c.sends.complete(min(replicated, in_zones), own)

    def _zone_offset(self, acks: Mapping[int, int | None]) -> int:
        """Return the offset up to which the log is in enough zones, below 0 if they are too
        few."""
        c, end = self._c, self._c.replica.store.log.written
        if c.config.ack_zones == 1:
            return end
        counted = {slave: acks.get(slave) for slave in certain_members(self.state)}
        return c.rules.zone_offset(c.config.ack_zones, end, c.config.zone, counted, c.ha.zones)

    def _commit(self, own: int) -> None:
        """Confirm what a majority of all configured brokers holds, if it is of this epoch (Raft
        5.4.2). Clients are served from the first time on."""
        c, store, acks = self._c, self._c.replica.store, self._c.ha.acks()
        positions = [own, *(acks.get(slave) or 0 for slave in self.state.slaves)]
        committed = c.rules.commit_index(positions, self._epoch_before, self.epoch)
        if not committed:
            return
        confirm = c.rules.confirm_offset(store.confirm_offset, committed, acks, (), False)
        if confirm != store.confirm_offset:
            store.confirm(confirm)
            c.ha.confirmed()
        if not self.serves:
            self.serves = True
            c.on_serving()
        c.sends.complete(confirm, confirm)

    def _epoch_before(self, end: int) -> int | None:
        """Return the epoch of the last byte before an offset; None if it is not in the log."""
        log = self._c.replica.store.log
        if end <= log.min_offset:
            return None
        return self._c.replica.epochs.at(end - 1, log.max_offset)[0]

    def members(self) -> tuple[int, ...]:
        """Return the members of the set; of one that never changes, those that are in step."""
        if self._c.authority is not None:
            return self.state.members
        start, acks = self._c.replica.epochs.last_start, self._c.ha.acks()
        slaves = [
            slave
            for slave in self.state.slaves
            if (acks.get(slave) or 0) > start and not self._out_of_step(slave)
        ]
        return tuple(sorted((self.state.me, *slaves)))

    def _needed(self, acks: Mapping[int, int | None], members: tuple[int, ...]) -> int:
        """Return how many copies are enough now."""
        rules, config = self._c.rules, self._c.config
        copies = config.copies
        if config.auto_in_sync_replicas:
            living = self._in_step(acks, members)
            copies = rules.degraded(copies, config.min_in_sync_replicas, living)
        return rules.needed_acks(config.all_ack_in_sync_state_set, copies)

    def _in_step(self, acks: Mapping[int, int | None], members: tuple[int, ...]) -> int:
        end = self._c.replica.store.log.written
        return count_in_step(end, acks, members, self._c.config.ha_max_gap_not_in_sync)

    def _syncs(self) -> bool:
        """Return whether an acknowledgement needs the own disk; request a sync if so."""
        config, log = self._c.config, self._c.replica.store.log
        if config.sync_flush or not config.sync_flush_when_alone:
            return config.sync_flush
        alone = self._c.rules.may_be_alone(self.state)
        if alone and log.flushed < log.written:
            log.request_sync()
        return alone

    def renew(self, epoch: int, members: tuple[int, ...], set_epoch: int) -> None:
        """Continue in a new epoch, on the same connections, after being elected again."""
        self.epoch = epoch
        self.install(members, set_epoch, "election")

    def install(self, members: tuple[int, ...], set_epoch: int, why: str) -> None:
        """Install the controllers' set if it is newer."""
        if set_epoch <= self.state.epoch:
            return
        self.state = self.state.install(members, set_epoch)
        self._newcomers.admit(members)
        self._refusals = set()
        if self._c.config.semi_sync and self.state.slaves:
            self.state = self.state.close()
        self._c.events.write("set", set=list(self.state.members), setEpoch=set_epoch, why=why)
        self._retry.set()
        self.advance()
        self._review()

    def end(self) -> None:
        self._over = True
        self._check.stop()
        self._tasks.cancel()

    # members in sync

    def progressed(self, slave: int) -> None:
        """A slave acknowledged something."""
        counted = self._c.rules.counted_members(self.state)
        if self._c.authority is not None and (slave not in counted or slave in self.state.entering):
            self._consider(slave)
        self.advance()

    def slave_gone(self, slave: int) -> None:
        """A slave's connection ended: a member leaves at once."""
        self.state = self.state.forget(slave)
        self.advance()
        self._review()

    def _consider(self, slave: int) -> None:
        """Propose a slave that may enter, or start to wait until it may."""
        rules, log = self._c.rules, self._c.replica.store.log
        progress, authority = self._c.ha.progress(slave), self._c.authority
        if progress is None or progress.ack is None:
            return
        if authority is None or not authority.takes_proposals:
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
        """Return whether one more slave may join; a semi-synchronous set has at most one."""
        state = self.state
        return not (self._c.config.semi_sync and (state.slaves or state.proposed or state.entering))

    def _ready(self, slave: int, ack: int, start: int) -> bool:
        if not self._c.holds_metadata(slave):
            return False
        mark = self.state.entering.get(slave)
        if mark is not None and ack >= max(mark, start):
            return True
        return self._c.rules.may_enter(ack, self._c.replica.store.confirm_offset, start)

    def _check_members(self) -> None:
        """Find silent members (timer). After a pause of this process, acks are read first."""
        if not self._just_woke():
            for slave in list(self.state.entering):
                if self._out_of_step(slave):
                    self.state = self.state.forget(slave)
            self._review()
            self.advance()

    def _just_woke(self) -> bool:
        """Return whether this process was paused, so that received acks may be unread."""
        return self._check.behind_s >= self._check.period_s / 2

    def _must_leave(self, slave: int) -> bool:
        """Return whether a member has to leave; not because of a pause of this process."""
        connected = self._c.ha.progress(slave) is not None
        return self._out_of_step(slave) and not (connected and self._just_woke())

    def _out_of_step(self, slave: int) -> bool:
        limit_s = self._c.config.ha_max_time_slave_not_catchup_s
        return self._c.rules.may_leave(self._c.ha.progress(slave), self._loop.time(), limit_s)

    # changing the set

    def _wanted(self) -> tuple[int, ...]:
        """Return the set as it should be."""
        start = self._c.replica.epochs.last_start
        keep = [i for i in self.state.slaves if not self._must_leave(i)]
        keep += self._kept_for_zone(keep)
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

    def _kept_for_zone(self, staying: Sequence[int]) -> tuple[int, ...]:
        c, leaving = self._c, [i for i in self.state.slaves if i not in staying]
        own, zones = c.config.zone, c.ha.zones
        return c.rules.kept_for_zone(c.config.ack_zones, own, staying, leaving, zones)

    def _chosen(self, keep: Sequence[int], ready: Sequence[int]) -> Sequence[int]:
        """Choose the slaves of the next set. A leaving member does not wait for a refused one."""
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
        """Propose the wanted set, unless a proposal is under way."""
        now = self._loop.time()
        authority = self._c.authority
        if self._over or self.state.proposed is not None:
            return
        if authority is None or not authority.takes_proposals:
            return
        wanted = self._wanted()
        if wanted == self.state.members:
            return
        if now < self._quiet_until:
            return
        most_s = self._c.config.check_sync_state_set_s / 10
        if late_s := self._c.replica.store.ports.choices.moment_s("review-late", most_s):
            self._loop.call_later(late_s, self._review)
            return
        self.state = self.state.propose(wanted)
        self.advance()
        self._tasks.start(self._alter(wanted, self.state.epoch))

    async def _alter(self, wanted: tuple[int, ...], set_epoch: int) -> None:
        """Ask the controllers until the outcome of the proposal is certain."""
        assert self._c.authority is not None, "a set that never changes is not reviewed"
        uncertain_at: float | None = None
        while self._pending(wanted, set_epoch):
            asked_at = self._loop.time()
            try:
                reply = await self._c.authority.ask(
                    Op.ALTER_SYNC_STATE_SET, self._request(wanted, set_epoch)
                )
            except OutcomeUnknown:
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
        """Return the time after which a leader without a majority has stopped answering."""
        return 3 * self._c.config.raft_election_timeout_s

    async def _nothing_changed(self, set_epoch: int) -> bool:
        """Read the set back after a refusal; return whether it is still the same set.

        There may be a later set, or a later master.
        """
        assert self._c.authority is not None, "a set that never changes is not reviewed"
        try:
            info = await self._c.authority.ask(
                Op.REPLICA_INFO, {"brokerName": self._c.config.broker_name}
            )
        except (NoLeader, OutcomeUnknown):
            return False
        if info["code"] != Status.SUCCESS:
            return False
        if info["masterEpoch"] != self.epoch or info["masterId"] != self.state.me:
            self._c.on_info(info)
            return False
        self.install(_members(info), int(info["setEpoch"]), "read back")
        return int(info["setEpoch"]) == set_epoch

    def _give_up(self, wanted: tuple[int, ...], set_epoch: int, why: str) -> None:
        """Drop a proposal that has certainly failed; review the set a little later."""
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

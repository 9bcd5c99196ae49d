"""Laws of Flotilla that are checked while a cluster runs, by an observer that sees all nodes at
once.

    ONE_LEADER          one controller leads a term of Raft
    ONE_MASTER          one process of one broker is master of a set in an epoch
    ELECTED_OUTSIDE     a master comes from the SyncStateSet
    COMMITTED_CHANGED   what the controllers have committed never changes, and is the same on each
                        of them: entries, elections, sets; and bytes of the log, where brokers elect
    LEADER_LACKS_COMMITTED  a master that was elected by votes holds every committed byte
    CONFIRM_WENT_BACK   a confirm offset never decreases, neither under one master nor from one
                        master to the next
    SET_LACKS_ACKED     every member of the SyncStateSet holds every acknowledged byte; where
                        brokers elect their master, a majority of them does
    CUT_TOO_HIGH        a slave keeps no byte from the first one on that differs from its master's
    CUT_TOO_LOW         a log is not cut below the highest confirm offset that its node ever had
    ANSWERED_EARLY      SUCCESS is answered only for bytes that the master counts as acknowledged,
                        and only by the master that appended them
    LEASE_OVERLAP       a master serves no send after another election, where masters have leases
    RETURNED_TOO_SOON   the mastership returns to a preferred broker once in preferredPause
    ROUTE_OF_ZONE       a client in a zone gets the sets led there, and all if there is none
    LED_IN_CLOSED_ZONE  no broker is elected in a zone that an operator has closed
    UNACCEPTABLE        no node sends a message that violates the protocol
    WROTE_AS_SLAVE      a broker that follows a master appends nothing of its own
    ESCAPED_HOME        an acting master sends special messages to other sets only
    ESCAPED_TWICE       ... and none again after a set has taken it
    CONVERTED_UNEQUAL, CONVERTED_EARLY, GENERATION_WENT_BACK, GENERATIONS_MIXED, PROMISE_BROKEN
                        see `event_laws.SetGenerations` (convertible = true)
    SEQUENCE_REUSED     a SequenceID belongs to one state of one pair (haMode = zookeeper)
    STATE_JUMPED        a state of a pair follows the one that was in force, and only where it may
    GHOST_BROKER        a broker that left its container, or did not start in it, does nothing
                        more and can be added again
    STORE_SHARED        no two brokers of a container have one store
    INNER_FORGOTTEN     a restarted container has the brokers that were added while it ran, and none
                        that was removed

Observations come from two places. The decisions of a node go through `rules`, which passes them on
unchanged and checks them with their inputs. The lines of the event logs go to `read_event`, in
the order in which they are written on all nodes. So a violation is noticed at the instant when
it happens, seconds before a client could lose anything by it, or without any client noticing.

**What the configuration permits is no violation.** If a master does not wait for all members, an
acknowledged byte may be on any of them; if a lagging broker may be elected, the byte may be lost;
without synchronous flush a power cut may take it; and changes on the disk of a stopped node are not
the system's. Then the laws of acknowledged bytes are not checked: from the beginning, from the
power cut on, or from the damage on. The other laws always are.

**Late news is no violation.** Controllers may report a set or an election after the next one has
taken effect, and a slave may read an answer of a master that has been deposed since. Observations
of an older epoch or set epoch than the newest known are ignored.

**A law that was never checked proves nothing.** Checks are counted for each law, and so are lines
that could not be read or come from an unknown node (`unreadable`), and those that a disk refused
(`missed`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol
from zlib import crc32

from clusters.flotilla.net.wire import Status
from clusters.flotilla.raft.messages import LogEntry
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.quorum import LogPosition, SendTimeouts
from clusters.flotilla.replication.sync_state import SyncState
from clusters.flotilla.rules import Rules
from clusters.systems.flotilla.acked_log import LogBytes, first_difference
from clusters.systems.flotilla.cluster_state import INSIDE, BrokerSetLayout
from clusters.systems.flotilla.event_laws import EventLaws, EventLine
from clusters.systems.flotilla.law_state import (
    Fields,
    Law,
    LawState,
    NodeLifetime,
    SetState,
    Violation,
    raft_group,
)

__all__ = ["Law", "Laws", "Violation", "log_bytes"]


class Laws:
    """The laws of one cluster, from its start to its end."""

    def __init__(
        self,
        sets: Sequence[BrokerSetLayout],
        settings: Fields,
        now_ns: Callable[[], int],
        log_bytes: LogBytes = lambda node, start, end: None,
    ) -> None:
        self._state = LawState(sets, settings, now_ns, log_bytes)
        self._event_laws = EventLaws(self._state)
        self._terms: dict[tuple[str, int], int] = {}  # of committed entries, by group and index
        # likewise, as the first controller, or coordinator, applied them
        self._entries: dict[tuple[str, int], tuple[int, int, int]] = {}

    # observations

    def rules(self, node: str, boot: int, rules: Rules) -> Rules:
        """Return the rules of a new process of the node, with a check around each decision."""
        life = self._state.start_process(node, boot)
        of = self._state.set_of.get(node)
        if of is None and len(self._state.parts_of(node)) > 1:
            return replace(rules, inner_rules=self._inner_rules(node, rules))
        if of is None:
            return replace(
                rules,
                commit_index=self._commit_index(life, rules),
                committed_entry=self._committed_entry(life, rules),
                left_out=self._left_out(life, rules),
            )
        if of.votes or self._state.convertible:
            rules = replace(rules, commit_index=self._commit_offset(life, of, rules))
        return replace(
            rules,
            counted_members=self._counted_members(life, of, rules),
            confirm_offset=self._confirm_offset(life, of, rules),
            replicated_offset=self._replicated_offset(life, of, rules),
            outcome_of=self._outcome_of(life, of, rules),
            ack_position=self._ack_position(life, of, rules),
            find_consistent_point=self._find_consistent_point(life, of, rules),
            lease_lasts=self._lease_lasts(life, of, rules),
            stored_content=self._stored_content(life, rules),
        )

    def _inner_rules(self, node: str, rules: Rules) -> Callable[[Rules, str], Rules]:
        """Return what gives each broker of a container rules with checks of its own."""

        def inner_rules(_: Rules, name: str) -> Rules:
            broker = f"{node}{INSIDE}{name}"
            before = self._state.processes.get(broker)
            return self.rules(broker, 1 + (before.boot if before else 0), rules)

        return inner_rules

    def read_event(self, t_ns: int, node: str, kind: str, fields: Fields) -> None:
        """Check a line of the node's event log."""
        inner = fields.get("inner")
        broker = f"{node}{INSIDE}{inner}" if inner else node
        self._event_laws.read(kind, EventLine(t_ns, broker, fields))

    def unreadable_event(self, node: str) -> None:
        """Count data in the node's event log that is not a line."""
        self._event_laws.unreadable()

    def power_lost(self, node: str) -> None:
        """Record that the node lost power and all unsynced data. Call it when that happens."""
        self._state.power_lost(node)

    def disk_damaged(self, node: str) -> None:
        """Record that files of the stopped node changed. Call it when that happens."""
        self._state.disk_damaged(node)

    def syncs_fail(self, node: str) -> None:
        """Record that the disk loses what it is asked to sync, from now on. Call it when that
        begins."""
        self._state.syncs_fail(node)

    # results

    @property
    def violations(self) -> Sequence[Violation]:
        """The first few violations of each law."""
        return self._state.violations

    @property
    def counts(self) -> Counter[Law]:
        """The number of all violations."""
        return self._state.counts

    @property
    def checks(self) -> Counter[Law]:
        """How often each law was checked."""
        return self._state.checks

    @property
    def unreadable(self) -> int:
        """Lines of event logs that were lost or unreadable."""
        return self._state.unreadable

    def events(self) -> Iterator[tuple[int, str, str, Fields]]:
        """Yield (t, node, kind, fields) of all checks and violations, for the history, at
        the end."""
        return self._state.events()

    # decisions of controllers

    def _commit_index(self, life: NodeLifetime, rules: Rules) -> Callable[..., int]:
        decide = rules.commit_index

        def commit_index(
            matches: Sequence[int], term_at: Callable[[int], int | None], term: int
        ) -> int:
            index = decide(matches, term_at, term)
            if len(matches) == 1:
                return index  # a single voter may not have flushed yet; see `_check_applied`
            if term != life.term:
                life.term, life.committed = term, 0
            if index > life.committed:
                self._check_commit(life, index, term_at)
            return index

        return commit_index

    def _check_commit(
        self, life: NodeLifetime, last: int, term_at: Callable[[int], int | None]
    ) -> None:
        """A leader counts entries as committed; at first all of its log up to this index."""
        self._state.checks[Law.COMMITTED_CHANGED] += 1
        first, life.committed = life.committed + 1, last
        for index in range(first, last + 1):
            term = term_at(index)
            if term is None:
                continue  # compacted away; it was checked when it was committed
            key = raft_group(life.node), index
            was = self._terms.setdefault(key, term)
            if was != term:
                self._terms[key] = term
                why = f"entry {index} was committed in term {was}, and now again in term {term}"
                fields = {"index": index, "was": was, "term": term}
                self._state.report(Law.COMMITTED_CHANGED, life.node, why, fields)
                return

    def _committed_entry(
        self, life: NodeLifetime, rules: Rules
    ) -> Callable[[int, LogEntry], LogEntry]:
        decide = rules.committed_entry

        def committed_entry(index: int, entry: LogEntry) -> LogEntry:
            taken = decide(index, entry)
            self._check_applied(life, index, taken)
            return taken

        return committed_entry

    def _check_applied(self, life: NodeLifetime, index: int, entry: LogEntry) -> None:
        """A controller applies an entry, which must be the same in all processes of all
        controllers."""
        self._state.checks[Law.COMMITTED_CHANGED] += 1
        is_now = (entry.term, entry.kind, crc32(entry.data))
        was = self._entries.setdefault((raft_group(life.node), index), is_now)
        if was != is_now:
            why = f"{life.node} applied another entry {index} than others did, of term {entry.term}"
            fields = {"index": index, "was": was[0], "term": entry.term}
            self._state.report(Law.COMMITTED_CHANGED, life.node, why, fields)

    # decisions of masters

    def _counted_members(
        self, life: NodeLifetime, of: SetState, rules: Rules
    ) -> Callable[..., Any]:
        decide = rules.counted_members

        def counted_members(state: SyncState) -> tuple[int, ...]:
            life.state = state
            if state.epoch > of.set_epoch:
                of.set_epoch, of.members = state.epoch, state.members
            return decide(state)

        return counted_members

    def _confirm_offset(self, life: NodeLifetime, of: SetState, rules: Rules) -> Callable[..., int]:
        decide, holds = rules.confirm_offset, of.acked.set_held

        def confirm_offset(
            stored: int,
            own: int,
            acks: Mapping[int, int | None],
            members: tuple[int, ...],
            all_ack: bool,
        ) -> int:
            offset = decide(stored, own, acks, members, all_ack)
            life.follows = False
            if own != life.own_offset and not of.votes:
                life.own_offset = own
                holds(life.node, own)
            if offset < (high := max(stored, life.confirmed)):
                self._report_decrease(life, of, high, offset)
            if offset != life.confirmed:
                self._check_confirm(life, of, offset)
            return offset

        return confirm_offset

    def _stored_content(
        self, life: NodeLifetime, rules: Rules
    ) -> Callable[[bytes, bytes, bool], tuple[bytes, bytes]]:
        decide = rules.stored_content

        def stored_content(shard: bytes, body: bytes, begins: bool) -> tuple[bytes, bytes]:
            """A broker appends a message of its own."""
            self._state.checks[Law.WROTE_AS_SLAVE] += 1
            if life.follows:
                why = f"{life.node} appended a message of its own as the slave of {life.master}"
                fields = {"epoch": life.epoch}
                self._state.report(Law.WROTE_AS_SLAVE, life.node, why, fields)
            return decide(shard, body, begins)

        return stored_content

    def _check_confirm(self, life: NodeLifetime, of: SetState, offset: int) -> None:
        """The confirm offset of a master changed, or it is its first one."""
        self._state.checks[Law.CONFIRM_WENT_BACK] += 1
        first, life.confirmed = life.confirmed < 0, offset
        if of.exempt:
            return
        of.confirmed_by[life.node] = max(offset, of.confirmed_by.get(life.node, 0))
        if first and life.epoch >= of.confirmed_epoch and offset < of.confirmed:
            self._report_decrease(life, of, of.confirmed, offset)
        of.first_confirmed.setdefault(life.epoch, offset)
        if life.epoch < of.last_confirming_epoch:
            self._check_late_confirm(life, of, offset)
        of.last_confirming_epoch = max(of.last_confirming_epoch, life.epoch)
        if offset > of.confirmed:
            of.confirmed, of.confirmed_epoch = offset, life.epoch

    def _check_late_confirm(self, life: NodeLifetime, of: SetState, offset: int) -> None:
        """A deposed master still confirms: no later master may have begun with a lower offset."""
        later = [base for epoch, base in of.first_confirmed.items() if epoch > life.epoch]
        if min(later) < offset:
            self._report_decrease(life, of, offset, min(later))

    def _report_decrease(self, life: NodeLifetime, of: SetState, high: int, low: int) -> None:
        why = f"the confirm offset of {of.name} was {high}, and is {low}"
        fields = {"set": of.name, "epoch": life.epoch, "was": high, "is": low}
        self._state.report(Law.CONFIRM_WENT_BACK, life.node, why, fields)

    def _commit_offset(self, life: NodeLifetime, of: SetState, rules: Rules) -> Callable[..., int]:
        decide = rules.commit_index

        def commit_offset(
            matches: Sequence[int], term_at: Callable[[int], int | None], term: int
        ) -> int:
            if term > life.term:
                life.term = term
                self._check_leader_holds(life, of)
            offset = decide(matches, term_at, term)
            if offset > life.acked:
                life.acked = offset
                self._check_committed(life, of, offset)
            return offset

        return commit_offset

    def _check_leader_holds(self, life: NodeLifetime, of: SetState) -> None:
        """A master of a new term begins to count copies; its whole log is on its disk."""
        if of.exempt:
            return
        self._state.checks[Law.LEADER_LACKS_COMMITTED] += 1
        at = of.acked.first_missing(life.node, of.acked.end)
        if at is not None:
            why = (
                f"{life.node} leads {of.name} in term {life.term} and lacks byte {at}, of "
                f"{of.acked.end} that were committed"
            )
            fields = {"set": of.name, "term": life.term, "committed": of.acked.end, "lacks": at}
            self._state.report(Law.LEADER_LACKS_COMMITTED, life.node, why, fields)

    def _check_committed(self, life: NodeLifetime, of: SetState, offset: int) -> None:
        """A master commits these bytes: they were not committed differently, and a majority of all
        brokers holds them."""
        if of.exempt:
            return
        self._state.checks[Law.COMMITTED_CHANGED] += 1
        self._state.checks[Law.SET_LACKS_ACKED] += 1
        of.acked.acknowledge(life.node, offset)
        fields = {"set": of.name, "term": life.term, "committed": offset}
        at = of.acked.first_changed(life.node, offset)
        if at is not None:
            why = f"{life.node} committed up to {offset}, and byte {at} had been committed before"
            self._state.report(Law.COMMITTED_CHANGED, life.node, why, {**fields, "differs": at})
        brokers = list(of.by_address.values())
        holders = of.acked.holders(brokers, offset)
        if 2 * holders <= len(brokers):
            why = f"{life.node} committed up to {offset}, which {holders} of {len(brokers)} hold"
            self._state.report(Law.SET_LACKS_ACKED, life.node, why, {**fields, "holders": holders})

    def _replicated_offset(
        self, life: NodeLifetime, of: SetState, rules: Rules
    ) -> Callable[..., int]:
        decide = rules.replicated_offset

        def replicated_offset(
            needed: int,
            end: int,
            acks: Mapping[int, int | None],
            members: tuple[int, ...],
            min_in_sync: int,
        ) -> int:
            offset = decide(needed, end, acks, members, min_in_sync)
            life.written = end
            position = min(offset, life.own_offset)
            if position > life.acked:
                life.acked = position
                if not of.exempt:
                    self._check_acknowledged(life, of, position)
            return offset

        return replicated_offset

    def _check_acknowledged(self, life: NodeLifetime, of: SetState, position: int) -> None:
        """All members of the set must hold these bytes, by the master's view of it and by the
        latest one."""
        self._state.checks[Law.SET_LACKS_ACKED] += 1
        of.acked.acknowledge(life.node, position)
        members = of.members if of.epoch > life.epoch else ()
        if (state := life.state) is not None:
            members = (*state.members, *(state.proposed or ()), *members)
        nodes = [life.node, *(of.ids[member] for member in members if member in of.ids)]
        for node in dict.fromkeys(nodes):
            self._state.check_holds(of, node, position, life.node)

    def _outcome_of(
        self, life: NodeLifetime, of: SetState, rules: Rules
    ) -> Callable[..., Status | None]:
        decide = rules.outcome_of

        def outcome_of(
            sent: LogPosition,
            replicated: int,
            durable: int,
            waited_s: float,
            patience: SendTimeouts,
            over: bool,
        ) -> Status | None:
            status = decide(sent, replicated, durable, waited_s, patience, over)
            if status == Status.SUCCESS:
                self._check_answer(life, of, sent)
            return status

        return outcome_of

    def _check_answer(self, life: NodeLifetime, of: SetState, sent: LogPosition) -> None:
        """SUCCESS is answered to a send, which must be of the current mastership, and
        acknowledged."""
        self._state.checks[Law.ANSWERED_EARLY] += 1
        fields = {"set": of.name, "epoch": life.epoch, "answered": sent.end}
        answered = f"{life.node} answered SUCCESS up to {sent.end}"
        if sent.end > life.acked:
            why = f"{answered}, and only {life.acked} was acknowledged"
            fields["acknowledged"] = life.acked
        elif sent.epoch < life.master_since:
            began = f"the node became master in epoch {life.master_since}"
            why = f"{answered} to a send of epoch {sent.epoch}, and {began}"
            fields["sent_in"] = sent.epoch
        else:
            return
        self._state.report(Law.ANSWERED_EARLY, life.node, why, fields)

    def _lease_lasts(
        self, life: NodeLifetime, of: SetState, rules: Rules
    ) -> Callable[[float, float], bool]:
        decide = rules.lease_lasts

        def lease_lasts(now: float, until: float) -> bool:
            lasts = decide(now, until)
            self._state.checks[Law.LEASE_OVERLAP] += 1
            if lasts and life.master_since and of.epoch > life.epoch:
                fields = {"set": of.name, "epoch": of.epoch, "served_in": life.epoch}
                why = (
                    f"{life.node}, master in epoch {life.epoch}, served a send when epoch "
                    f"{of.epoch} had begun"
                )
                self._state.report(Law.LEASE_OVERLAP, life.node, why, fields)
            return lasts

        return lease_lasts

    # decisions of nameservers

    def _left_out(
        self, life: NodeLifetime, rules: Rules
    ) -> Callable[[Mapping[str, str | None], str], frozenset[str]]:
        decide = rules.left_out

        def left_out(masters: Mapping[str, str | None], zone: str) -> frozenset[str]:
            out = decide(masters, zone)
            self._state.checks[Law.ROUTE_OF_ZONE] += 1
            near = [name for name, at in masters.items() if at == zone]
            far = [name for name, at in masters.items() if at not in (None, "", zone)]
            if out != frozenset(far if near else ()):
                fields = {"zone": zone, "masters": dict(masters), "left_out": sorted(out)}
                why = (
                    f"{life.node} leaves {', '.join(sorted(out)) or 'no set'} out of the route of "
                    f"a client in zone {zone}, where {', '.join(near) or 'no set'} has its master"
                )
                self._state.report(Law.ROUTE_OF_ZONE, life.node, why, fields)
            return out

        return left_out

    # decisions of slaves

    def _ack_position(self, life: NodeLifetime, of: SetState, rules: Rules) -> Callable[..., int]:
        decide, holds = rules.ack_position, of.acked.set_held
        is_inside = INSIDE in life.node

        def ack_position(sync_flush: bool, appended: int, written: int, flushed: int) -> int:
            if is_inside:
                self._event_laws.check_ghost(life.node, "acknowledged messages")
            holds(life.node, flushed if sync_flush else written)
            return decide(sync_flush, appended, written, flushed)

        return ack_position

    def _find_consistent_point(
        self, life: NodeLifetime, of: SetState, rules: Rules
    ) -> Callable[..., int]:
        decide = rules.find_consistent_point

        def find_consistent_point(
            local: EpochTable, local_end: int, remote: EpochTable, remote_end: int
        ) -> int:
            point = decide(local, local_end, remote, remote_end)
            self._check_cut_too_low(life, of, max(0, point), local_end)  # -1: nothing in common
            self._check_cut_too_high(life, of, min(point, local_end), remote_end)
            return point

        return find_consistent_point

    def _check_cut_too_low(
        self, life: NodeLifetime, of: SetState, point: int, local_end: int
    ) -> None:
        """A slave will cut its log at `point`. All that it ever had confirmed must stay, as far as
        its log goes. Event logs report only the cuts that were carried out."""
        if of.exempt:
            return
        self._state.checks[Law.CUT_TOO_LOW] += 1
        confirmed = min(of.confirmed_by.get(life.node, 0), local_end)
        if point < confirmed:
            of.confirmed_by[life.node] = point
            why = (
                f"{life.node} will cut its log at {point}, below {confirmed} that it had confirmed"
            )
            fields = {"set": of.name, "point": point, "confirm": confirmed}
            self._state.report(Law.CUT_TOO_LOW, life.node, why, fields)

    def _check_cut_too_high(
        self, life: NodeLifetime, of: SetState, point: int, remote_end: int
    ) -> None:
        """A slave will keep its log up to `point`, which must equal its master's log."""
        master = self._state.processes.get(life.master)
        if master is None or of.handshakes.get((master.node, life.node)) != master.log_version:
            return  # the master has another role or another log by now
        self._state.checks[Law.CUT_TOO_HIGH] += 1
        begin, end = of.acked.common_prefix(life.node, master.node), min(point, master.written)
        parts_at = remote_end
        if begin < end:
            mine = self._state.log_bytes(life.node, begin, end)
            theirs = self._state.log_bytes(master.node, begin, end)
            if mine is not None and theirs is not None and mine != theirs:
                parts_at = min(remote_end, begin + first_difference(mine, theirs))
        if point > parts_at:
            why = f"{life.node} keeps its log up to {point}, but {master.node} has another one from"
            fields = {"set": of.name, "master": master.node, "point": point, "differs": parts_at}
            self._state.report(Law.CUT_TOO_HIGH, life.node, f"{why} {parts_at} on", fields)


class LogSegment(Protocol):
    """A segment of a commit log as it is on a disk."""

    def read(self, size: int, offset: int) -> bytes: ...


def log_bytes(
    segment: Callable[[int], LogSegment | None], segment_size: int, start: int, end: int
) -> bytes | None:
    """Return bytes of a log, or None if a segment is missing.

    segment: returns the segment that begins at this offset
    """
    parts = []
    while start < end:
        base = start - start % segment_size
        data = segment(base)
        if data is None:
            return None
        parts.append(data.read(min(end, base + segment_size) - start, start - base))
        start = base + segment_size
    return b"".join(parts)

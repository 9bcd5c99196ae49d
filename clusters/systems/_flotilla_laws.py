"""Laws of Flotilla that are watched while a cluster runs, by somebody who sees all nodes at once.

    ONE_LEADER          one controller leads a term of Raft
    ONE_MASTER          one broker, in one of its lives, is master of a set in an epoch
    ELECTED_OUTSIDE     a master comes from the SyncStateSet
    COMMITTED_CHANGED   what the controllers have committed stays, and is the same on each of them:
                        entries, elections, sets
    CONFIRM_WENT_BACK   a confirm offset does not sink, neither in a reign nor from one to the next
    SET_LACKS_ACKED     every member of the SyncStateSet holds every acknowledged byte
    CUT_TOO_HIGH        a slave keeps nothing from the first byte on that its master has otherwise
    CUT_TOO_LOW         a log is not cut below the highest confirm offset that its node ever had
    ANSWERED_EARLY      SUCCESS is answered for bytes that the master took for acknowledged, in the
                        reign in which they were appended
    UNACCEPTABLE        nobody of ours sends what makes no sense to who gets it

They are seen at two places. The decisions of a node go through `rules`, which hands on what they
decide, unchanged, and looks at what they were asked. The lines of the event logs come to `saw`, in
the order in which they are written anywhere. So a law is broken here at the instant in which it is
broken, seconds before a client could lose anything by it, or without any client ever noticing.

**What the configuration permits is no offence.** Where not every member is waited for, an
acknowledged byte may be anywhere; where whoever lags may be elected, it may be lost; where nobody
waits for the disk, a power cut may take it; and what somebody changed on the disk of a stopped node
is no deed of the system's. Then the laws of acknowledged bytes do not hold, and are not asked: from
the beginning, from the power cut on, or from the damage on. The others always are.

**Late news convicts nobody.** Controllers may tell of a set or an election after the next one has
taken effect, and a slave may read an answer of a master that has been deposed since. What a newer
epoch or set epoch was seen for is passed over.

**Who saw nothing has proved nothing.** Looks are counted for each law, and so are lines that could
not be read, or were of nobody who is known (`unseen`), and those that a disk refused (`missed`).
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
from clusters.systems._flotilla_acked import LogBytes, first_difference
from clusters.systems._flotilla_lawbook import Broken, Fields, Known, Law, Lawbook, Life
from clusters.systems._flotilla_standing import BrokerSet
from clusters.systems._flotilla_told import Line, Told

__all__ = ["Broken", "Law", "Laws", "log_bytes"]


class Laws:
    """One cluster's, from its beginning to its end."""

    def __init__(
        self,
        sets: Sequence[BrokerSet],
        settings: Fields,
        now_ns: Callable[[], int],
        log_bytes: LogBytes = lambda node, start, end: None,
    ) -> None:
        self._book = Lawbook(sets, settings, now_ns, log_bytes)
        self._told = Told(self._book)
        self._terms: dict[int, int] = {}  # of the committed entries, by index
        self._entries: dict[int, tuple[int, int, int]] = {}  # as the first controller took them

    # what is told

    def rules(self, node: str, boot: int, rules: Rules) -> Rules:
        """A process of the node begins: its decisions, each of them looked at."""
        life = self._book.born(node, boot)
        of = self._book.set_of.get(node)
        if of is None:
            return replace(
                rules,
                commit_index=self._commit_index(life, rules),
                committed_entry=self._committed_entry(life, rules),
            )
        return replace(
            rules,
            counted_members=self._counted_members(life, of, rules),
            confirm_offset=self._confirm_offset(life, of, rules),
            replicated_offset=self._replicated_offset(life, of, rules),
            outcome_of=self._outcome_of(life, of, rules),
            ack_position=self._ack_position(life, of, rules),
            find_consistent_point=self._find_consistent_point(life, of, rules),
        )

    def saw(self, t_ns: int, node: str, kind: str, fields: Fields) -> None:
        """A line of the node's event log."""
        self._told.saw(kind, Line(t_ns, node, fields))

    def unread(self, node: str) -> None:
        """Something in the node's event log that is no line."""
        self._told.unread()

    def power_lost(self, node: str) -> None:
        """The node lost power, and what its disk had not kept. Call it when that happens."""
        self._book.power_lost(node)

    def disk_damaged(self, node: str) -> None:
        """Files of the node changed while it did not run. Call it when that happens."""
        self._book.disk_damaged(node)

    def syncs_fail(self, node: str) -> None:
        """The disk drops what it is asked to sync, from now on. Call it when that begins."""
        self._book.syncs_fail(node)

    # what was seen

    @property
    def broken(self) -> Sequence[Broken]:
        """The first few breaches of each law."""
        return self._book.broken

    @property
    def counts(self) -> Counter[Law]:
        """All breaches."""
        return self._book.counts

    @property
    def looked(self) -> Counter[Law]:
        """How often each law was looked at."""
        return self._book.looked

    @property
    def unseen(self) -> int:
        """Lines of event logs that were lost, or that nothing could be made of."""
        return self._book.unseen

    def events(self) -> Iterator[tuple[int, str, str, Fields]]:
        """For the history, at the end: (t, node, kind, fields) of what was watched and broken."""
        return self._book.events()

    # decisions of controllers

    def _commit_index(self, life: Life, rules: Rules) -> Callable[..., int]:
        decide = rules.commit_index

        def commit_index(
            matches: Sequence[int], term_at: Callable[[int], int | None], term: int
        ) -> int:
            index = decide(matches, term_at, term)
            if len(matches) == 1:
                return index  # a lone voter's may not be on any disk: what it takes is looked at
            if term != life.term:
                life.term, life.committed = term, 0
            if index > life.committed:
                self._commits(life, index, term_at)
            return index

        return commit_index

    def _commits(self, life: Life, last: int, term_at: Callable[[int], int | None]) -> None:
        """A leader takes entries for committed; at first all of its log up to there."""
        self._book.looked[Law.COMMITTED_CHANGED] += 1
        first, life.committed = life.committed + 1, last
        for index in range(first, last + 1):
            term = term_at(index)
            if term is None:
                continue  # compacted away: it was looked at when it was committed
            was = self._terms.setdefault(index, term)
            if was != term:
                self._terms[index] = term
                why = f"entry {index} was committed in term {was}, and is another of term {term}"
                fields = {"index": index, "was": was, "term": term}
                self._book.breaks(Law.COMMITTED_CHANGED, life.node, why, fields)
                return

    def _committed_entry(self, life: Life, rules: Rules) -> Callable[[int, LogEntry], LogEntry]:
        decide = rules.committed_entry

        def committed_entry(index: int, entry: LogEntry) -> LogEntry:
            taken = decide(index, entry)
            self._takes(life, index, taken)
            return taken

        return committed_entry

    def _takes(self, life: Life, index: int, entry: LogEntry) -> None:
        """A controller, whoever leads, applies an entry: everywhere and in every life the same."""
        self._book.looked[Law.COMMITTED_CHANGED] += 1
        is_now = (entry.term, entry.kind, crc32(entry.data))
        was = self._entries.setdefault(index, is_now)
        if was != is_now:
            why = f"{life.node} took for entry {index} another than others, of term {entry.term}"
            fields = {"index": index, "was": was[0], "term": entry.term}
            self._book.breaks(Law.COMMITTED_CHANGED, life.node, why, fields)

    # decisions of masters

    def _counted_members(self, life: Life, of: Known, rules: Rules) -> Callable[..., Any]:
        decide = rules.counted_members

        def counted_members(state: SyncState) -> tuple[int, ...]:
            life.state = state
            if state.epoch > of.set_epoch:
                of.set_epoch, of.members = state.epoch, state.members
            return decide(state)

        return counted_members

    def _confirm_offset(self, life: Life, of: Known, rules: Rules) -> Callable[..., int]:
        decide, holds = rules.confirm_offset, of.acked.holds

        def confirm_offset(
            stored: int,
            own: int,
            acks: Mapping[int, int | None],
            members: tuple[int, ...],
            all_ack: bool,
        ) -> int:
            offset = decide(stored, own, acks, members, all_ack)
            if own != life.own:
                life.own = own
                holds(life.node, own)
            if offset < (high := max(stored, life.confirmed)):
                self._sinks(life, of, high, offset)
            if offset != life.confirmed:
                self._confirms(life, of, offset)
            return offset

        return confirm_offset

    def _confirms(self, life: Life, of: Known, offset: int) -> None:
        """A confirm offset moved, or is the first of a reign."""
        self._book.looked[Law.CONFIRM_WENT_BACK] += 1
        first, life.confirmed = life.confirmed < 0, offset
        if of.excused:
            return
        of.confirmed_by[life.node] = max(offset, of.confirmed_by.get(life.node, 0))
        if first and life.epoch >= of.confirmed_in and offset < of.confirmed:
            self._sinks(life, of, of.confirmed, offset)
        of.bases.setdefault(life.epoch, offset)
        if life.epoch < of.reigning:
            self._overtakes(life, of, offset)
        of.reigning = max(of.reigning, life.epoch)
        if offset > of.confirmed:
            of.confirmed, of.confirmed_in = offset, life.epoch

    def _overtakes(self, life: Life, of: Known, offset: int) -> None:
        """A deposed master goes on confirming: no later reign may have begun with less."""
        later = [base for epoch, base in of.bases.items() if epoch > life.epoch]
        if min(later) < offset:
            self._sinks(life, of, offset, min(later))

    def _sinks(self, life: Life, of: Known, high: int, low: int) -> None:
        why = f"the confirm offset of {of.name} was {high}, and is {low}"
        fields = {"set": of.name, "epoch": life.epoch, "was": high, "is": low}
        self._book.breaks(Law.CONFIRM_WENT_BACK, life.node, why, fields)

    def _replicated_offset(self, life: Life, of: Known, rules: Rules) -> Callable[..., int]:
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
            position = min(offset, life.own)
            if position > life.acked:
                life.acked = position
                if not of.excused:
                    self._acknowledges(life, of, position)
            return offset

        return replicated_offset

    def _acknowledges(self, life: Life, of: Known, position: int) -> None:
        """Everybody who may be elected must hold this: by the master's view, and by the latest."""
        self._book.looked[Law.SET_LACKS_ACKED] += 1
        of.acked.acknowledge(life.node, position)
        members = of.members if of.epoch > life.epoch else ()
        if (state := life.state) is not None:
            members = (*state.members, *(state.proposed or ()), *members)
        nodes = [life.node, *(of.ids[member] for member in members if member in of.ids)]
        for node in dict.fromkeys(nodes):
            self._book.must_hold(of, node, position, life.node)

    def _outcome_of(self, life: Life, of: Known, rules: Rules) -> Callable[..., Status | None]:
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
                self._answers(life, of, sent)
            return status

        return outcome_of

    def _answers(self, life: Life, of: Known, sent: LogPosition) -> None:
        """A send is answered SUCCESS: it must be of the reign that answers, and acknowledged."""
        self._book.looked[Law.ANSWERED_EARLY] += 1
        fields = {"set": of.name, "epoch": life.epoch, "answered": sent.end}
        answered = f"{life.node} answered SUCCESS up to {sent.end}"
        if sent.end > life.acked:
            why = f"{answered}, and {life.acked} was acknowledged"
            fields["acknowledged"] = life.acked
        elif sent.epoch < life.reign:
            began = f"the reign began with epoch {life.reign}"
            why = f"{answered} to a send of epoch {sent.epoch}, and {began}"
            fields["sent_in"] = sent.epoch
        else:
            return
        self._book.breaks(Law.ANSWERED_EARLY, life.node, why, fields)

    # decisions of slaves

    def _ack_position(self, life: Life, of: Known, rules: Rules) -> Callable[..., int]:
        decide, holds = rules.ack_position, of.acked.holds

        def ack_position(sync_flush: bool, appended: int, written: int, flushed: int) -> int:
            holds(life.node, flushed if sync_flush else written)
            return decide(sync_flush, appended, written, flushed)

        return ack_position

    def _find_consistent_point(self, life: Life, of: Known, rules: Rules) -> Callable[..., int]:
        decide = rules.find_consistent_point

        def find_consistent_point(
            local: EpochTable, local_end: int, remote: EpochTable, remote_end: int
        ) -> int:
            point = decide(local, local_end, remote, remote_end)
            self._keeps_confirmed(life, of, max(0, point), local_end)  # -1: they share nothing
            self._cuts(life, of, min(point, local_end), remote_end)
            return point

        return find_consistent_point

    def _keeps_confirmed(self, life: Life, of: Known, point: int, local_end: int) -> None:
        """A slave will cut its log at `point`. What it ever had confirmed stays, as far as it goes;
        lines of event logs tell only of those cuts that something came of."""
        if of.excused:
            return
        self._book.looked[Law.CUT_TOO_LOW] += 1
        confirmed = min(of.confirmed_by.get(life.node, 0), local_end)
        if point < confirmed:
            of.confirmed_by[life.node] = point
            why = (
                f"{life.node} will cut its log at {point}, below {confirmed} that it had confirmed"
            )
            fields = {"set": of.name, "point": point, "confirm": confirmed}
            self._book.breaks(Law.CUT_TOO_LOW, life.node, why, fields)

    def _cuts(self, life: Life, of: Known, point: int, remote_end: int) -> None:
        """A slave will keep its log up to `point`. Is that its master's log?"""
        master = self._book.lives.get(life.master)
        if master is None or of.welcomes.get((master.node, life.node)) != master.turn:
            return  # whoever answered has another role or another log by now
        self._book.looked[Law.CUT_TOO_HIGH] += 1
        begin, end = of.acked.in_common(life.node, master.node), min(point, master.written)
        parts_at = remote_end
        if begin < end:
            mine = self._book.log_bytes(life.node, begin, end)
            theirs = self._book.log_bytes(master.node, begin, end)
            if mine is not None and theirs is not None and mine != theirs:
                parts_at = min(remote_end, begin + first_difference(mine, theirs))
        if point > parts_at:
            why = f"{life.node} keeps its log up to {point}, but {master.node}'s differs from"
            fields = {"set": of.name, "master": master.node, "point": point, "differs": parts_at}
            self._book.breaks(Law.CUT_TOO_HIGH, life.node, f"{why} {parts_at} on", fields)


class Readable(Protocol):
    """A segment of a commit log as it is on a disk."""

    def read(self, size: int, offset: int) -> bytes: ...


def log_bytes(
    segment: Callable[[int], Readable | None], segment_size: int, start: int, end: int
) -> bytes | None:
    """The bytes of a log; `segment`: the one that begins at this offset. None: one is missing."""
    parts = []
    while start < end:
        base = start - start % segment_size
        found = segment(base)
        if found is None:
            return None
        parts.append(found.read(min(end, base + segment_size) - start, start - base))
        start = base + segment_size
    return b"".join(parts)

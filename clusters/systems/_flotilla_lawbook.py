"""The book in which broken laws of Flotilla are written, and what is known of nodes and sets.

Those who look at decisions (`_flotilla_laws`) and at event logs (`_flotilla_told`) write into one
book, since a law may need what both have seen. It keeps the first few breaches of each law in full,
and counts all.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from clusters.flotilla.replication.sync_state import SyncState
from clusters.systems._flotilla_acked import Acknowledged, LogBytes
from clusters.systems._flotilla_standing import BrokerSet

MOST = 20  # of each law that are told in full
WATCHED, BROKEN = "laws-watched", "broken-law"  # kinds of events in a history
Fields = Mapping[str, Any]


class Law(StrEnum):
    """Codes of findings."""

    ONE_LEADER = "ONE_LEADER"
    ONE_MASTER = "ONE_MASTER"
    ELECTED_OUTSIDE = "ELECTED_OUTSIDE"
    COMMITTED_CHANGED = "COMMITTED_CHANGED"
    CONFIRM_WENT_BACK = "CONFIRM_WENT_BACK"
    SET_LACKS_ACKED = "SET_LACKS_ACKED"
    CUT_TOO_HIGH = "CUT_TOO_HIGH"
    CUT_TOO_LOW = "CUT_TOO_LOW"
    ANSWERED_EARLY = "ANSWERED_EARLY"
    UNACCEPTABLE = "UNACCEPTABLE"


@dataclass(frozen=True)
class Broken:
    """A law that was broken: when, by whom, and how, in a sentence and in numbers."""

    law: Law
    t_ns: int
    node: str
    sentence: str
    fields: Fields


@dataclass(slots=True)
class Life:
    """One process of a node, from its start on. `turn` changes with everything that may change
    its log otherwise than at its end."""

    node: str
    boot: int
    turn: int = 0
    started: bool = False
    # a broker's
    epoch: int = 0
    reign: int = 0  # the epoch in which it became master; 0: it is none
    master: str = ""  # whom it follows
    state: SyncState | None = None
    own: int = 0
    written: int = 0
    acked: int = 0
    confirmed: int = -1
    # a controller's
    term: int = 0
    committed: int = 0


@dataclass(slots=True)
class Known:
    """What is known of a broker set. `bases`: the first confirm offset of each reign."""

    name: str
    acked: Acknowledged
    by_address: Mapping[str, str]
    ids: dict[int, str] = field(default_factory=dict)
    epoch: int = 0
    set_epoch: int = 0
    members: tuple[int, ...] = ()
    excused: bool = False
    masters: dict[int, tuple[str, int]] = field(default_factory=dict)
    elections: dict[int, Any] = field(default_factory=dict)
    sets: dict[int, list[int]] = field(default_factory=dict)
    welcomes: dict[tuple[str, str], int] = field(default_factory=dict)
    bases: dict[int, int] = field(default_factory=dict)
    reigning: int = 0  # the latest epoch that has one
    confirmed: int = 0  # the highest of all reigns
    confirmed_in: int = 0
    confirmed_by: dict[str, int] = field(default_factory=dict)  # the highest of a node's lives


class Lawbook:
    """One cluster's."""

    def __init__(
        self,
        sets: Sequence[BrokerSet],
        settings: Fields,
        now_ns: Callable[[], int],
        log_bytes: LogBytes,
    ) -> None:
        self.broken: list[Broken] = []
        self.counts: Counter[Law] = Counter()
        self.looked: Counter[Law] = Counter()
        self.lines = 0  # of event logs
        self.unseen = 0  # ... that nobody could make sense of, or that were lost
        self.damaged = False  # what a node sends may come from a disk that somebody changed
        self.unclean = bool(settings.get("enableElectUncleanMaster", False))
        self.log_bytes = log_bytes
        self.set_of: dict[str, Known] = {}  # by node
        self.sets: dict[str, Known] = {}
        self.lives: dict[str, Life] = {}
        self._flushed = settings.get("flushDiskType") == "SYNC_FLUSH"
        self._now_ns = now_ns
        self._turn = 0
        excused = self.unclean or not settings.get("allAckInSyncStateSet", False)
        for each in sets:
            known = Known(each.name, Acknowledged(log_bytes), each.addresses, excused=excused)
            self.sets[each.name] = known
            self.set_of |= dict.fromkeys(each.nodes, known)

    def born(self, node: str, boot: int) -> Life:
        life = self.lives[node] = Life(node, boot)
        self.renew(life)
        return life

    def life(self, node: str) -> Life:
        return self.lives.get(node) or self.born(node, 0)

    def renew(self, life: Life) -> None:
        self._turn += 1
        life.turn = self._turn

    def breaks(self, law: Law, node: str, sentence: str, fields: Fields, t_ns: int = -1) -> None:
        self.counts[law] += 1
        if self.counts[law] <= MOST:
            at_ns = self._now_ns() if t_ns < 0 else t_ns
            self.broken.append(Broken(law, at_ns, node, sentence, fields))

    def must_hold(self, of: Known, node: str, until: int, blamed: str, t_ns: int = -1) -> None:
        at = of.acked.lacks(node, until)
        if at is not None:
            why = (
                f"{node} is in the SyncStateSet of {of.name}, which acknowledged {until} bytes, "
                f"and does not hold byte {at}"
            )
            fields = {"set": of.name, "epoch": of.epoch, "member": node}
            fields |= {"acknowledged": until, "lacks": at}
            self.breaks(Law.SET_LACKS_ACKED, blamed, why, fields, t_ns)

    def power_lost(self, node: str) -> None:
        """What was not on its disk is gone; where nobody waits for that, acknowledged bytes too."""
        if node in self.lives:
            self.renew(self.lives[node])
        of = self.set_of.get(node)
        if of is not None:
            of.acked.power_lost(node)
            of.excused = of.excused or not self._flushed

    def syncs_fail(self, node: str) -> None:
        """What was not on its disk may be gone, though the node lives."""
        of = self.set_of.get(node)
        if of is not None:
            of.acked.power_lost(node)
            of.excused = of.excused or not self._flushed

    def disk_damaged(self, node: str) -> None:
        """Acknowledged bytes may be gone or changed there, whatever anybody waited for."""
        self.damaged = True
        if node in self.lives:
            self.renew(self.lives[node])
        of = self.set_of.get(node)
        if of is not None:
            of.acked.power_lost(node)
            of.excused = True

    def events(self) -> Iterator[tuple[int, str, str, Fields]]:
        """For the history, at the end: (t, node, kind, fields) of what was watched and broken."""
        looked = {law.value: self.looked[law] for law in Law}
        seen = {"looked": looked, "lines": self.lines, "unseen": self.unseen}
        yield self._now_ns(), "", WATCHED, seen
        left = self.counts.copy()
        for broken in self.broken:
            left[broken.law] -= 1
        for broken in self.broken:
            untold = {"untold": n} if (n := left.pop(broken.law, 0)) else {}
            head = {"law": broken.law.value, "why": broken.sentence}
            yield broken.t_ns, broken.node, BROKEN, {**head, **broken.fields, **untold}

"""State that the laws of Flotilla share: nodes, broker sets, and the violations found so far.

The laws of decisions (`laws`) and of event logs (`event_laws`) write to one state, since a law may
need observations of both. The first few violations of each law are kept in full, all are counted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from clusters.flotilla.replication.sync_state import SyncState
from clusters.systems.flotilla.acked_log import AckedLog, LogBytes
from clusters.systems.flotilla.cluster_state import INSIDE, BrokerSetLayout, host_of

MAX_SHOWN = 20  # violations of each law that are kept in full
LAWS_WATCHED, LAW_BROKEN = "laws-watched", "broken-law"  # kinds of events in a history
Fields = Mapping[str, Any]


class Law(StrEnum):
    """Codes of findings."""

    ONE_LEADER = "ONE_LEADER"
    ONE_MASTER = "ONE_MASTER"
    ELECTED_OUTSIDE = "ELECTED_OUTSIDE"
    COMMITTED_CHANGED = "COMMITTED_CHANGED"
    LEADER_LACKS_COMMITTED = "LEADER_LACKS_COMMITTED"
    CONFIRM_WENT_BACK = "CONFIRM_WENT_BACK"
    SET_LACKS_ACKED = "SET_LACKS_ACKED"
    CUT_TOO_HIGH = "CUT_TOO_HIGH"
    CUT_TOO_LOW = "CUT_TOO_LOW"
    ANSWERED_EARLY = "ANSWERED_EARLY"
    UNACCEPTABLE = "UNACCEPTABLE"
    LEASE_OVERLAP = "LEASE_OVERLAP"
    RETURNED_TOO_SOON = "RETURNED_TOO_SOON"
    ROUTE_OF_ZONE = "ROUTE_OF_ZONE"
    LED_IN_CLOSED_ZONE = "LED_IN_CLOSED_ZONE"
    SEQUENCE_REUSED = "SEQUENCE_REUSED"
    STATE_JUMPED = "STATE_JUMPED"
    GHOST_BROKER = "GHOST_BROKER"
    STORE_SHARED = "STORE_SHARED"
    INNER_FORGOTTEN = "INNER_FORGOTTEN"
    CONVERTED_UNEQUAL = "CONVERTED_UNEQUAL"
    CONVERTED_EARLY = "CONVERTED_EARLY"
    GENERATION_WENT_BACK = "GENERATION_WENT_BACK"
    GENERATIONS_MIXED = "GENERATIONS_MIXED"
    PROMISE_BROKEN = "PROMISE_BROKEN"
    WROTE_AS_SLAVE = "WROTE_AS_SLAVE"
    ESCAPED_HOME = "ESCAPED_HOME"
    ESCAPED_TWICE = "ESCAPED_TWICE"


MACHINE_MODE = "zookeeper"
OF_MACHINES = frozenset({Law.SEQUENCE_REUSED, Law.STATE_JUMPED})  # where haMode is zookeeper
OF_CONVERSIONS = frozenset(  # where sets may be converted to another mode
    {
        Law.CONVERTED_UNEQUAL,
        Law.CONVERTED_EARLY,
        Law.GENERATION_WENT_BACK,
        Law.GENERATIONS_MIXED,
        Law.PROMISE_BROKEN,
    }
)
OF_ACTING = frozenset({Law.ESCAPED_HOME, Law.ESCAPED_TWICE})  # where slaves act as masters
OF_CONTAINERS = frozenset({Law.GHOST_BROKER, Law.STORE_SHARED, Law.INNER_FORGOTTEN})


@dataclass(frozen=True)
class Violation:
    """A violation of a law: when, on which node, a sentence, and its numbers."""

    law: Law
    t_ns: int
    node: str
    sentence: str
    fields: Fields


@dataclass(slots=True)
class NodeLifetime:
    """One process of a node. `turn` changes with every event that may change its log anywhere but
    at its end."""

    node: str
    boot: int
    log_version: int = 0
    started: bool = False
    # of a broker
    epoch: int = 0
    master_since: int = 0  # the epoch in which it became master; 0: it is not master
    master: str = ""  # the node that it follows
    follows: bool = False  # it has become a slave, and made no decision of a master since
    escaped: set[tuple[str, int, int]] = field(default_factory=set)  # topic, epoch, queue offset
    state: SyncState | None = None
    own_offset: int = 0
    written: int = 0
    acked: int = 0
    confirmed: int = -1
    # of a controller
    term: int = 0
    committed: int = 0


@dataclass(slots=True)
class SetState:
    """What is known of a broker set. `bases`: the first confirm offset of each epoch's master.
    `excused`: what it acknowledges may be lost, by its configuration or a fault; `mode`: its
    haMode, which a conversion changes."""

    name: str
    acked: AckedLog
    by_address: Mapping[str, str]
    ids: dict[int, str] = field(default_factory=dict)
    epoch: int = 0
    set_epoch: int = 0
    members: tuple[int, ...] = ()
    machine: Fields = field(default_factory=dict)  # the latest decision of an HA controller
    excused: bool = False
    mode: str = ""
    returned_ns: int | None = None  # when the mastership returned to a preferred broker
    masters: dict[int, tuple[str, int]] = field(default_factory=dict)
    elections: dict[int, Any] = field(default_factory=dict)
    sets: dict[int, list[int]] = field(default_factory=dict)
    handshakes: dict[tuple[str, str], int] = field(default_factory=dict)
    first_confirmed: dict[int, int] = field(default_factory=dict)
    last_confirming_epoch: int = 0  # the latest epoch in `bases`
    confirmed: int = 0  # the highest of all masters
    confirmed_epoch: int = 0
    confirmed_by: dict[str, int] = field(
        default_factory=dict
    )  # by node, the highest of all its processes

    @property
    def votes(self) -> bool:
        """Whether its brokers elect their master themselves."""
        return self.mode == "raft-log"

    @property
    def exempt(self) -> bool:
        """Whether the laws of acknowledged bytes are not checked now: a switchless master waits for
        some members of its set, not for all."""
        return self.excused or self.mode == "switchless"


def raft_group(node: str) -> str:
    """Return the Raft group of a controller or coordinator: the role in its name."""
    return node.rpartition("-")[0]


class LawState:
    """The state of one cluster."""

    def __init__(
        self,
        sets: Sequence[BrokerSetLayout],
        settings: Fields,
        now_ns: Callable[[], int],
        log_bytes: LogBytes,
    ) -> None:
        self.sequence: dict[int, Fields] = {}  # decisions of HA controllers by SequenceID
        self.machines = settings.get("haMode") == MACHINE_MODE
        self.violations: list[Violation] = []
        self.counts: Counter[Law] = Counter()
        self.checks: Counter[Law] = Counter()
        self.lines = 0  # read from event logs
        self.unreadable = 0  # of these, unreadable or lost
        self.damaged = False  # nodes may send data from damaged disks
        self.damages: Counter[str] = Counter()  # of nodes whose files changed or were not synced
        pause_ms = float(settings.get("preferredPause", 300_000))
        self.preferred_pause_ns = pause_ms * 1e6 * float(settings.get("timeScale", 1.0))
        self.closed_zones: set[str] = set()
        self.unclean = bool(settings.get("enableElectUncleanMaster", False))
        self.log_bytes = log_bytes
        self.set_of: dict[str, SetState] = {}  # by broker (BrokerSetLayout.replica)
        self.sets: dict[str, SetState] = {}
        self.processes: dict[str, NodeLifetime] = {}
        mode = str(settings.get("haMode", "controller"))
        self.acting = bool(settings.get("enableSlaveActingMaster", False))
        self.convertible = bool(settings.get("convertible", False))
        self._sync_flush = settings.get("flushDiskType") == "SYNC_FLUSH"
        self._now_ns = now_ns
        self._log_versions = 0
        all_ack = mode == "raft-log" or settings.get("allAckInSyncStateSet", False)
        excused = self.unclean or not all_ack
        for each in sets:
            addresses = {where: each.replica(node) for where, node in each.addresses.items()}
            set_state = SetState(each.name, AckedLog(log_bytes), addresses, excused=excused)
            set_state.mode = mode
            self.sets[each.name] = set_state
            self.set_of |= {each.replica(node): set_state for node in each.nodes}

    def start_process(self, node: str, boot: int) -> NodeLifetime:
        life = self.processes[node] = NodeLifetime(node, boot)
        self.log_changed(life)
        return life

    def process(self, node: str) -> NodeLifetime:
        return self.processes.get(node) or self.start_process(node, 0)

    def parts_of(self, node: str) -> list[str]:
        """Return the node itself, and the brokers inside if it is a container."""
        return [node, *(each for each in self.set_of if each.startswith(f"{node}{INSIDE}"))]

    def log_changed(self, life: NodeLifetime) -> None:
        self._log_versions += 1
        life.log_version = self._log_versions

    def report(self, law: Law, node: str, sentence: str, fields: Fields, t_ns: int = -1) -> None:
        self.counts[law] += 1
        if self.counts[law] <= MAX_SHOWN:
            at_ns = self._now_ns() if t_ns < 0 else t_ns
            self.violations.append(Violation(law, at_ns, host_of(node), sentence, fields))

    def check_holds(self, of: SetState, node: str, until: int, blamed: str, t_ns: int = -1) -> None:
        at = of.acked.first_missing(node, until)
        if at is not None:
            why = (
                f"{node} is in the SyncStateSet of {of.name}, which acknowledged {until} bytes, "
                f"and does not hold byte {at}"
            )
            fields = {"set": of.name, "epoch": of.epoch, "member": node}
            fields |= {"acknowledged": until, "lacks": at}
            self.report(Law.SET_LACKS_ACKED, blamed, why, fields, t_ns)

    def power_lost(self, node: str) -> None:
        """The node lost what its disk had not synced; without synchronous flush, acknowledged
        bytes, too."""
        for broker in self.parts_of(node):
            if broker in self.processes:
                self.log_changed(self.processes[broker])
            if (of := self.set_of.get(broker)) is not None:
                of.acked.power_lost(broker)
                of.excused = of.excused or not self._sync_flush

    def syncs_fail(self, node: str) -> None:
        """Data that the disk had not synced may be lost, although the node runs on."""
        self.damages[node] += 1
        for broker in self.parts_of(node):
            if (of := self.set_of.get(broker)) is not None:
                of.acked.power_lost(broker)
                of.excused = of.excused or not self._sync_flush

    def disk_damaged(self, node: str) -> None:
        """Acknowledged bytes may be lost or changed on this node, whatever the configuration waits
        for."""
        self.damaged = True
        self.damages[node] += 1
        for broker in self.parts_of(node):
            if broker in self.processes:
                self.log_changed(self.processes[broker])
            if (of := self.set_of.get(broker)) is not None:
                of.acked.power_lost(broker)
                of.excused = True

    def events(self) -> Iterator[tuple[int, str, str, Fields]]:
        """Yield (t, node, kind, fields) of all checks and violations, for the history, at
        the end."""
        inside = any(INSIDE in broker for broker in self.set_of)
        absent = set() if self.machines else set(OF_MACHINES)
        absent |= set() if inside else OF_CONTAINERS
        absent |= set() if self.convertible else OF_CONVERSIONS
        absent |= set() if self.acting else OF_ACTING
        laws = [law for law in Law if law not in absent]
        looked = {law.value: self.checks[law] for law in laws}
        seen = {"looked": looked, "lines": self.lines, "unseen": self.unreadable}
        yield self._now_ns(), "", LAWS_WATCHED, seen
        left = self.counts.copy()
        for broken in self.violations:
            left[broken.law] -= 1
        for broken in self.violations:
            untold = {"untold": n} if (n := left.pop(broken.law, 0)) else {}
            head = {"law": broken.law.value, "why": broken.sentence}
            yield broken.t_ns, broken.node, LAW_BROKEN, {**head, **broken.fields, **untold}

"""What a fault is given, offers and declares.

A fault's function takes one line of a plan and a `FaultContext`, and returns an `Injection`. It
changes the network through the context's `links` alone, so that overlapping faults do not undo each
other. What a fault may break, and what it does to a node's process and disk, is data: its
`FaultEffects`.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from harness.contracts.hosts import Distance, Node
from harness.contracts.plugin import Declaration, Plugin, refuse_wrong_types
from harness.contracts.systems import TestBed
from harness.errors import UnknownName
from harness.judge.demands import ALL_DEMANDS, INTEGRITY


class ProcessEnd(StrEnum):
    """How a fault ends the processes of its targets."""

    NONE = "none"  # they continue, though perhaps stopped or starved
    KILLED = "killed"  # at once, until the fault is healed
    TERMINATED = "terminated"  # by a signal that they may handle, until the fault is healed
    RESTARTED = "restarted"  # killed, and started again while the fault is in force


class DataLoss(StrEnum):
    """Which disks lose synced data."""

    NONE = "none"
    TARGETS = "targets"  # those of all targets, unless the observation has LOST_COPIES
    OBSERVED = "observed"  # only those of nodes that the observation lists in LOST_COPIES


@dataclass(frozen=True, kw_only=True)
class FaultEffects(Declaration):
    """What a fault may do to a system that does not claim to survive it.

    may_break     demands that a finding under it may be excused from
    ends          how it ends the processes of its targets
    silences      its targets send and receive nothing from its apply to its heal
    spoils        their disks fail while their processes run
    excuses_exit  they may end by their own decision or refuse to start
    forgets       their disks may lose what had not been synced
    destroys      whose disks lose what had been synced
    """

    may_break: frozenset[str]
    ends: ProcessEnd = ProcessEnd.NONE
    silences: bool = False
    spoils: bool = False
    excuses_exit: bool = False
    forgets: bool = False
    destroys: DataLoss = DataLoss.NONE

    def __post_init__(self) -> None:
        """Raise BadRequest if an attribute has a wrong type, or a demand does not exist."""
        super().__post_init__()
        for demand in sorted(self.may_break - ALL_DEMANDS):
            raise UnknownName("demand in may_break of FaultEffects", demand, ALL_DEMANDS)

    def breaks(self, demand: str) -> bool:
        """Whether a finding with this demand may be excused. A demand that a checker of another
        package defines is one of them if all of Seatrial's own are, `integrity` aside."""
        own = demand in ALL_DEMANDS
        return demand in self.may_break if own else self.may_break >= ANY_BUT_INTEGRITY

    @property
    def suspends(self) -> bool:
        """Whether its targets stand still, and continue when it is healed."""
        return self.silences and self.ends is ProcessEnd.NONE


LOST_COPIES = "lost_copies"  # in an observation's evidence: nodes whose copies are gone
# A fault that ends, silences or delays a node can cause an election. A system that does not
# claim to survive that may lose what the old master acknowledged, and with it order, metadata and
# every level of isolation. It never explains a record that was not written, or that reads
# differently.
ANY_BUT_INTEGRITY = ALL_DEMANDS - {INTEGRITY}
NEUTRAL = FaultEffects(may_break=frozenset())  # of kinds that no installed plug-in provides


@dataclass(frozen=True)
class PlannedFault:
    """One line of a plan: explicit data, saved before the run.

    kind      a fault's name: `partition`
    at_s      seconds after the load began
    for_s     how long it lasts; with `until`, at most that long
    target    a selector, resolved at the moment of the fault: `master`, `minority`, `broker-2` ...
    params    the fault's own: {shape = "isolate"} or {probability = 0.8}; every parameter that
              the fault declares is there, by default with its default
    after     also wait for this before it begins: "1000 acks within 9 s": so many more sends were
              acknowledged since the previous fault of the plan was applied, at most so long;
              "event truncate within 5 s": a node logged one since then, else the fault is left out;
              "master changes within 20 s", "cluster is whole within 60 s" ...
              (nemesis/_plan/conditions.py)
    until     heal as soon as this holds: "another-master" (one with a higher epoch), "next"
              (the next fault of the plan has been applied), "set shrinks" ... or "event election";
              also with " + 2 s"
    """

    kind: str
    at_s: float
    for_s: float
    target: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    after: str = ""
    until: str = ""


@dataclass(frozen=True)
class Observation:
    """Whether the effect was seen in the world, not whether a command returned.

    `measured` is the effect in a few words, with its figure: "80 % of packets lost", "102 ms
    added", "a write fails with ENOSPC". `seatrial list faults --verify` shows it.
    """

    state: Literal["installed", "partial", "failed"]
    evidence: Mapping[str, Any] = field(default_factory=dict)
    measured: str = ""

    @classmethod
    def graded(
        cls, everywhere: bool, somewhere: object, evidence: Mapping[str, Any], measured: str = ""
    ) -> "Observation":
        """Return `installed` if the effect was seen everywhere, `partial` if somewhere."""
        state: Literal["installed", "partial", "failed"] = "partial" if somewhere else "failed"
        return cls("installed" if everywhere else state, evidence, measured)


class Injection(Protocol):
    """One fault in the world. Entering applies it, and leaving heals it, whatever happened:
    leaving must work after an entering that was interrupted, and more than once, whether it
    failed or not. Each method raises BedFailed for what it cannot do; that is recorded, and the run
    goes on."""

    # role -> names of the nodes it resolved to; empty: no node has the role now. After
    # entering, only those that it really hit
    targets: Mapping[str, Sequence[str]]

    async def __aenter__(self) -> "Injection": ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def observe(self) -> Observation:
        """Observe, while entered, whether the effect is there."""
        ...

    async def observe_healed(self) -> Observation:
        """Observe, after leaving, even if that failed, whether the effect is gone. `installed` then
        means healed."""
        ...


@runtime_checkable
class RecurringInjection(Protocol):
    """An injection that must be repeated all the time, and so may stop before it is left."""

    @property
    def broke_off(self) -> str:
        """Why it was not kept up, once it was left; empty if it was."""
        ...


Link = tuple[str, str]  # names of the sending and the receiving node


class LinkEffect(NamedTuple):
    """What is wrong with a link, in the terms of `LinkRule`; by default nothing."""

    drop: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float = 0.0  # 0: unlimited
    node_bytes_per_s: float = 0.0

    def worse(self, other: "LinkEffect") -> "LinkEffect":
        """Return both at once: the greater of each kind of harm."""
        return LinkEffect(
            max(self.drop, other.drop),
            max(self.delay_s, other.delay_s),
            max(self.jitter_s, other.jitter_s),
            max(self.reorder, other.reorder),
            _narrower(self.bytes_per_s, other.bytes_per_s),
            _narrower(self.node_bytes_per_s, other.node_bytes_per_s),
        )

    @property
    def narrow(self) -> bool:
        """Whether the bandwidth is limited."""
        return self.bytes_per_s > 0 or self.node_bytes_per_s > 0


NO_EFFECT, CUT = LinkEffect(), LinkEffect(drop=1.0)


def _narrower(one: float, other: float) -> float:
    return min(filter(None, (one, other)), default=0.0)


class MergedLinkRules(Protocol):
    """The network rules of all faults in force, merged: where two meet, the worse one wins.

    min_latency_s   how long the quickest packet took on a link that was measured on its own
    """

    min_latency_s: MutableMapping[Link, float]

    async def apply(self, owner: object, effects: Mapping[Link, LinkEffect]) -> None:
        """Put a fault's effects in force."""
        ...

    async def remove(self, owner: object) -> None:
        """Remove a fault's effects; do nothing if it has none in force."""
        ...

    def effect(self, link: Link) -> LinkEffect:
        """Return what all faults together want of the link."""
        ...

    def distance(self, link: Link) -> Distance:
        """Return what is between the link's ends for the whole trial, by rules that belong to no
        fault."""
        ...

    def version(self, node: str) -> int:
        """Return a number that rises when replacing the node's rules begins, and when it is done,
        which resets their counters."""
        ...


class ResolveSelector(Protocol):
    """Resolves selectors to nodes."""

    def __call__(self, selector: str, spare: Collection[str] = ()) -> Sequence[Node]:
        """Return the nodes that a selector means now, without those in `spare`."""
        ...


@dataclass(frozen=True)
class FaultContext:
    """What a fault is given at its moment.

    bed       nodes, agents, the system's driver, the clock
    links     the network rules of all faults, for faults that change the network
    resolve   returns the nodes that a selector means now: `resolve(planned.target, spare=claimed)`
    role_now  returns a node's role in the cluster now (`master`), else its fixed one
    claimed   names of the nodes whose process a fault controls now. A fault that ends, stops or
              limits processes adds its nodes when it is entered, and removes the same ones when
              healing was observed, so that no other fault takes them meanwhile
    random    a `random.Random` of its own, from the trial's seed
    """

    bed: TestBed
    links: MergedLinkRules
    resolve: ResolveSelector
    role_now: Callable[[Node], str]
    claimed: set[str]
    random: Any

    def by_role(self, nodes: Sequence[Node]) -> Mapping[str, Sequence[str]]:
        """Group nodes by their role now: an injection's `targets`."""
        names: dict[str, list[str]] = {}
        for node in nodes:
            names.setdefault(self.role_now(node), []).append(node.name)
        return names


@dataclass(frozen=True)
class Param:
    """A parameter of a fault, in `FaultPlugin.params`.

    `default` gives its type; `unit` is the unit of a number, or `selector`, or `version`
    (of the system's program, which is fetched and installed before the load).
    """

    default: Any
    meaning: str
    unit: str = ""
    among: Sequence[str] = ()  # a word must be one of these
    low: float = 0.0  # a number must lie in [low, high]
    high: float = float("inf")

    def __post_init__(self) -> None:
        """Raise BadRequest for an attribute of a wrong type."""
        refuse_wrong_types(self)


def _any_params(_planned: PlannedFault) -> None:
    """Accept any combination of parameters."""


def _no_named_nodes(_planned: PlannedFault, _nodes: Sequence[Node]) -> None:
    """Accept any nodes, for a fault that names nodes by selectors only."""


def _no_time(_planned: PlannedFault, _nodes: Sequence[Node]) -> float:
    """Return 0, for a fault that is done as soon as it is applied."""
    return 0.0


def _no_cut(_planned: PlannedFault, _nodes: Sequence[Node]) -> frozenset[Link]:
    """Return no links, for a fault that cuts none."""
    return frozenset()


def _never_impossible(_planned: PlannedFault, _nodes: Sequence[Node]) -> str:
    """Return no reason, for a fault that may always hit something."""
    return ""


def _any_target(_target: str, _nodes: Sequence[Node]) -> bool:
    """Return True, for a fault that can hit any target."""
    return True


def _all_targets(targets: Sequence[str]) -> Sequence[str]:
    return targets


async def _always_able(_bed: TestBed) -> str:
    """Return no reason, for a fault that works wherever the kind of hosts can do what it needs."""
    return ""


@dataclass(frozen=True, kw_only=True)
class FaultPlugin(Plugin):
    """What the module of a fault declares as `PLUGIN`.

    fault               returns the injection of a planned fault
    effects             what it may do to a system that does not claim to survive it
    draw                draws target and parameters; the second argument, if not empty, restricts
                        the targets
    params              its parameters by name
    needs               abilities that the hosts must have: names of HOST_ABILITIES
    needs_of            what a planned fault needs of what its hosts can, where that follows from
                        its parameters; None: `needs`
    check               raises BadRequest if target and parameters make no sense together
    check_nodes         raises BadRequest if parameters name nodes that do not exist
    takes_s             how long it must last to do what its parameters say
    impossible_reason   why it can never hit anything; empty if it can
    always_cuts         the links that it cuts whenever it is applied
    can_hit             whether it can hit a target
    campaign_targets    those of a campaign's targets that it is aimed at
    unsupported_reason  why the nodes of a run cannot do it; empty if they can
    verify_examples     target and parameters, and perhaps seconds, of the faults that
                        `seatrial list faults --verify` injects; empty: one that is drawn
    hits_clients        it may be aimed at clients
    """

    MAIN: ClassVar[str] = "fault"
    RETURNS: ClassVar[Any] = Injection

    fault: Callable[[PlannedFault, FaultContext], Injection]
    effects: FaultEffects
    draw: Callable[[Random, Sequence[str]], tuple[str, Mapping[str, Any]]]
    params: Mapping[str, Param] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    needs_of: Callable[[PlannedFault, frozenset[str]], frozenset[str]] | None = None
    check: Callable[[PlannedFault], None] = _any_params
    check_nodes: Callable[[PlannedFault, Sequence[Node]], None] = _no_named_nodes
    takes_s: Callable[[PlannedFault, Sequence[Node]], float] = _no_time
    impossible_reason: Callable[[PlannedFault, Sequence[Node]], str] = _never_impossible
    always_cuts: Callable[[PlannedFault, Sequence[Node]], Collection[Link]] = _no_cut
    can_hit: Callable[[str, Sequence[Node]], bool] = _any_target
    campaign_targets: Callable[[Sequence[str]], Sequence[str]] = _all_targets
    unsupported_reason: Callable[[TestBed], Awaitable[str]] = _always_able
    verify_examples: Sequence[Any] = ()
    hits_clients: bool = False

    def needs_for(self, planned: PlannedFault, can: frozenset[str]) -> frozenset[str]:
        """Return the abilities that a planned fault needs, on hosts that have these."""
        return self.needs_of(planned, can) if self.needs_of else self.needs

"""What a fault is given, offers and declares.

A fault's function takes one line of a plan and a `Scene`, and gives an `Injection`. It changes the
network through the scene's `links` alone, so that faults that meet do not undo each other. What a
fault may break, and what it does to a node's process and disk, is data: its `Effects`.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from harness.contracts.hosts import Distance, Node
from harness.contracts.plugin import Declaration, Plugin, refuse_wrong_types
from harness.contracts.systems import Bed
from harness.errors import UnknownName
from harness.judge.demands import ALL_DEMANDS, INTEGRITY


class Ends(StrEnum):
    """How a fault ends the processes of its targets."""

    NOT = "not"  # they go on, if only stopped or starved
    KILLED = "killed"  # at once, until it is healed
    ASKED = "asked"  # by a signal that they may answer in their own way, until it is healed
    BOUNCED = "bounced"  # killed, and started again while it is still in force


class Destroys(StrEnum):
    """Whose disks lose what had been synced."""

    NONE = "none"
    TARGETS = "targets"  # all its targets', unless its observation has LOST_COPIES
    OBSERVED = "observed"  # only of those that its observation has in LOST_COPIES


@dataclass(frozen=True, kw_only=True)
class Effects(Declaration):
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
    ends: Ends = Ends.NOT
    silences: bool = False
    spoils: bool = False
    excuses_exit: bool = False
    forgets: bool = False
    destroys: Destroys = Destroys.NONE

    def __post_init__(self) -> None:
        """Raise BadRequest for an attribute of a wrong type, or a demand that does not exist."""
        super().__post_init__()
        for demand in sorted(self.may_break - ALL_DEMANDS):
            raise UnknownName("demand in may_break of Effects", demand, ALL_DEMANDS)

    @property
    def suspends(self) -> bool:
        """Its targets stand still, and go on when it is healed."""
        return self.silences and self.ends is Ends.NOT


LOST_COPIES = "lost_copies"  # in an observation's evidence: nodes whose copies are gone
# A fault that ends, silences or delays a node can have another one elected. A system that does not
# claim to survive that may lose what the old one acknowledged, and with it order, metadata and
# every level of isolation; but no record that was never written, or that reads
# otherwise, is explained by it.
ANY_BUT_INTEGRITY = ALL_DEMANDS - {INTEGRITY}
NEUTRAL = Effects(may_break=frozenset())  # of a kind that no installed plug-in provides


@dataclass(frozen=True)
class PlannedFault:
    """One line of a plan: explicit data, saved before the run.

    kind      a fault's name: `partition`
    at_s      seconds after the load began
    for_s     how long it lasts; with `until`, at most that long
    target    a selector, resolved at the moment of the fault: `master`, `minority`, `broker-2` ...
    params    the fault's own: {shape = "isolate"} or {probability = 0.8}
    after     begin only once this holds, too: "1000 acks within 9 s": so many more sends were
              acknowledged since the previous fault of the plan was applied, or so long ago;
              "event truncate within 5 s": some node told of one since then, or no fault at all;
              "master changes within 20 s", "cluster is whole within 60 s" ... (nemesis/_conditions)
    until     healed as soon as this holds: "another-master" (one with a higher epoch), "next"
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


class Injection(Protocol):
    """One fault in the world. Entering applies it, leaving heals it, whatever happened: leaving
    must work after an entering that was interrupted, and again, whether it had failed or not."""

    # part or role -> names of the nodes it resolved to; none: nobody plays the part just now. After
    # entering only those that it really hit
    targets: Mapping[str, Sequence[str]]

    async def __aenter__(self) -> "Injection": ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def observe(self) -> Observation:
        """While entered: is the effect there?"""
        ...

    async def observe_healed(self) -> Observation:
        """After leaving, even if that failed: is the effect gone? `installed` then means healed."""
        ...


@runtime_checkable
class Recurring(Protocol):
    """An injection that has to be done again and again, and so may break off before it is left."""

    @property
    def broke_off(self) -> str:
        """Why it was not kept up, once it was left; nothing when it was."""
        ...


Link = tuple[str, str]  # names of the sending and the receiving node


class Effect(NamedTuple):
    """What is wrong with a link, as `harness.contracts.LinkRule` says it; by default nothing."""

    drop: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float = 0.0  # 0: as many as it can
    node_bytes_per_s: float = 0.0

    def worse(self, other: "Effect") -> "Effect":
        """Both at once: of each kind of harm the greater."""
        return Effect(
            max(self.drop, other.drop),
            max(self.delay_s, other.delay_s),
            max(self.jitter_s, other.jitter_s),
            max(self.reorder, other.reorder),
            _narrower(self.bytes_per_s, other.bytes_per_s),
            _narrower(self.node_bytes_per_s, other.node_bytes_per_s),
        )

    @property
    def narrow(self) -> bool:
        return self.bytes_per_s > 0 or self.node_bytes_per_s > 0


NOTHING, CUT = Effect(), Effect(drop=1.0)


def _narrower(one: float, other: float) -> float:
    return min(filter(None, (one, other)), default=0.0)


class Links(Protocol):
    """The network rules of all faults in force, merged: where two meet, the worse one wins.

    ways_s   how long the quickest packet took on a link that somebody measured, by itself
    """

    ways_s: MutableMapping[Link, float]

    async def lay(self, owner: object, effects: Mapping[Link, Effect]) -> None:
        """Put a fault's effects in force."""
        ...

    async def lift(self, owner: object) -> None: ...

    def effect(self, link: Link) -> Effect:
        """What all faults together want of the link."""
        ...

    def distance(self, link: Link) -> Distance:
        """What is between its ends for the whole trial, by rules that are no fault's."""
        ...

    def version(self, node: str) -> int:
        """Rises when the node's rules begin to be replaced, and when that is over, which resets
        their counters."""
        ...


class Aim(Protocol):
    def __call__(self, selector: str, spare: Collection[str] = ()) -> Sequence[Node]:
        """Whom a selector means now, of those not spared."""
        ...


@dataclass(frozen=True)
class Scene:
    """What a fault is given at its moment."""

    bed: Bed
    links: Links
    aim: Aim
    part: Callable[[Node], str]  # the part a node plays now (`master`), else its role
    held: set[str]  # nodes whose process some fault has hold of: it adds and takes away its own
    random: Any  # a `random.Random` of its own

    def parts(self, nodes: Sequence[Node]) -> Mapping[str, Sequence[str]]:
        """Nodes by the part they play: an injection's `targets`."""
        found: dict[str, list[str]] = {}
        for node in nodes:
            found.setdefault(self.part(node), []).append(node.name)
        return found


@dataclass(frozen=True)
class Param:
    """A parameter of a fault, in `FaultPlugin.params`.

    `default` gives its type; `unit` is the unit of a number, or `selector`.
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


def _accepted(_planned: PlannedFault) -> None:
    """Of a fault whose parameters make sense in any combination."""


def _none_named(_planned: PlannedFault, _nodes: Sequence[Node]) -> None:
    """Of a fault whose parameters name no nodes but by selectors."""


def _no_time(_planned: PlannedFault, _nodes: Sequence[Node]) -> float:
    """Of a fault that is done as soon as it is applied."""
    return 0.0


def _nothing_cut(_planned: PlannedFault, _nodes: Sequence[Node]) -> frozenset[Link]:
    """Of a fault that cuts no links."""
    return frozenset()


def _possible(_planned: PlannedFault, _nodes: Sequence[Node]) -> str:
    """Of a fault that may always hit something."""
    return ""


def _any_target(_target: str, _nodes: Sequence[Node]) -> bool:
    """Of a fault that can hit whatever is there."""
    return True


def _all_targets(targets: Sequence[str]) -> Sequence[str]:
    return targets


async def _able(_bed: Bed) -> str:
    """Of a fault that works wherever its kind of hosts can do what it needs."""
    return ""


@dataclass(frozen=True, kw_only=True)
class FaultPlugin(Plugin):
    """What the module of a fault declares as `PLUGIN`.

    fault        the injection of a planned fault
    effects      what it may do to a system that does not claim to survive it
    drawn        target and parameters of one that is drawn from a seed; the second argument, if
                 not empty, restricts the targets
    params       its parameters by name
    needs        of what `Hosts.can` names
    check        raises BadRequest if target and parameters make no sense together
    check_nodes  raises BadRequest if parameters name nodes that do not exist
    takes_s      how long it must last to do what its parameters say
    hopeless     why it can never hit anything, if so
    surely_cut   the links that it cuts whenever it is applied
    suits        whether it can hit a target
    usual        those of a campaign's targets that are for it
    lacking      why the nodes of a run can not do it, if so
    shown        target and parameters, and perhaps seconds, of those that `seatrial list faults
                 --verify` injects; empty: one that is drawn
    hits_clients it may be aimed at clients
    """

    MAIN: ClassVar[str] = "fault"

    fault: Callable[[PlannedFault, Scene], Injection]
    effects: Effects
    drawn: Callable[[Random, Sequence[str]], tuple[str, Mapping[str, Any]]]
    params: Mapping[str, Param] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    check: Callable[[PlannedFault], None] = _accepted
    check_nodes: Callable[[PlannedFault, Sequence[Node]], None] = _none_named
    takes_s: Callable[[PlannedFault, Sequence[Node]], float] = _no_time
    hopeless: Callable[[PlannedFault, Sequence[Node]], str] = _possible
    surely_cut: Callable[[PlannedFault, Sequence[Node]], Collection[Link]] = _nothing_cut
    suits: Callable[[str, Sequence[Node]], bool] = _any_target
    usual: Callable[[Sequence[str]], Sequence[str]] = _all_targets
    lacking: Callable[[Bed], Awaitable[str]] = _able
    shown: Sequence[Any] = ()
    hits_clients: bool = False

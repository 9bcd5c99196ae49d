"""What an operator may do to a system while it runs: change its members, hand a mastership over,
bring nodes to another version.

A system whose members may change has `members` in its `can`, beside what its hosts can, and lists
in `members` the roles that may leave and join. It executes the operator's commands; a fault says
when, and observes. Members that vote are removed while they run, so that the others agree without
them; those that hold copies (`stopped_first`) when their process has ended, since liveness is part
of their membership. A system whose masters can be replaced by a command has `handover` in its
`can`; one whose nodes can run several versions of their program has `versions`; one whose nodes run
several brokers each, which can be removed and added, has `containers`; one whose broker sets can be
converted to another way of choosing masters has `modes`; one whose controllers can agree in several
ways has `consensus-kinds`; one whose masters may hold all sends until a slave has caught up has
`held-sends`.
"""

from typing import Protocol

from harness.contracts import System, TestBed

REJOIN = "rejoin"  # in a system's `can`: a node that has lost its disk can be started again

ZONES = "zones"  # likewise: an operator can have all masters leave a zone

CONTAINERS = "containers"  # likewise: its nodes run several brokers, which can be removed and added

CONVERSION = "modes"  # likewise: its masters can be chosen in several ways, which can be exchanged

CONSENSUS = "consensus-kinds"  # likewise: its controllers can agree in several ways

HOLDS = "held-sends"  # likewise: its masters hold sends until a slave has caught up, at times

VERSIONS = "versions"  # likewise: its nodes can run several versions of their program


class MemberSystem(System, Protocol):
    """A system that can `members`."""

    can: frozenset[str]
    members: tuple[str, ...]  # roles
    stopped_first: tuple[str, ...]  # those whose nodes are removed after their process ended

    async def remove_member(self, bed: TestBed, node: str) -> None:
        """Have the others agree to remove the node. Raises BedFailed if they do not."""
        ...

    async def start_new_member(self, bed: TestBed, node: str) -> None:
        """Start the node's process as one that is not a member: it waits until it is added."""
        ...

    async def add_member(self, bed: TestBed, node: str) -> None:
        """Have the others agree to add the node; does nothing where new members register
        themselves. Raises BedFailed if they do not agree."""
        ...

    async def is_member(self, bed: TestBed, node: str) -> bool:
        """Whether the others know the node as a member now."""
        ...


class HandoverSystem(System, Protocol):
    """A system that has `handover` in its `can`."""

    can: frozenset[str]

    async def hand_over(self, bed: TestBed, node: str) -> str:
        """Have this master hand its mastership over to another node. Return why it was refused;
        empty if another node was elected. Raises BedFailed if no node can be asked."""
        ...


class ZonedSystem(System, Protocol):
    """A system that has `zones` in its `can`."""

    can: frozenset[str]

    async def drill_zone(self, bed: TestBed, zone: str) -> str:
        """Have all masters in a zone hand over to nodes elsewhere, and none come back before
        `return_zone`. Return which broker sets still have a master there, and why; usually empty.
        Raises BedFailed if it is refused, or no node answers."""
        ...

    async def return_zone(self, bed: TestBed, zone: str) -> None:
        """Let masters be in this zone again. Raises BedFailed if the system does not agree in
        time."""
        ...


class ConvertibleSystem(System, Protocol):
    """A system that has `modes` in its `can`."""

    can: frozenset[str]
    modes: tuple[str, ...]  # the ways in which its masters can be chosen

    async def mode_of(self, bed: TestBed, broker_set: str) -> str:
        """Return the mode of a broker set, by the latest of its nodes; empty if none answers."""
        ...

    async def is_converting(self, bed: TestBed, broker_set: str) -> bool:
        """Return whether a conversion has begun and not ended, as far as nodes answer."""
        ...

    async def convert(self, bed: TestBed, broker_set: str, mode: str) -> str:
        """Convert a broker set, or end a conversion that was interrupted. Return why it is not in
        this mode now; empty if it is."""
        ...


class ConsensusSystem(System, Protocol):
    """A system that has `consensus-kinds` in its `can`. A kind is a value of a setting with which
    a controller is started."""

    can: frozenset[str]
    consensus_kinds: tuple[str, ...]

    def consensus(self, node: str) -> str:
        """Return the kind with which the node is started."""
        ...

    async def set_consensus(self, bed: TestBed, node: str, kind: str) -> None:
        """Have the node started with this kind from now on, by whatever starts it."""
        ...

    async def running_consensus(self, bed: TestBed, node: str) -> str:
        """Return the kind that the node's process says it has; empty if it does not answer."""
        ...


class ContainerSystem(System, Protocol):
    """A system that has `containers` in its `can`."""

    can: frozenset[str]

    async def inner_broker(self, bed: TestBed, node: str, which: str) -> str:
        """Return the name of a broker of this node's process that is a `master` or a `slave` now;
        empty if there is none."""
        ...

    async def remove_inner(self, bed: TestBed, node: str, broker: str) -> None:
        """Remove a broker from this node's process. Raises BedFailed if the node does not do
        it."""
        ...

    async def add_inner(self, bed: TestBed, node: str, broker: str, mistakes: bool) -> None:
        """Add a broker that was removed to the node's process; with `mistakes`, after additions
        that must be refused. Does nothing if it is there. Raises BedFailed if the node does not do
        it."""
        ...

    async def serves_inner(self, bed: TestBed, node: str, broker: str) -> bool:
        """Return whether this broker of the node's process answers."""
        ...


class VersionedSystem(System, Protocol):
    """A system that can `versions`. Versions are text, as its programs have them: 2.12.1."""

    can: frozenset[str]

    async def install_version(self, bed: TestBed, version: str) -> None:
        """Put the program in this version on all nodes, beside the one that they run; called after
        `install`. Raises BedFailed if it is not to be had."""
        ...

    def version(self, node: str) -> str:
        """Return the version with which the node is started."""
        ...

    def first_version(self, node: str) -> str:
        """Return the version with which the node was started first."""
        ...

    async def before_version(self, bed: TestBed, node: str, version: str) -> None:
        """Do what an operator does before a node, which still runs, is started with another
        version. Raises BedFailed if it fails."""
        ...

    async def set_version(self, bed: TestBed, node: str, version: str) -> None:
        """Have the node started with this version from now on, by whatever starts it."""
        ...

    async def running_version(self, bed: TestBed, node: str) -> str:
        """Return the version that the node's process really is; empty if it does not run, or is
        none that was installed."""
        ...

"""What a driver offers: how to install, start, watch and stop one kind of cluster.

The `Bed` is what systems and faults work with while a trial runs.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from harness.contracts.agent import Agent
from harness.contracts.clients import MessageClient
from harness.contracts.cluster_view import Overseen, Standing
from harness.contracts.hosts import Distance, Hosts, Node
from harness.contracts.plugin import Plugin
from harness.errors import BedFailed

if TYPE_CHECKING:
    from harness.trial import Trial


class System(Protocol):
    """A driver: how to install, start, watch and stop one kind of cluster."""

    detection_s: float  # how long it may take to notice that a silent master is gone
    log: str  # the file in a node's folder that tells what it did
    data: str  # the folder in a node's folder that holds what the node must not lose

    def nodes(self) -> Sequence[Node]:
        """The cluster's nodes and the client nodes, without addresses."""
        ...

    async def install(self, bed: "Bed") -> None: ...

    async def start(self, bed: "Bed") -> None:
        """Start every node."""
        ...

    async def start_node(self, bed: "Bed", node: str) -> None:
        """Start one node's process (again)."""
        ...

    def process(self, node: str) -> str:
        """The agent's name for the node's process."""
        ...

    async def standing(self, bed: "Bed") -> Standing:
        """Ask the nodes themselves, over agents, so that partitions do not hide the answer."""
        ...

    async def healthy(self, bed: "Bed", within_s: float) -> Mapping[str, Any]:
        """Wait until the cluster serves with full redundancy; the evidence. BedFailed otherwise."""
        ...

    async def collect(self, bed: "Bed") -> None:
        """After the load: stop the nodes, read each replica's copy of the log into the history
        (`bed.record.replicas`), and server-side events (`bed.record.event`)."""
        ...

    def client(self, settings: Mapping[str, Any]) -> MessageClient:
        """A client, in a crew process. `settings` is what `client_settings` gave."""
        ...

    def client_settings(self, nodes: Sequence[Node]) -> Mapping[str, Any]:
        """What a client needs to find the cluster, as JSON."""
        ...


class Recorder(Protocol):
    """Writes the runner's part of the history; times are taken when called."""

    def note(self, text: str) -> None: ...

    def alarm(self, text: str) -> None:
        """A note that whoever watches the run is told at once."""
        ...

    def fault(self, row: Mapping[str, Any]) -> None:
        """A fault interval's state so far; the last row of an `id` counts."""
        ...

    def event(self, t: int, node: str, kind: str, fields: Mapping[str, Any]) -> None: ...

    def replicas(self, node: str, rows: Sequence[tuple[str, int, int, int, int]]) -> None:
        """A replica's messages in log order: (key, offset, value, epoch, crc). `crc`: a check sum
        of whatever else the record of a message holds, the same on every replica."""
        ...


class Clients(Protocol):
    """The processes that clients live in, for faults that hit them."""

    process: str  # the agent's name for it, on each client node

    async def crash(self, node: str) -> int:
        """The process on this client node ends at once, without a word to anybody but its journal;
        the process id that it had."""
        ...

    async def begin_again(self, node: str) -> None:
        """Another one in its place, that goes on with the load; nothing, where none crashed."""
        ...

    async def running(self, node: str) -> int:
        """The process id of the one that runs there now; 0: none."""
        ...


def _no_clients() -> Clients:
    raise BedFailed("no clients are aboard")


@dataclass(frozen=True)
class Bed:
    """The test bed of a running trial: what systems and faults work with."""

    nodes: Sequence[Node]
    agents: Mapping[str, Agent]
    hosts: Hosts
    system: System
    record: Recorder
    now_ns: Callable[[], int]  # nanoseconds since the run's start, the clock of record
    acknowledged: Callable[[], int]  # sends acknowledged so far, as the crews last told
    sleep: Callable[[float], Awaitable[None]]
    clients: Callable[[], Clients] = _no_clients
    distances: Mapping[tuple[str, str], Distance] = field(default_factory=dict)  # by rules of ours

    async def standing(self) -> Standing:
        """Who plays which part right now: seen where that can be seen, else asked."""
        if isinstance(self.hosts, Overseen):
            return self.hosts.standing()
        return await self.system.standing(self)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def of_role(self, role: str) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.role == role)


def _nothing_named() -> Mapping[str, Any]:
    return {}


def _nothing_claimed(_trial: "Trial") -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, kw_only=True)
class SystemPlugin(Plugin):
    """What the module of a system declares as `PLUGIN`.

    system    the driver of a trial
    profiles  its named configurations, each with `name` and `about`
    claims    what the trial's profile claims to survive: extents (one, minority, all) by kind of
              fault; nothing, if not declared
    mutants   its known-bad variants, each with `name` and `about`
    in_force  all settings by name as the trial's cluster has them
    swarm     profile, nodes and settings for one seed of a campaign
    """

    MAIN: ClassVar[str] = "system"

    system: Callable[["Trial"], System]
    profiles: Callable[[], Mapping[str, Any]] = _nothing_named
    claims: Callable[["Trial"], Mapping[str, str]] = _nothing_claimed
    mutants: Callable[[], Mapping[str, Any]] = _nothing_named
    in_force: Callable[["Trial"], Mapping[str, Any]] | None = None
    swarm: Callable[..., Mapping[str, Any]] | None = None

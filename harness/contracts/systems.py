"""What a driver offers: how to install, start, query and stop one kind of cluster.

Systems and faults work with the `TestBed` while a trial runs.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from harness.contracts.agent import Agent
from harness.contracts.clients import MessageClient
from harness.contracts.cluster_view import ClusterState, Omniscient
from harness.contracts.hosts import Distance, Hosts, Node
from harness.contracts.plugin import Plugin
from harness.errors import BedFailed

if TYPE_CHECKING:
    from harness.trial import Trial


class System(Protocol):
    """A driver: how to install, start, query and stop one kind of cluster.

    detection_s  how long it may take to detect that a silent master is gone; 0.0: there is no
                 failover
    log          the event log, as a path within a node's folder (`Hosts.folder`)
    data         the folder with the data that a node must not lose, likewise
    """

    detection_s: float
    log: str
    data: str

    def nodes(self) -> Sequence[Node]:
        """Return the cluster's nodes and the client nodes, without addresses. There must be a node
        of the role `client`. Called before any node exists."""
        ...

    async def install(self, bed: "TestBed") -> None:
        """Put programs and configuration on the nodes, which are up. Raises BedFailed if a node
        lacks something, with the command that installs it."""
        ...

    async def start(self, bed: "TestBed") -> None:
        """Start every node."""
        ...

    async def start_node(self, bed: "TestBed", node: str) -> None:
        """Start, or restart, one node's process; called by `start`, and by faults that ended it."""
        ...

    def process(self, node: str) -> str:
        """Return the agent's name for the node's process."""
        ...

    async def cluster_state(self, bed: "TestBed") -> ClusterState:
        """Query the nodes themselves, through agents, so that partitions do not hide the answer.
        A node that does not answer is left out; this is no error."""
        ...

    async def healthy(self, bed: "TestBed", within_s: float) -> Mapping[str, Any]:
        """Wait until the cluster serves with full redundancy; return the evidence, flat and as
        JSON. Raises BedFailed if that takes longer than `within_s`."""
        ...

    async def collect(self, bed: "TestBed") -> None:
        """After the load: stop the nodes, read each replica's copy of the log into the history
        (`bed.record.replicas`), and server-side events (`bed.record.event`). A system without
        replicas only stops its nodes."""
        ...

    def client(self, settings: Mapping[str, Any]) -> MessageClient:
        """Return a client, in a client process: a node that has Seatrial's packages and the
        standard library only. `settings` is what `client_settings` returned."""
        ...

    def client_settings(self, nodes: Sequence[Node]) -> Mapping[str, Any]:
        """Return what a client needs to find the cluster, as JSON. These nodes have addresses. What
        differs from one client node to another stands under `of_clients`, by node; each client
        gets the common settings with its own over them."""
        ...


class Recorder(Protocol):
    """Writes the runner's part of the history; times are taken when a method is called."""

    def note(self, text: str) -> None:
        """Record a line of text in the table `notes`."""
        ...

    def alarm(self, text: str) -> None:
        """Record a note that is also shown at once to the user who watches the run."""
        ...

    def fault(self, row: Mapping[str, Any]) -> None:
        """Record a fault interval's state so far; the last row of an `id` counts."""
        ...

    def event(self, t: int, node: str, kind: str, fields: Mapping[str, Any]) -> None:
        """Record something that a node did: at `t` (ns since the run's start, `TestBed.now_ns`), of
        this kind (`election`, `role` ...), with fields as JSON."""
        ...

    def replicas(self, node: str, rows: Sequence[tuple[str, int, int, int, int]]) -> None:
        """Record a replica's messages in log order: (key, offset, value, epoch, crc). `crc`: a
        checksum of everything else in the message's record, the same on every replica."""
        ...


class ClientProcesses(Protocol):
    """The processes that run clients, for faults that hit them."""

    process: str  # the agent's name for it, on each client node

    async def crash(self, node: str) -> int:
        """End the process on this client node at once, after its journal is written; return its
        pid."""
        ...

    async def restart(self, node: str) -> None:
        """Start a process that continues the load in the place of a crashed one; do nothing if none
        crashed."""
        ...

    async def pid(self, node: str) -> int:
        """Return the pid of the process that runs there now; 0: none."""
        ...


def _no_clients() -> ClientProcesses:
    raise BedFailed("no clients are running")


@dataclass(frozen=True)
class TestBed:
    """The test bed of a running trial: its nodes, hosts, system and recorder. `agents` has one for
    each node, by name. The time of `now_ns` and of `sleep` (seconds) may be virtual: drivers and
    faults read no other clock."""

    __test__: ClassVar[bool] = False  # it is not a test, despite its name

    nodes: Sequence[Node]
    agents: Mapping[str, Agent]
    hosts: Hosts
    system: System
    record: Recorder
    now_ns: Callable[[], int]  # nanoseconds since the run's start, the clock of record
    acknowledged: Callable[[], int]  # sends acknowledged so far, as client processes last reported
    sleep: Callable[[float], Awaitable[None]]
    clients: Callable[[], ClientProcesses] = _no_clients
    distances: Mapping[tuple[str, str], Distance] = field(default_factory=dict)  # between zones

    async def cluster_state(self) -> ClusterState:
        """Return which node has which role now: observed where the world is observable, else
        queried."""
        if self.omniscient:
            return self.omniscient.cluster_state()
        return await self.system.cluster_state(self)

    @cached_property
    def omniscient(self) -> Omniscient | None:
        """The hosts, if their whole world is observable."""
        return self.hosts if isinstance(self.hosts, Omniscient) else None

    def node(self, name: str) -> Node:
        """Return the node of this name, with its address. It must exist."""
        return next(node for node in self.nodes if node.name == name)

    def of_role(self, role: str) -> tuple[Node, ...]:
        """Return the nodes of this role, such as `broker`."""
        return tuple(node for node in self.nodes if node.role == role)


def _no_names() -> Mapping[str, Any]:
    return {}


def _no_claims(_trial: "Trial") -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class ContainerNeeds:
    """What containers of a system's nodes need, beside Python and the programs of all nodes.

    packages      Debian's packages, each with a program that it has: a name, or patterns of paths
    files         patterns of files and folders of the driver's machine, for an image that is made
                  of that machine's programs
    capabilities  of Linux: `KILL`
    """

    packages: Mapping[str, Sequence[str]] = field(default_factory=dict)
    files: Sequence[str] = ()
    capabilities: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class SystemPlugin(Plugin):
    """What the module of a system declares as `PLUGIN`.

    system    the driver of a trial
    profiles  its named configurations, each with `name` and `about`
    claims    what the trial's profile claims to survive: extents (none, one, minority, all) by
              kind of fault, `*` for every other kind; nothing, if not declared
    mutants   its known-bad variants, each with `name` and `about`
    in_force  all settings by name as the trial's cluster has them
    calls     names of the calls that its clients have, of `harness.contracts.calls`; None: its
              clients have the harness's own protocols, and it refuses workloads itself
    program_calls  starts the trial's client program, which stands in for its clients, and returns
              the calls that it has; called before a run only, for a program that the user named
    supply    the programs of its nodes, each with the ways to get it and what to do before this
              machine can, as a command or a sentence; empty if it can
    optional_supply
              the same of programs that only some settings need
    prepare   fetches, before anything is started, what nodes will run. Raises BadRequest or
              BedFailed
    words     its own words for the harness's, which reports use: for `master`, `slave`, `epoch`,
              `broker`, `broker set`, `SyncStateSet`
    attachable
              True if its driver can test a cluster that it has not started
    digests   True if its replicas have digests that are compared whatever the workload wrote
    copies_stopped
              True if its replicas' copies are read from files of nodes that have been stopped
    containers
              what containers of its nodes need
    swarm     profile, nodes and settings for one seed of a campaign
    """

    MAIN: ClassVar[str] = "system"
    RETURNS: ClassVar[Any] = System

    system: Callable[["Trial"], System]
    profiles: Callable[[], Mapping[str, Any]] = _no_names
    claims: Callable[["Trial"], Mapping[str, str]] = _no_claims
    mutants: Callable[[], Mapping[str, Any]] = _no_names
    in_force: Callable[["Trial"], Mapping[str, Any]] | None = None
    calls: Callable[["Trial"], Sequence[str]] | None = None
    program_calls: Callable[["Trial"], Sequence[str]] | None = None
    supply: Callable[[], Mapping[str, Sequence[tuple[str, str]]]] | None = None
    optional_supply: Callable[[], Mapping[str, Sequence[tuple[str, str]]]] | None = None
    prepare: Callable[["Trial"], object] | None = None
    words: Mapping[str, str] = field(default_factory=dict)
    digests: bool = False
    copies_stopped: bool = False
    attachable: bool = False
    containers: ContainerNeeds = field(default_factory=ContainerNeeds)
    swarm: Callable[..., Mapping[str, Any]] | None = None

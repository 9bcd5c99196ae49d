"""The extension points: what a host kind, system, workload, fault, checker and report must offer.

One file with one function adds one of them:

    clusters/hosts/NAME.py     hosts(trial, folder) -> Hosts         where nodes run
                               problems(bed) -> why none can run here
    clusters/systems/NAME.py   system(trial) -> System               what is tested
    harness/workloads/NAME.py  workload(trial) -> Workload           what clients do
    nemesis/NAME.py            fault(planned, scene) -> Injection    one way to break things
    checkers/NAME.py           check(history, trial, spark) -> Result   one property
    reports/NAME.py            render(run) -> path written           one format

A kind of hosts reads its options from `trial.bed`; its module also has `shell(run, node, command)`,
the argument list that runs a command on a node of a run in progress, and, where nodes outlive a
driver that was killed, `heal(run, entries)`. A fault's module also has `PARAMS` (`Param` of
`harness.scene` by name), `NEEDS` (of what `Hosts.can` names), `check(planned)`, which raises
BadRequest, and `drawn(random, targets) -> (target, params)` for plans drawn from a seed. `SHOWN`,
target and parameters (and seconds, of one that needs longer), is what `seatrial list faults
--verify` injects one after another; without it, one that is drawn. A system's may have
`in_force(trial)`, all settings by name as the trial's cluster has them, of which a suite at another
pace multiplies one.

They meet only through the values below. Faults reach nodes through `Agent` alone, so a fault
works on every kind of host that can do its verbs, and a host kind knows no fault.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from harness.agent import Agent as Agent
from harness.agent import Completed as Completed
from harness.agent import Disked as Disked
from harness.agent import DiskFault as DiskFault
from harness.agent import DiskSeen as DiskSeen
from harness.agent import Flight as Flight
from harness.agent import Forgetful as Forgetful
from harness.agent import Forgotten as Forgotten
from harness.agent import LinkRule as LinkRule
from harness.agent import Powered as Powered
from harness.agent import ProcessState as ProcessState
from harness.errors import BedFailed
from harness.operation import Completion
from harness.sight import Overseen
from harness.sight import Standing as Standing

CLIENT = "client"  # the role of nodes that clients live on


@dataclass(frozen=True)
class Node:
    """A machine of the trial. `role`: broker, controller, nameserver ... or client."""

    name: str
    role: str
    address: str = ""  # filled in by the hosts
    zone: str = ""
    dates: bool = False  # its own wall clock dates what the history is told of it


@dataclass(frozen=True)
class Distance:
    """How much later packets arrive because of the way alone; `jitter_s`: at most so much more."""

    delay_s: float = 0.0
    jitter_s: float = 0.0


# ---------------------------------------------------------------------------------------- hosts


@dataclass(frozen=True)
class Python:
    """How a node runs our code: its interpreter (3.11 or later), and the folder, as the node sees
    it, that holds our packages and tomli_w."""

    executable: str
    packages: str


@dataclass(frozen=True)
class Clock:
    """A node's monotonic clock: its reading minus the driver's, and how far off that may be. Where
    `rate` of its seconds pass in one of the driver's, its reading minus `rate` times the driver's.

    Nodes on the driver's own kernel share its clock: zero, and no error.
    """

    offset_ns: int = 0
    error_ns: int = 0
    rate: float = 1.0

    def drivers_ns(self, reading_ns: int) -> int:
        """What the driver's clock read when this one read that."""
        since_ns = reading_ns - self.offset_ns
        return since_ns if self.rate == 1.0 else round(since_ns / self.rate)


class Hosts(Protocol):
    """Machines raised for one trial. Entered: all nodes are up, with agents and addresses.
    Left: what the nodes wrote is in the run's folder, and everything it made is gone."""

    # of: links, loss, delay and bandwidth (see Agent.lacks), signal, restart, files (of a stopped
    # node, changed), disk (see Disked), power, events (see Telling)
    can: frozenset[str]
    shares_files: bool  # nodes see the run's folder, so nothing has to be carried home

    def enter(self) -> None:
        """Prepare this process, still single-threaded: enter namespaces, if the kind needs it."""
        ...

    def check(self, nodes: Sequence[Node]) -> None:
        """BadRequest when there is no place for these nodes; asks nobody."""
        ...

    def run(self, main: Coroutine[Any, Any, int]) -> int:
        """Carry out the driver's part to its end, on the event loop of these hosts' world."""
        ...

    def raised(
        self, nodes: Sequence[Node]
    ) -> AbstractAsyncContextManager[tuple[Sequence[Node], Mapping[str, Agent]]]:
        """Raise the nodes; gives them back with addresses, and an agent for each name."""
        ...

    def folder(self, node: str) -> str:
        """The node's own folder, as the node sees it, for configuration, data and logs."""
        ...

    def python(self, node: str) -> Python:
        """Once raised."""
        ...

    def clock(self, node: str) -> Clock:
        """Once raised."""
        ...


@runtime_checkable
class Timed(Protocol):
    """Hosts that compare clocks of nodes, which may not stay as they were when they were raised."""

    async def clocks_again(self) -> Mapping[str, Clock]:
        """What those clocks read now that have an error, give or take how far this comparison is
        off; `clock` stays as it was. BedFailed when a node does not answer."""
        ...


@runtime_checkable
class Gating(Protocol):
    """Hosts that can `disk` and `unsynced` only for processes that run behind a gate."""

    async def gated(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent], unsynced: str = ""
    ) -> Mapping[str, Agent]:
        """All agents; those of these nodes, once raised, now start processes behind a gate, and are
        `Disked`. Below the folder `unsynced` in the node's own, if one is named, the gate keeps a
        ledger of what is not synced, and they are `Forgetful`. BedFailed when a node's kernel has
        no such gates."""
        ...


# --------------------------------------------------------------------------------------- system


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

    def client(self, settings: Mapping[str, Any]) -> "MessageClient":
        """A client, in a crew process. `settings` is what `client_settings` gave."""
        ...

    def client_settings(self, nodes: Sequence[Node]) -> Mapping[str, Any]:
        """What a client needs to find the cluster, as JSON."""
        ...


@dataclass(frozen=True)
class Received:
    """A message that a client was given."""

    offset: int
    epoch: int
    body: bytes


@dataclass(frozen=True)
class Batch:
    """A poll's result: completion, messages in order, and where to read next."""

    completion: Completion
    messages: Sequence[Received] = ()
    next_offset: int = 0
    max_offset: int = 0


class MessageClient(Protocol):
    """A client of a message system. Calls never raise for what the system did: the mapping from
    its errors to ok, fail and info is one table in the driver."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        """Send one message; `done` is called exactly once, in the event loop. Pipelined."""
        ...

    async def poll(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> Batch: ...

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        """The queue's minimum offset and high-water mark. ConnectionError: not reachable now."""
        ...

    async def committed(self, group: str, topic: str, queue: int) -> int:
        """The group's offset, -1 when it has none. ConnectionError: not reachable now."""
        ...

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion: ...


class MetadataClient(MessageClient, Protocol):
    """A client that also changes what a message system knows besides its messages."""

    async def create_topic(self, topic: str, queues: int) -> Completion: ...

    async def delete_topic(self, topic: str) -> Completion: ...

    async def topics(self) -> Mapping[str, int]:
        """All topics and their queues. ConnectionError: not reachable now."""
        ...

    async def reset(self, group: str, topic: str, queue: int, offset: int) -> Completion: ...

    async def lock(self, group: str, client: str, topic: str, queue: int) -> Completion:
        """Ok with the milliseconds, since this was called, for which it is ours as `offset`."""
        ...

    async def unlock(self, group: str, client: str, topic: str, queue: int) -> Completion: ...


# ------------------------------------------------------------------------------------- nemesis


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
        """A replica's messages in log order: (key, offset, value, epoch, crc)."""
        ...


class Clients(Protocol):
    """The processes that clients live in, for faults that hit them."""

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


# ------------------------------------------------------------------------------------ workload


class Crew(Protocol):
    """What a workload sees of the client process it runs in."""

    client: MessageClient
    processes: Sequence[int]  # the logical processes that live in this crew
    total: int  # processes in all crews
    stopping: bool  # the load is over: finish what is open, begin nothing new

    def random(self, name: str) -> Any:
        """A `random.Random` of its own, from the trial's seed and the name."""
        ...

    def number(self, process: int) -> int:
        """What a logical process is called in the history: another number each time that its crew
        died and began again, for what was open then may still happen."""
        ...

    def now_s(self) -> float:
        """Seconds since the load began."""
        ...

    def invoke(
        self, process: int, f: int, key: int, value: int = -1, offset: int = -1, arg: int = -1
    ) -> int:
        """Journal an invocation; the operation's number."""
        ...

    def complete(
        self, process: int, op: int, f: int, key: int, value: int, completion: Completion
    ) -> None:
        """Journal a completion; its error text goes to the notes."""
        ...

    def received(
        self, process: int, op: int, f: int, key: int, pos: int, value: int, message: Received
    ) -> None:
        """Journal one message of a poll that returned."""
        ...

    def note(self, text: str, process: int = -1, op: int = -1) -> None:
        """Journal a note, such as `DRAINED ...` of `harness.schema`."""
        ...


class Workload(Protocol):
    """What clients do. The same object in every crew; `crew.processes` says whose part is here."""

    processes: int
    keys: Sequence[str]  # names of the objects operated on, e.g. "orders-0"; indexed by `key`
    checkers: Sequence[str]  # who judges it

    def who(self, process: int) -> str:
        """A logical process in words: "producer 0", "consumer 1 of group-0", "reader 0"."""
        ...

    def check_options(self) -> None:
        """BadRequest when the trial's `load` options make no sense."""
        ...

    def client_settings(self) -> Mapping[str, Any]:
        """What the system must prepare for: {"topics": {name: queues}, "body_bytes": at most,
        "once": may clients not send anything a second time}."""
        ...

    async def load(self, crew: Crew) -> None:
        """Operate until `crew.stopping`, then until every open operation has completed."""
        ...

    async def drain(self, crew: Crew) -> None:
        """The final phase: read everything that is left, from fresh and from group offsets."""
        ...
